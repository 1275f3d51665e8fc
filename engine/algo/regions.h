#pragma once

#include <cstdint>

#include "engine/core/hd.h"
#include "engine/core/math.h"

namespace longshore {

/// Where the three regions of a query block lie: sink [0, sink_end), middle [sink_end, middle_end),
/// window [middle_end, position of the row]. Every token of a layer is in exactly one of them.
struct Regions {
  int64_t sink_end = 0;
  int64_t middle_end = 0;

  HD int64_t MiddleTokens() const { return middle_end - sink_end; }
  bool operator==(const Regions&) const = default;
};

/// Regions of a query block whose first row is at `first_position`.
///
/// M = S + floor((L - W - S) / c) * c with L = first_position + 1, and S where that is smaller
/// (design section 3). Taken from the block's first row, so that every middle token is older than
/// every row. `chunk_tokens` c is the first stage's, 1 without stages.
HD inline Regions SplitRegions(int64_t first_position,
                               int64_t sink_tokens,
                               int64_t window_tokens,
                               int64_t chunk_tokens) {
  const int64_t older = first_position + 1 - window_tokens - sink_tokens;
  const int64_t whole_chunks = Max(0, FloorDiv(older, chunk_tokens));
  return Regions{sink_tokens, sink_tokens + whole_chunks * chunk_tokens};
}

/// The oldest token that a query at `position` sees through a sliding window of `window_tokens`,
/// its own token included.
HD inline int64_t OldestSeen(int64_t position, int64_t window_tokens) {
  return Max(0, position - window_tokens + 1);
}

/// Value of a stage's refresh clock: the stage is stale when this differs from its last refresh.
///
/// floor((p + phase(l)) / interval) with phase(l) = l (design section 3), so that layers take
/// turns.
HD inline int64_t RefreshTick(int64_t position, int32_t layer, int32_t refresh_steps) {
  return (position + layer) / refresh_steps;
}

/// Of a block's `rows` rows every stride-th is scored, counted back from the last: the first one,
/// and how many there are.
HD inline int32_t FirstScoredRow(int32_t rows, int32_t query_stride) {
  return (rows - 1) % query_stride;
}
HD inline int32_t ScoredRows(int32_t rows, int32_t query_stride) {
  return (rows - 1) / query_stride + 1;
}

}  // namespace longshore
