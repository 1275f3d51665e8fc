#pragma once

#include <cstdint>

#include "engine/core/hd.h"

namespace longshore {

/// Whether chunk `a` comes before chunk `b` in a ranking: the higher rank, and of equal ranks the
/// lower token.
HD inline bool RanksBefore(float rank_a, int32_t token_a, float rank_b, int32_t token_b) {
  return rank_a > rank_b || (rank_a == rank_b && token_a < token_b);
}

}  // namespace longshore
