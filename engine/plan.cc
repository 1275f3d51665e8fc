#include "engine/plan.h"

#include <algorithm>

#include "engine/algo/rope.h"
#include "engine/core/math.h"

namespace longshore {
namespace {

// The first position with the styles for beyond the trained length.
int64_t BeyondFrom(const AttentionPolicy& policy, int64_t trained_tokens, int64_t max_tokens) {
  const bool from_start = policy.extension == Extension::kFromStart && max_tokens > trained_tokens;
  return from_start ? 0 : trained_tokens;
}

// Why a stage is run for a block whose last row is at `last`, if it is. `coarser` is the use of the
// stage before it, or kCached for the first.
StageUse UseOf(const ItemState& state,
               const MaskState& mask,
               const BlockPlan& block,
               size_t stage,
               StageUse coarser) {
  if (state.phase == Phase::kPrefill) {
    return StageUse::kPrefill;
  }
  if (!mask.valid || mask.beyond != block.beyond) {
    return mask.attended ? StageUse::kInvalidated : StageUse::kFirst;
  }
  if (coarser != StageUse::kCached) {
    return StageUse::kPropagated;
  }
  const int32_t interval = state.policy->Of(state.phase, state.layer).stages[stage].refresh_steps;
  const int64_t last = block.first_position + block.rows - 1;
  const bool ticked = RefreshTick(last, state.layer, interval) !=
                      RefreshTick(mask.refreshed_at[stage], state.layer, interval);
  return ticked ? StageUse::kClock : StageUse::kCached;
}

// Says for each stage whether it is run, and why or how old its selection is.
void PlanUses(const ItemState& state, size_t num_stages, const MaskState& mask, BlockPlan* block) {
  block->first_stale_stage = static_cast<int32_t>(num_stages);
  StageUse coarser = StageUse::kCached;
  for (size_t stage = 0; stage < num_stages; ++stage) {
    const StageUse use = UseOf(state, mask, *block, stage, coarser);
    if (use == StageUse::kCached) {
      block->mask_age[stage] = block->first_position + block->rows - 1 - mask.refreshed_at[stage];
    } else if (coarser == StageUse::kCached) {
      block->first_stale_stage = static_cast<int32_t>(stage);
    }
    block->stage_use[stage] = use;
    coarser = use;
  }
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

// The query blocks of an item: all but regions and stages.
std::vector<BlockPlan> CutBlocks(const ItemState& state, const LayerPolicy& layers) {
  const AttentionPolicy& policy = *state.policy;
  const int64_t beyond_from = BeyondFrom(policy, state.trained_tokens, state.max_tokens);
  const int64_t end = state.position + state.rows;
  std::vector<BlockPlan> blocks;
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
    blocks.push_back(block);
    position = block_end;
  }
  return blocks;
}

// Which rows share the selection of `stage`: those of blocks within an absolute multiple of
// `query_block` that have stages, and the same rotary styles.
void ShareStage(size_t stage, int32_t query_block, std::span<BlockPlan> blocks) {
  for (size_t first = 0; first < blocks.size();) {
    const BlockPlan& leader = blocks[first];
    size_t end = first;
    int32_t rows = 0;
    do {
      rows += blocks[end].rows;
      ++end;
    } while (end < blocks.size() && blocks[end].middle == leader.middle &&
             blocks[end].beyond == leader.beyond &&
             blocks[end].first_position / query_block == leader.first_position / query_block);
    for (size_t index = first; index < end; ++index) {
      blocks[index].stage_rows[stage] = {.first_row = leader.first_row, .rows = rows};
    }
    first = end;
  }
}

// How many stages, from the coarsest, leave what they keep for a block in the mask cache: all in
// decode, and in a prefill those whose rows are the last ones.
int32_t StagesToCache(const ItemState& state, const LayerPolicy& layers, const BlockPlan& block) {
  const auto end_row = state.first_row + static_cast<int32_t>(state.rows);
  int32_t stages = 0;
  for (size_t stage = 0; stage < layers.stages.size(); ++stage) {
    const StageRows& rows = block.stage_rows[stage];
    const bool cached = state.phase == Phase::kDecode || rows.first_row + rows.rows == end_row;
    stages += cached ? 1 : 0;
  }
  return stages;
}

// Whether the masks that one phase makes serve the other: both make the same ones, windows
// included, for a mask freezes where its window begins. Which rows of a prefill made one does not
// matter.
bool MakeSameMasks(const LayerPolicy& left, const LayerPolicy& right) {
  const auto same = [](PruningStage one, const PruningStage& other) {
    one.query_block = other.query_block;
    return one == other;
  };
  return left.middle == right.middle && left.window_tokens == right.window_tokens &&
         std::equal(left.stages.begin(), left.stages.end(), right.stages.begin(),
                    right.stages.end(), same);
}

// Fills regions, uses of stages, kept chunks and their slots, and brings `mask` to what the block
// leaves behind.
void PlanStages(const ItemState& state,
                const LayerPolicy& layers,
                BlockPlan* block,
                MaskState* mask) {
  const int64_t last = block->first_position + block->rows - 1;
  PlanUses(state, layers.stages.size(), *mask, block);
  const int64_t sink_tokens = state.policy->sink_tokens;
  if (block->first_stale_stage == 0) {
    const int64_t coarsest_first =
        block->first_position + block->stage_rows[0].first_row - block->first_row;
    mask->middle_end =
        SplitRegions(coarsest_first, sink_tokens, layers.window_tokens, layers.MiddleChunkTokens())
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
      if (block->Caches(stage)) {  // later blocks of the call put theirs there, too
        mask->slots[stage] = 1 - state.mask.slots[stage];
      }
    }
    block->mask_slots[stage] = mask->slots[stage];
    candidate_tokens = int64_t{kept} * rule.chunk_tokens;
    block->selected_at = mask->refreshed_at[stage];
  }
  mask->beyond = block->beyond;
  mask->valid = true;
}

}  // namespace

ItemPlan PlanItem(const ItemState& state) {
  const LayerPolicy& layers = state.policy->Of(state.phase, state.layer);
  const bool masks_carry_over =
      MakeSameMasks(layers, state.policy->Of(Phase::kDecode, state.layer));
  ItemPlan plan{.blocks = CutBlocks(state, layers), .mask = state.mask};
  for (size_t stage = 0; stage < layers.stages.size(); ++stage) {
    const bool prefills = state.phase == Phase::kPrefill;
    ShareStage(stage, prefills ? state.policy->QueryBlockOf(layers.stages[stage]) : 1, plan.blocks);
  }
  for (BlockPlan& block : plan.blocks) {
    if (block.middle == Middle::kStages) {
      block.stages_to_cache = masks_carry_over ? StagesToCache(state, layers, block) : 0;
      PlanStages(state, layers, &block, &plan.mask);
    } else {
      block.regions = RegionsOf(state, layers, block.first_position);
      plan.mask.valid = false;
    }
    plan.mask.attended = true;
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
