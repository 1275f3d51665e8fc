#pragma once

#include <cmath>

#include "engine/core/hd.h"

namespace longshore {

/// A raw score as softmax sees it: s = scale * q.k, then cap * tanh(s / cap) where cap > 0.
/// Monotone, so a maximum may be taken before or after.
HD inline float ScaledScore(float dot, float scale, float soft_cap) {
  const float score = dot * scale;
  return soft_cap > 0.0F ? soft_cap * tanhf(score / soft_cap) : score;
}

/// Whether chunk `a` comes before chunk `b` in a ranking: the higher rank, and of equal ranks the
/// lower token.
HD inline bool RanksBefore(float rank_a, int32_t token_a, float rank_b, int32_t token_b) {
  return rank_a > rank_b || (rank_a == rank_b && token_a < token_b);
}

}  // namespace longshore
