#include "engine/group_run.h"

#include <algorithm>

#include "engine/core/stopwatch.h"

namespace longshore {
namespace {

// How a choice of styles applies to a block, whose plan says whether it is beyond the trained
// length.
RopeRule RuleOf(const RopeChoice& rope,
                const GroupRun& run,
                const BlockPlan& plan,
                const QueryBlock& block) {
  return {.style = rope.At(plan.beyond),
          .window_tokens = run.layers->window_tokens,
          .trained_tokens = block.rope.trained_tokens,
          .block_first_position = block.first_position,
          .group = rope.self_extend_group,
          .neighbor_tokens = rope.self_extend_neighbor_tokens};
}

// Stage `stage` of block `index` and of those that share its selection.
PruneBlock StageOf(const GroupRun& run, size_t index, size_t stage) {
  const BlockPlan& plan = run.blocks[index];
  PruneBlock block;
  block.block = run.queries[index];
  block.block.rows = plan.stage_rows[stage].rows;
  block.rule = RuleOf(run.layers->stages[stage].rope, run, plan, block.block);
  if (stage > 0) {
    block.parents = run.slots[index][stage - 1];
    block.num_parents = plan.selected_chunks[stage - 1];
    block.parent_chunk_tokens = run.layers->stages[stage - 1].chunk_tokens;
  }
  block.selected = run.slots[index][stage];
  block.num_selected = plan.selected_chunks[stage];
  return block;
}

void CountStage(const BlockPlan& plan, size_t stage, StepTrace* trace) {
  const StageUse use = plan.stage_use[stage];
  ++trace->stage_uses[stage][static_cast<size_t>(use)];
  if (use == StageUse::kCached) {
    ++trace->stage_cached[stage];
    trace->stage_ages[stage].Add(plan.mask_age[stage]);
  } else {
    ++trace->stage_refreshed[stage];
  }
}

absl::Status RunStage(const GroupRun& run, size_t stage, Backend* backend, StepTrace* trace) {
  const Stopwatch stopwatch;
  std::vector<PruneBlock> stale;
  for (size_t index = 0; index < run.blocks.size(); ++index) {
    const BlockPlan& plan = run.blocks[index];
    if (plan.middle != Middle::kStages || !plan.RunsStage(stage)) {
      continue;
    }
    CountStage(plan, stage, trace);
    if (plan.stage_use[stage] != StageUse::kCached && plan.selected_chunks[stage] > 0) {
      stale.push_back(StageOf(run, index, stage));
    }
  }
  if (stale.empty()) {
    return absl::OkStatus();
  }
  PruneArgs args;
  args.shape = run.shape;
  args.stage = run.layers->stages[stage];
  args.ranking = run.policy->ranking;
  args.probability_power = run.policy->probability_power;
  args.query_stride = run.policy->query_stride;
  args.blocks = stale;
  args.q = run.call->q;
  RETURN_IF_ERROR(backend->Prune(args));
  trace->stage_seconds[stage] += stopwatch.Seconds();
  return absl::OkStatus();
}

// Rows that see the same keys at other ids become blocks of their own.
void SplitRows(AttendBlock block, std::vector<AttendBlock>* blocks) {
  const int32_t rows = block.block.rows;
  block.block.rows = 1;
  for (int32_t row = 0; row < rows; ++row) {
    blocks->push_back(block);
    ++block.block.first_row;
    ++block.block.first_position;
  }
}

absl::Status RunAttend(const GroupRun& run, Backend* backend, StepTrace* trace) {
  const Stopwatch stopwatch;
  std::vector<AttendBlock> blocks;
  for (size_t index = 0; index < run.blocks.size(); ++index) {
    const BlockPlan& plan = run.blocks[index];
    const AttendBlock block = AttendOf(run, index);
    if (AttendKeyIdsDependOnQuery(block.rule.style)) {
      SplitRows(block, &blocks);
    } else {
      blocks.push_back(block);
    }
    trace->dense_blocks += plan.middle == Middle::kDense ? 1 : 0;
    const bool slides = plan.sliding_window_tokens > 0;
    trace->sliding_blocks += slides ? 1 : 0;
    trace->streaming_blocks += plan.middle == Middle::kNone && !slides ? 1 : 0;
    trace->staged_blocks += plan.middle == Middle::kStages ? 1 : 0;
  }
  AttendArgs args;
  args.shape = run.shape;
  args.blocks = blocks;
  args.q = run.call->q;
  args.out = run.call->out;
  args.log_sum_exp = run.call->log_sum_exp;
  args.sink_logits = run.sink_logits;
  RETURN_IF_ERROR(backend->Attend(args));
  trace->attend_seconds += stopwatch.Seconds();
  return absl::OkStatus();
}

}  // namespace

AttendBlock AttendOf(const GroupRun& run, size_t index) {
  const BlockPlan& plan = run.blocks[index];
  AttendBlock block;
  block.block = run.queries[index];
  block.sliding_window_tokens = plan.sliding_window_tokens;
  if (plan.middle == Middle::kDense) {
    block.block.regions = Regions{};
  } else if (plan.sliding_window_tokens == 0) {  // the others are at true positions
    block.rule = RuleOf(run.policy->AttentionRopeOf(*run.layers), run, plan, block.block);
  }
  if (plan.middle == Middle::kStages) {
    const size_t last = run.layers->stages.size() - 1;
    block.selected = run.slots[index][last];
    block.num_selected = plan.selected_chunks[last];
    block.selected_chunk_tokens = run.layers->stages[last].chunk_tokens;
  }
  return block;
}

absl::Status RunGroup(const GroupRun& run, Backend* backend, StepTrace* trace) {
  const auto num_stages = static_cast<int32_t>(run.layers->stages.size());
  trace->num_stages = std::max(trace->num_stages, num_stages);
  for (size_t stage = 0; stage < run.layers->stages.size(); ++stage) {
    RETURN_IF_ERROR(RunStage(run, stage, backend, trace));
  }
  return RunAttend(run, backend, trace);
}

}  // namespace longshore
