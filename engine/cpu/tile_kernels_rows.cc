#include "engine/cpu/tile_kernels_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/tile_kernels_rows.cc"
#include <hwy/foreach_target.h>

#include <type_traits>

#include "engine/core/math.h"
#include "engine/cpu/tile_kernels-inl.h"
#include "engine/cpu/tile_kernels.h"

HWY_BEFORE_NAMESPACE();

namespace longshore::cpu::HWY_NAMESPACE {

void SplitSigns(const float* queries, int32_t rows, int32_t depth, float* out) {
  const FloatTag d;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = queries + row * depth;
    float* to = out + row * 2 * depth;
    for (int64_t dim = 0; dim < depth; dim += kLanes) {
      const FloatVec q = hn::LoadU(d, from + dim);
      hn::StoreU(hn::Max(q, hn::Zero(d)), d, to + dim);
      hn::StoreU(hn::Min(q, hn::Zero(d)), d, to + depth + dim);
    }
  }
}

void MinMaxRows(const float* source, int32_t rows, int32_t depth, float* maximum, float* minimum) {
  const FloatTag d;
  for (int64_t dim = 0; dim < depth; dim += kLanes) {
    FloatVec max = hn::LoadU(d, source + dim);
    FloatVec min = max;
    for (int64_t row = 1; row < rows; ++row) {
      const FloatVec x = hn::LoadU(d, source + row * depth + dim);
      max = hn::Max(max, x);
      min = hn::Min(min, x);
    }
    hn::StoreU(max, d, maximum + dim);
    hn::StoreU(min, d, minimum + dim);
  }
}

void StoreRows(const float* from, int64_t count, DType dtype, void* to) {
  VisitElements(dtype, [&]<class Element>(const Element*) HWY_ATTR {
    auto* HWY_RESTRICT elements = static_cast<Element*>(to);
    ForEachVector(FloatTag(), 0, count, [&](auto d, int64_t i) HWY_ATTR {
      StoreElements(d, hn::LoadU(d, from + i), elements + i);
    });
  });
}

// The exponent bits, all set in what is not finite.
HWY_INLINE uint32_t ExponentBits(const float* /*element*/) { return 0x7f800000u; }
HWY_INLINE uint16_t ExponentBits(const Bf16* /*element*/) { return 0x7f80u; }
HWY_INLINE uint16_t ExponentBits(const F16* /*element*/) { return 0x7c00u; }

/// Index of the first of `count` elements whose exponent bits are all set, -1 if there is none.
///
/// Reads blocks without a branch and looks closer only where the largest exponent of one is full.
template <class Bits>
HWY_NOINLINE int64_t FirstFullExponent(const Bits* HWY_RESTRICT data,
                                       Bits exponent,
                                       int64_t count) {
  const hn::ScalableTag<Bits> d;
  constexpr int64_t kSize = hn::MaxLanes(d);
  constexpr int64_t kBlock = 16 * kSize;
  const auto full = hn::Set(d, exponent);
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t size = Min(kBlock, count - first);
    if (HWY_LIKELY(size == kBlock)) {
      auto largest = hn::Zero(d);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kBlock; i += kSize) {
        largest = hn::Max(largest, hn::And(full, hn::LoadU(d, data + first + i)));
      }
      if (HWY_LIKELY(hn::AllFalse(d, hn::Eq(largest, full)))) {
        continue;
      }
    }
    for (int64_t i = first; i < first + size; ++i) {
      if ((data[i] & exponent) == exponent) {
        return i;
      }
    }
  }
  return -1;
}

int64_t FirstNonFinite(const void* data, DType dtype, int64_t count) {
  int64_t index = -1;
  VisitElements(dtype, [&]<class Element>(const Element* element) HWY_ATTR {
    using Bits = decltype(ExponentBits(element));
    index = FirstFullExponent(static_cast<const Bits*>(data), ExponentBits(element), count);
  });
  return index;
}

}  // namespace longshore::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace longshore::cpu {

HWY_EXPORT(SplitSigns);
HWY_EXPORT(MinMaxRows);
HWY_EXPORT(StoreRows);
HWY_EXPORT(FirstNonFinite);

void SplitSigns(const float* queries, int32_t rows, int32_t depth, float* out) {
  HWY_DYNAMIC_DISPATCH(SplitSigns)(queries, rows, depth, out);
}

void MinMaxRows(const float* source, int32_t rows, int32_t depth, float* maximum, float* minimum) {
  HWY_DYNAMIC_DISPATCH(MinMaxRows)(source, rows, depth, maximum, minimum);
}

void StoreRows(const float* from, int64_t count, DType dtype, void* to) {
  HWY_DYNAMIC_DISPATCH(StoreRows)(from, count, dtype, to);
}

int64_t FirstNonFinite(const void* data, DType dtype, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(FirstNonFinite)(data, dtype, count);
}

}  // namespace longshore::cpu

#endif  // HWY_ONCE
