#pragma once

#include <cstdint>

#include "engine/cuda/elements.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/ptx.cuh"

namespace longshore::cuda {

// What ends the softmax of one row and head.
struct RowEnd {
  float factor;  // of sums of values, relative to exp(max)
  float log_sum_exp;
};

// A learned sink is one more term of the denominator, without a value.
__device__ inline RowEnd EndOf(const AttendLaunch& launch, int32_t head, float max, float sum) {
  if (launch.sink_logits == nullptr) {
    return {1.0F / sum, max + logf(sum)};
  }
  const float sink = launch.sink_logits[head];
  const float larger = fmaxf(max, sink);
  const float keep = expf(max - larger);
  const float all = sum * keep + expf(sink - larger);
  return {keep / all, larger + logf(all)};
}

// Rounding may carry a mean past the largest number.
__device__ inline float WithinRange(DType dtype, float value) {
  const float largest = LargestFinite(dtype);
  return fminf(fmaxf(value, -largest), largest);
}

// Two neighbours at an even index.
__device__ inline void StoreTwo(DType dtype, float2 values, void* to, int64_t index) {
  const float x = WithinRange(dtype, values.x);
  const float y = WithinRange(dtype, values.y);
  switch (dtype) {
    case DType::kBf16:
      *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(to) + index) = PackPair<Bf16>(x, y);
      return;
    case DType::kF16:
      *reinterpret_cast<uint32_t*>(static_cast<F16*>(to) + index) = PackPair<F16>(x, y);
      return;
    default: *reinterpret_cast<float2*>(static_cast<float*>(to) + index) = {x, y};
  }
}

}  // namespace longshore::cuda
