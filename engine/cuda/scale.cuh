#pragma once

#include "engine/backend_args.h"
#include "engine/cuda/ptx.cuh"

namespace longshore::cuda {

inline constexpr float kLog2E = 1.44269504F;  // exponents to base 2 are cheaper

// tanh by few instructions, right to about 1e-6 of itself: its series where that is short, else
// 1 - 2 / (e^2x + 1).
__device__ inline float FastTanh(float x) {
  const float square = x * x;
  const float series = x * fmaf(square, fmaf(square, 2.0F / 15.0F, -1.0F / 3.0F), 1.0F);
  const float far = 1.0F - __fdividef(2.0F, Exp2(2.0F * kLog2E * x) + 1.0F);
  return square < 0.01F ? series : far;
}

// s = scale s, then soft_cap tanh(s / soft_cap) where there is a cap.
__device__ inline float Scaled(const AttentionShape& shape, float score) {
  if (shape.logit_soft_cap > 0.0F) {
    return shape.logit_soft_cap * tanhf(score * (shape.softmax_scale / shape.logit_soft_cap));
  }
  return score * shape.softmax_scale;
}

}  // namespace longshore::cuda
