#pragma once

#include <cstdint>

#include "engine/algo/regions.h"
#include "engine/core/hd.h"
#include "engine/policy.h"

namespace longshore {

/// Everything but the tokens that the rotary ids of a query block depend on (design section 4,
/// table of styles).
struct RopeRule {
  RopeStyle style = RopeStyle::kTruePositions;
  int64_t window_tokens = 0;         ///< W
  int64_t trained_tokens = 0;        ///< L of the layer's table
  int64_t block_first_position = 0;  ///< f, whichever rows of the block are looked at
  int64_t group = 1;                 ///< g of self_extend
  int64_t neighbor_tokens = 0;       ///< n of self_extend
};

/// Id of a key at `position` for a query at `query`, in styles that squeeze what is far away.
///
/// dynamic_extend, w = L / 4: the position itself where query < L or position >= f - w; else
/// f - w + floor((position - f + w) (L - w) / (f - w)), and query - L + 1 where that is smaller.
/// self_extend: the position itself nearer than n; else query - n - floor((query - position - n) /
/// g).
HD inline int64_t SqueezedKeyId(const RopeRule& rule, int64_t query, int64_t position) {
  if (rule.style == RopeStyle::kSelfExtend) {
    const int64_t far = query - position - rule.neighbor_tokens;
    return far < 0 ? position : query - rule.neighbor_tokens - far / rule.group;
  }
  const int64_t near_tokens = rule.trained_tokens / 4;
  const int64_t near_begin = rule.block_first_position - near_tokens;
  if (query < rule.trained_tokens || position >= near_begin) {
    return position;
  }
  const int64_t squeezed =
      near_begin +
      FloorDiv((position - near_begin) * (rule.trained_tokens - near_tokens), near_begin);
  return Max(squeezed, query - rule.trained_tokens + 1);
}

/// Whether a key's id is another one for each query, so that every row of a block is rotated for
/// alone.
HD inline bool KeyIdsDependOnQuery(RopeStyle style) {
  return style == RopeStyle::kDynamicExtend || style == RopeStyle::kSelfExtend;
}

/// Rotary ids while pruning. `relative` and `infllm` put every scored key at a constant distance of
/// W behind the query. Any common shift gives the same scores, so these keys get id 0: they are
/// used as they are stored, and summaries of unrotated keys serve.
HD inline bool PruneKeysAreUnrotated(RopeStyle style) {
  return style == RopeStyle::kRelative || style == RopeStyle::kInfLlm;
}

/// Id of a query at `position` in a stage of `candidates` chunks.
HD inline int64_t PruneQueryId(const RopeRule& rule, int64_t position, int64_t candidates) {
  switch (rule.style) {
    case RopeStyle::kRelative:
    case RopeStyle::kInfLlm: return rule.window_tokens;
    case RopeStyle::kChunkIndexed: return Min(position, candidates + rule.window_tokens);
    default: return position;
  }
}

/// Id of a scored key at `position`, in the stage's candidate number `ordinal`, for a query at
/// `query`.
HD inline int64_t PruneKeyId(const RopeRule& rule,
                             int64_t query,
                             int64_t position,
                             int64_t ordinal) {
  switch (rule.style) {
    case RopeStyle::kRelative:
    case RopeStyle::kInfLlm: return 0;
    case RopeStyle::kChunkIndexed: return ordinal;
    case RopeStyle::kDynamicExtend:
    case RopeStyle::kSelfExtend: return SqueezedKeyId(rule, query, position);
    default: return position;
  }
}

/// What descent adds: under `relative` the query is at W + 1, a left branch at 0, and a right
/// branch and the final token at 1, so that two branches that are alike differ by their place.
HD inline bool DescentKeysAreUnrotated(RopeStyle style) { return style == RopeStyle::kInfLlm; }
HD inline int64_t DescentQueryId(const RopeRule& rule, int64_t position, int64_t candidates) {
  const bool relative = rule.style == RopeStyle::kRelative;
  return PruneQueryId(rule, position, candidates) + (relative ? 1 : 0);
}
HD inline int64_t DescentKeyId(const RopeRule& rule,
                               int64_t query,
                               int64_t position,
                               int64_t ordinal,
                               bool left) {
  const bool relative = rule.style == RopeStyle::kRelative;
  return PruneKeyId(rule, query, position, ordinal) + (relative && !left ? 1 : 0);
}

/// Rotary ids in attention. A key's rank counts the attended keys before it, in ascending order of
/// tokens; `streaming` ids are ranks, so they stay small however long the context is.
struct AttendIds {
  RopeRule rule;
  int64_t middle_end = 0;  ///< M: where the window begins
  int64_t skipped = 0;     ///< tokens of the middle that are not attended to

  /// The query's own token is always in the window.
  HD int64_t OfQuery(int64_t position) const {
    return rule.style == RopeStyle::kStreaming ? position - skipped : position;
  }
  /// Under `infllm` what is not in the window is W behind the query.
  HD int64_t OfKey(int64_t query, int64_t position, int64_t rank) const {
    switch (rule.style) {
      case RopeStyle::kStreaming: return rank;
      case RopeStyle::kInfLlm:
        return position >= middle_end ? position : Max(0, query - rule.window_tokens);
      case RopeStyle::kDynamicExtend:
      case RopeStyle::kSelfExtend: return SqueezedKeyId(rule, query, position);
      default: return position;
    }
  }
};

/// Whether the rows of a block cannot share rotated keys in attention.
HD inline bool AttendKeyIdsDependOnQuery(RopeStyle style) {
  return KeyIdsDependOnQuery(style) || style == RopeStyle::kInfLlm;
}

/// Ids of a block with these regions and `selected_tokens` selected tokens.
HD inline AttendIds MakeAttendIds(const RopeRule& rule,
                                  const Regions& regions,
                                  int64_t selected_tokens) {
  return AttendIds{rule, regions.middle_end, regions.MiddleTokens() - selected_tokens};
}

}  // namespace longshore
