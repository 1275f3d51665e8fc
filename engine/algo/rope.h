#pragma once

#include <cstdint>

#include "engine/algo/regions.h"
#include "engine/core/hd.h"
#include "engine/policy.h"

namespace longshore {

/// Rotary ids while pruning (design section 4, table of styles). `relative` puts every scored key
/// at a constant distance of W behind the query. Any common shift gives the same scores, so its
/// keys get id 0: they are used as they are stored, and summaries of unrotated keys serve.
HD inline bool PruneKeysAreUnrotated(RopeStyle style) { return style == RopeStyle::kRelative; }

/// Id of a query at `position`.
HD inline int64_t PruneQueryId(RopeStyle style, int64_t position, int64_t window_tokens) {
  return style == RopeStyle::kRelative ? window_tokens : position;
}

/// Id of a scored key at `position`, for styles that rotate keys.
HD inline int64_t PruneKeyId(RopeStyle /*style*/, int64_t position) { return position; }

/// Rotary ids in attention. `streaming` numbers sink, selected and window tokens 0, 1, 2, ... in
/// order, so ids stay small however long the context is.
struct AttendIds {
  RopeStyle style = RopeStyle::kTruePositions;
  int64_t sink_end = 0;
  int64_t window_shift = 0;  ///< from a window position to its id

  HD int64_t OfSink(int64_t position) const { return position; }
  /// `rank` counts the selected tokens before this one.
  HD int64_t OfSelected(int64_t position, int64_t rank) const {
    return style == RopeStyle::kStreaming ? sink_end + rank : position;
  }
  /// A token of the window, or a query: the query's own token is always in the window.
  HD int64_t OfWindow(int64_t position) const { return position - window_shift; }
};

/// Ids of a block with these regions and `selected_tokens` selected tokens.
HD inline AttendIds MakeAttendIds(RopeStyle style,
                                  const Regions& regions,
                                  int64_t selected_tokens) {
  const int64_t skipped = regions.MiddleTokens() - selected_tokens;
  return AttendIds{style, regions.sink_end, style == RopeStyle::kStreaming ? skipped : 0};
}

}  // namespace longshore
