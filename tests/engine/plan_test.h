#pragma once

#include <cstdint>
#include <limits>

#include "engine/plan.h"

namespace longshore {

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// SmallStandard: S=64, W=128; 4 of the 64-token chunks every 16 steps, 8 of the 8-token chunks
// every 4 steps.
inline ItemState StateAt(const AttentionPolicy& policy,
                         Phase phase,
                         int64_t position,
                         int64_t rows) {
  ItemState state;
  state.policy = &policy;
  state.trained_tokens = kNoLimit;
  state.phase = phase;
  state.position = position;
  state.rows = rows;
  return state;
}

}  // namespace longshore
