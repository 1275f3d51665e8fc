#pragma once

#include <array>
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

/// What one call did, for metrics.
struct StepTrace {
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
