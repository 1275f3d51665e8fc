#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/algo/regions.h"
#include "engine/backend_args.h"
#include "engine/model_shape.h"
#include "engine/policy.h"

namespace longshore {

/// More stages than any useful policy has; bounds the size of a mask's record.
inline constexpr int32_t kMaxStages = 4;

/// What a cached mask remembers besides the selected tokens. Pure data: plans are made from it.
struct MaskState {
  bool valid = false;
  bool beyond = false;     ///< made beyond the trained length
  bool attended = false;   ///< some query block of the layer came before, whatever it left
  int64_t middle_end = 0;  ///< M, frozen when the coarsest stage refreshed
  std::array<int64_t, kMaxStages> refreshed_at = {};     ///< position of each stage's last refresh
  std::array<int32_t, kMaxStages> selected_chunks = {};  ///< kept by each stage
  std::array<int32_t, kMaxStages> slots = {};  ///< of the cache's two, where each stage's are

  bool operator==(const MaskState&) const = default;
};

/// Where a block has a stage's selection from: the cached mask, or a run of the stage, and why
/// that.
enum class StageUse : uint8_t {
  kCached,
  kPrefill,      ///< a prefill selects afresh
  kFirst,        ///< nothing in the layer was attended to before
  kInvalidated,  ///< what was before left no mask that serves: truncated, dense, of other rules
  kClock,        ///< the stage's refresh interval has passed, and no coarser stage's
  kPropagated,   ///< a coarser stage's has, so that the candidates are others
};
inline constexpr size_t kNumStageUses = 6;

/// Rows of the packed tensors that share a stage's selection.
struct StageRows {
  int32_t first_row = 0;
  int32_t rows = 0;

  bool operator==(const StageRows&) const = default;
};

/// What a query block will do.
struct BlockPlan {
  int32_t item = 0;
  int32_t first_row = 0;  ///< in the packed tensors
  int32_t rows = 0;
  int64_t first_position = 0;
  Middle middle = Middle::kDense;     ///< as applied: kDense for short contexts too
  bool beyond = false;                ///< the last row is beyond the trained length
  int64_t sliding_window_tokens = 0;  ///< of the layer; then the middle is expired, and kNone
  Regions regions;
  int32_t first_stale_stage = 0;  ///< stages from here on are run; the number of stages if none
  std::array<int32_t, kMaxStages> selected_chunks = {};  ///< kept by each stage, run or cached
  int64_t selected_at = 0;  ///< position for which the last stage was run; with stages
  std::array<StageUse, kMaxStages> stage_use = {};
  std::array<int64_t, kMaxStages> mask_age = {};  ///< positions since a cached stage's last run
  /// Of each stage: the block that begins at its first row runs it, the others use what it kept.
  std::array<StageRows, kMaxStages> stage_rows = {};
  /// Its selection by these stages, counted from the coarsest, is the layer's cached mask
  /// afterwards; that by the others is dropped.
  int32_t stages_to_cache = 0;
  /// Where the cache has, or gets, the selection of each stage that is cached. A call puts what it
  /// selects beside what it found there, so that its replay finds the same.
  std::array<int32_t, kMaxStages> mask_slots = {};

  bool RunsStage(size_t stage) const { return stage_rows[stage].first_row == first_row; }
  bool Caches(size_t stage) const { return static_cast<int32_t>(stage) < stages_to_cache; }
  bool operator==(const BlockPlan&) const = default;
};

/// What the plan of one item depends on.
struct ItemState {
  const AttentionPolicy* policy = nullptr;
  int32_t layer = 0;
  int64_t trained_tokens = 0;
  int64_t sliding_window_tokens = 0;  ///< of the layer; 0: none
  int64_t max_tokens = 0;             ///< of the session
  Phase phase = Phase::kDecode;
  int64_t position = 0;
  int64_t rows = 0;
  int32_t item = 0;
  int32_t first_row = 0;
  MaskState mask;
};

/// The query blocks of one item, in order, and the mask that they leave behind.
struct ItemPlan {
  std::vector<BlockPlan> blocks;
  MaskState mask;
};

/// Cuts an item's rows at absolute multiples of the query block and decides for each block its
/// regions, which stages run and how much they keep (design section 3). In a prefill the blocks
/// within an absolute multiple of a stage's query block share its selection, where the same rotary
/// styles hold for them. Pure: the same state gives the same plan.
///
/// Prefill selects afresh for every block; decode runs the stages whose refresh clock has moved on,
/// and all of them when the mask is invalid or was made on the other side of the trained length. A
/// dense block leaves no mask. In a sliding-window layer the policy has no say: no sink, no stages,
/// and the window is what the model says.
ItemPlan PlanItem(const ItemState& state);

/// The blocks of several items in groups that run one after the other; the blocks of a group are
/// independent. Blocks of a prefill all are; a decode item's build on the mask of the one before.
std::vector<std::vector<BlockPlan>> GroupBlocks(std::span<const ItemPlan* const> plans,
                                                Phase phase);

/// Which key summaries the rows of a layer need. A context that may pass the trained length gets
/// both kinds below it; chunks past it only the one that the style there reads. So nothing is
/// rebuilt when a session grows past it or is truncated back. None in sliding-window layers.
SummaryPlan PlanSummaries(const AttentionPolicy& policy,
                          const ModelShape& model,
                          int32_t layer,
                          int64_t max_tokens);

}  // namespace longshore
