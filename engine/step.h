#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend.h"
#include "engine/plan.h"
#include "engine/session.h"

namespace longshore {

/// The rows of one session in a call.
struct StepItem {
  uint64_t session_id = 0;
  int64_t position = 0;  ///< of the first row
  int64_t rows = 0;
  uint64_t append_id = 0;  ///< tells a replay from another call; 0: the call cannot be replayed
};

/// One call: one layer of one or more sessions of the same model shape. The rows of the items are
/// packed.
struct StepCall {
  StepKind kind = StepKind::kDecode;
  int32_t layer = 0;
  std::span<const StepItem> items;
  TensorRef q = {};                  ///< [rows, num_heads, head_dim] query_dtype; unused by kAppend
  TensorRef k = {};                  ///< [rows, num_kv_heads, head_dim] kv_dtype or query_dtype
  TensorRef v = {};                  ///< as k, in k's dtype
  TensorRef out = {};                ///< [rows, num_heads, head_dim] query_dtype; unused by kAppend
  TensorRef log_sum_exp = {};        ///< [rows, num_heads] f32; data null: not wanted
  bool exclude_sink_logits = false;  ///< leave learned sinks out of `out` and its log-sum-exp
};

/// Cached selections by their age, in positions since the stage was last run. Bucket b counts the
/// ages in [2^(b-1), 2^b); the first one age 0, the last one all that are more.
struct MaskAges {
  static constexpr size_t kBuckets = 9;
  std::array<int64_t, kBuckets> blocks = {};
  int64_t positions = 0;  ///< sum of the ages

  void Add(int64_t age) {
    ++blocks[std::min<size_t>(std::bit_width(static_cast<uint64_t>(age)), kBuckets - 1)];
    positions += age;
  }
};

/// What one call did, for metrics.
struct StepTrace {
  int32_t items = 0;
  int64_t rows = 0;
  int64_t appended_tokens = 0;
  int32_t replayed_items = 0;
  int64_t dense_blocks = 0;      ///< query blocks that attended to everything
  int64_t streaming_blocks = 0;  ///< and to sink and window alone
  int64_t sliding_blocks = 0;    ///< and to the sliding window of their layer
  int64_t staged_blocks = 0;     ///< and to sink, window and what stages keep
  int32_t num_stages = 0;
  std::array<int64_t, kMaxStages> stage_refreshed = {};  ///< the stage's query blocks that ran it
  std::array<int64_t, kMaxStages> stage_cached = {};     ///< and that used its cached result
  /// Both together by StageUse.
  std::array<std::array<int64_t, kNumStageUses>, kMaxStages> stage_uses = {};
  std::array<MaskAges, kMaxStages> stage_ages = {};  ///< of the cached results
  std::array<double, kMaxStages> stage_seconds = {};
  double append_seconds = 0;
  double attend_seconds = 0;
};

/// A submitted call.
struct StepTicket {
  Fence fence;
  StepTrace trace;
  std::vector<int64_t> layer_tokens;  ///< [items] length of the layer after the call
};

}  // namespace longshore
