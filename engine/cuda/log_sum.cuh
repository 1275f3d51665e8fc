#pragma once

#include <cstdint>

#include "engine/cuda/scale.cuh"

namespace longshore::cuda {

// A running log-sum-exp: log(sum) + max.
struct LogSum {
  float max = -INFINITY;
  float sum = 0.0F;

  // Powers of e are powers of 2 of differences times `exponent`, in which a scale of the scores may
  // be.
  template <int32_t kCount>
  __device__ void Add(const float (&scores)[kCount], float exponent) {
    float larger = max;
#pragma unroll
    for (const float score : scores) {
      larger = fmaxf(larger, score);
    }
    if (larger == -INFINITY) {
      return;  // differences of infinities are not numbers
    }
    sum *= Exp2((max - larger) * exponent);
    max = larger;
#pragma unroll
    for (const float score : scores) {
      sum += Exp2((score - larger) * exponent);
    }
  }
  __device__ void Merge(const LogSum& other) {
    const float larger = fmaxf(max, other.max);
    if (larger == -INFINITY) {
      return;
    }
    sum = sum * Exp2((max - larger) * kLog2E) + other.sum * Exp2((other.max - larger) * kLog2E);
    max = larger;
  }
};

}  // namespace longshore::cuda
