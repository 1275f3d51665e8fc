#pragma once

#include "engine/backend_args.h"

namespace longshore::cuda {

inline constexpr float kLog2E = 1.44269504F;  // exponents to base 2 are cheaper

// s = scale s, then soft_cap tanh(s / soft_cap) where there is a cap.
__device__ inline float Scaled(const AttentionShape& shape, float score) {
  if (shape.logit_soft_cap > 0.0F) {
    return shape.logit_soft_cap * tanhf(score * (shape.softmax_scale / shape.logit_soft_cap));
  }
  return score * shape.softmax_scale;
}

}  // namespace longshore::cuda
