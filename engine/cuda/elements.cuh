#pragma once

#include <cstdint>

#include "engine/core/dtype.h"
#include "engine/core/half.h"
#include "engine/core/hd.h"

namespace longshore::cuda {

// The nearest number of a type, ties to even.
template <class Element>
__device__ inline Element ElementOf(float value) {
  if constexpr (sizeof(Element) == sizeof(float)) {
    return value;
  } else if constexpr (std::is_same_v<Element, Bf16>) {
    return ToBf16(value);
  } else {
    return ToF16(value);
  }
}

template <class Element>
__device__ inline float RoundTo(float value) {
  return ToFloat(ElementOf<Element>(value));
}

// Element `index` of an array whose type is known at run time only.
__device__ inline float LoadAny(DType dtype, const void* from, int64_t index) {
  switch (dtype) {
    case DType::kBf16: return ToFloat(static_cast<const Bf16*>(from)[index]);
    case DType::kF16: return ToFloat(static_cast<const F16*>(from)[index]);
    default: return static_cast<const float*>(from)[index];
  }
}

__device__ inline void StoreAny(DType dtype, float value, void* to, int64_t index) {
  switch (dtype) {
    case DType::kBf16: static_cast<Bf16*>(to)[index] = ToBf16(value); return;
    case DType::kF16: static_cast<F16*>(to)[index] = ToF16(value); return;
    default: static_cast<float*>(to)[index] = value;
  }
}

__device__ inline float LargestFinite(DType dtype) {
  switch (dtype) {
    case DType::kBf16: return 0x1.fep127F;
    case DType::kF16: return 65504.0F;
    default: return 0x1.fffffep127F;
  }
}

// body(Element{}) with the type of a page's elements.
template <class Body>
void WithElement(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kBf16: body(Bf16{}); return;
    case DType::kF16: body(F16{}); return;
    default: body(float{});
  }
}

}  // namespace longshore::cuda
