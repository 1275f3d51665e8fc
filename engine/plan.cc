#include "engine/plan.h"

#include "engine/algo/rope.h"
#include "engine/core/math.h"

namespace longshore {
namespace {

// The first position with the styles for beyond the trained length.
int64_t BeyondFrom(const AttentionPolicy& policy, int64_t trained_tokens, int64_t max_tokens) {
  const bool from_start = policy.extension == Extension::kFromStart && max_tokens > trained_tokens;
  return from_start ? 0 : trained_tokens;
}

// The first stage that must run for a block whose last row is at `last`.
int32_t FirstStaleStage(const ItemState& state,
                        const LayerPolicy& layers,
                        const MaskState& mask,
                        int64_t last,
                        bool beyond) {
  if (state.phase == Phase::kPrefill || !mask.valid || mask.beyond != beyond) {
    return 0;
  }
  for (size_t stage = 0; stage < layers.stages.size(); ++stage) {
    const int32_t interval = layers.stages[stage].refresh_steps;
    if (RefreshTick(last, state.layer, interval) !=
        RefreshTick(mask.refreshed_at[stage], state.layer, interval)) {
      return static_cast<int32_t>(stage);
    }
  }
  return static_cast<int32_t>(layers.stages.size());
}

// What becomes of a block's middle.
Middle MiddleOf(const ItemState& state, const LayerPolicy& layers, const BlockPlan& block) {
  if (state.sliding_window_tokens > 0) {
    return Middle::kNone;
  }
  // Dense means true positions: not for tokens that an extended session will look back at.
  const int64_t last = block.first_position + block.rows - 1;
  const bool dense = layers.middle == Middle::kStages && !block.beyond &&
                     last < Min(state.policy->dense_below_tokens, state.trained_tokens);
  return dense ? Middle::kDense : layers.middle;
}

// Regions of a block at `position` that no mask has a say in.
Regions RegionsOf(const ItemState& state, const LayerPolicy& layers, int64_t position) {
  if (state.sliding_window_tokens > 0) {
    return Regions{0, OldestSeen(position, state.sliding_window_tokens)};
  }
  return SplitRegions(position, state.policy->sink_tokens, layers.window_tokens,
                      layers.MiddleChunkTokens());
}

// Fills regions, stale stages and kept chunks, and brings `mask` to what the block leaves behind.
void PlanStages(const ItemState& state,
                const LayerPolicy& layers,
                BlockPlan* block,
                MaskState* mask) {
  const int64_t last = block->first_position + block->rows - 1;
  block->first_stale_stage = FirstStaleStage(state, layers, *mask, last, block->beyond);
  const int64_t sink_tokens = state.policy->sink_tokens;
  if (block->first_stale_stage == 0) {
    mask->middle_end = SplitRegions(block->first_position, sink_tokens, layers.window_tokens,
                                    layers.MiddleChunkTokens())
                           .middle_end;
  }
  block->regions = Regions{sink_tokens, mask->middle_end};
  int64_t candidate_tokens = block->regions.MiddleTokens();
  for (size_t stage = 0; stage < layers.stages.size(); ++stage) {
    const PruningStage& rule = layers.stages[stage];
    const int64_t candidates = candidate_tokens / rule.chunk_tokens;
    const auto kept = static_cast<int32_t>(Min(rule.KeepChunks(), candidates));
    block->selected_chunks[stage] = kept;
    mask->selected_chunks[stage] = kept;
    if (static_cast<int32_t>(stage) >= block->first_stale_stage) {
      mask->refreshed_at[stage] = last;
    }
    candidate_tokens = int64_t{kept} * rule.chunk_tokens;
  }
  mask->beyond = block->beyond;
  mask->valid = true;
}

}  // namespace

ItemPlan PlanItem(const ItemState& state) {
  const AttentionPolicy& policy = *state.policy;
  const LayerPolicy& layers = policy.Of(state.phase, state.layer);
  // Masks of one phase serve the other only where both make the same ones, windows included: a mask
  // freezes where its window begins.
  const bool masks_carry_over = layers == policy.Of(Phase::kDecode, state.layer);
  ItemPlan plan;
  plan.mask = state.mask;
  const int64_t beyond_from = BeyondFrom(policy, state.trained_tokens, state.max_tokens);
  const int64_t end = state.position + state.rows;
  for (int64_t position = state.position; position < end;) {
    const int64_t block_end = Min(end, (position / policy.query_block + 1) * policy.query_block);
    BlockPlan block;
    block.item = state.item;
    block.first_row = state.first_row + static_cast<int32_t>(position - state.position);
    block.rows = static_cast<int32_t>(block_end - position);
    block.first_position = position;
    block.beyond = block_end - 1 >= beyond_from;
    block.sliding_window_tokens = state.sliding_window_tokens;
    block.middle = MiddleOf(state, layers, block);
    if (block.middle == Middle::kStages) {
      PlanStages(state, layers, &block, &plan.mask);
      block.to_cache = masks_carry_over && (state.phase == Phase::kDecode || block_end == end);
    } else {
      block.regions = RegionsOf(state, layers, position);
      plan.mask.valid = false;
    }
    plan.blocks.push_back(block);
    position = block_end;
  }
  plan.mask.valid = plan.mask.valid && masks_carry_over;
  return plan;
}

std::vector<std::vector<BlockPlan>> GroupBlocks(std::span<const ItemPlan* const> plans,
                                                Phase phase) {
  std::vector<std::vector<BlockPlan>> groups;
  for (const ItemPlan* plan : plans) {
    for (size_t ordinal = 0; ordinal < plan->blocks.size(); ++ordinal) {
      const size_t group = phase == Phase::kPrefill ? 0 : ordinal;
      if (group >= groups.size()) {
        groups.resize(group + 1);
      }
      groups[group].push_back(plan->blocks[ordinal]);
    }
  }
  return groups;
}

SummaryPlan PlanSummaries(const AttentionPolicy& policy,
                          const ModelShape& model,
                          int32_t layer,
                          int64_t max_tokens) {
  SummaryPlan plan;
  if (model.SlidingWindow(layer) > 0) {
    return plan;
  }
  const int64_t trained_tokens = model.TrainedTokens(layer);
  const int64_t beyond_from = BeyondFrom(policy, trained_tokens, max_tokens);
  const bool passes = max_tokens > beyond_from;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (const PruningStage& stage : policy.Of(phase, layer).stages) {
      if (stage.selector != Selector::kBounds) {
        continue;
      }
      const bool within_unrotated = PruneKeysAreUnrotated(stage.rope.within_trained);
      const bool beyond_unrotated = PruneKeysAreUnrotated(stage.rope.beyond_trained);
      plan.unrotated =
          plan.unrotated || (within_unrotated && beyond_from > 0) || (passes && beyond_unrotated);
      if (passes && !beyond_unrotated) {
        plan.rotated_below = max_tokens;
      } else if (!within_unrotated) {
        plan.rotated_below = Max(plan.rotated_below, Min(beyond_from, max_tokens));
      }
    }
  }
  return plan;
}

}  // namespace longshore
