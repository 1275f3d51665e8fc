#pragma once

#include <array>
#include <span>
#include <vector>

#include "engine/backend.h"
#include "engine/plan.h"
#include "engine/step.h"

namespace longshore {

/// Where each stage of a block puts the first tokens of the chunks that it keeps; null: the stage
/// keeps none.
using SelectionSlots = std::array<int32_t*, kMaxStages>;

/// A group of query blocks with one policy, planned and placed.
struct GroupRun {
  AttentionShape shape;
  const AttentionPolicy* policy = nullptr;
  const LayerPolicy* layers = nullptr;
  const StepCall* call = nullptr;
  const float* sink_logits = nullptr;     ///< [num_heads] or null
  std::span<const BlockPlan> blocks;      ///< [blocks]
  std::span<const SelectionSlots> slots;  ///< [blocks]
  std::vector<QueryBlock> queries;        ///< [blocks]
};

/// The attention of block `index`, for all its rows.
AttendBlock AttendOf(const GroupRun& run, size_t index);

/// Enqueues the verbs of a group: Prune for each stage that is stale in some block, then Attend.
/// Adds what was done, and the time that the calls took, to `trace`.
absl::Status RunGroup(const GroupRun& run, Backend* backend, StepTrace* trace);

}  // namespace longshore
