// Where a block has each stage's selection from, and why a stage is run.

#include <array>

#include <gtest/gtest.h>

#include "engine/plan.h"
#include "tests/engine/plan_test.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

using Uses = std::array<StageUse, 2>;

// Of the only block of a decode step at `position`, whose mask `*mask` becomes what it leaves.
BlockPlan Decode(const AttentionPolicy& policy, int64_t position, MaskState* mask) {
  ItemState state = StateAt(policy, Phase::kDecode, position, 1);
  state.mask = *mask;
  const ItemPlan plan = PlanItem(state);
  EXPECT_EQ(plan.blocks.size(), 1U);
  *mask = plan.mask;
  return plan.blocks[0];
}

Uses UsesOf(const BlockPlan& block) { return {block.stage_use[0], block.stage_use[1]}; }

// Ticks of layer 0: every 16 positions and every 4.
TEST(PlanUse, TheClockSaysWhichStageAndFinerOnesFollow) {
  const AttentionPolicy policy = SmallStandard();
  MaskState mask;
  EXPECT_EQ(UsesOf(Decode(policy, 512, &mask)), (Uses{StageUse::kFirst, StageUse::kFirst}));
  EXPECT_EQ(UsesOf(Decode(policy, 513, &mask)), (Uses{StageUse::kCached, StageUse::kCached}));
  EXPECT_EQ(UsesOf(Decode(policy, 516, &mask)), (Uses{StageUse::kCached, StageUse::kClock}));
  EXPECT_EQ(UsesOf(Decode(policy, 528, &mask)), (Uses{StageUse::kClock, StageUse::kPropagated}));
}

TEST(PlanUse, AgesAreOfEachStageThatIsCached) {
  const AttentionPolicy policy = SmallStandard();
  MaskState mask;
  using Ages = std::array<int64_t, kMaxStages>;
  EXPECT_EQ(Decode(policy, 512, &mask).mask_age, (Ages{0, 0}));
  EXPECT_EQ(Decode(policy, 515, &mask).mask_age, (Ages{3, 3}));
  EXPECT_EQ(Decode(policy, 517, &mask).mask_age, (Ages{5, 0})) << "the finer stage was run";
  EXPECT_EQ(Decode(policy, 519, &mask).mask_age, (Ages{7, 2}));
  EXPECT_EQ(Decode(policy, 528, &mask).mask_age, (Ages{0, 0})) << "both were";
}

// By the last row, as the clock: rows 513..515 with a mask of 512.
TEST(PlanUse, TheAgeOfSeveralRowsIsThatOfTheLast) {
  const AttentionPolicy policy = SmallStandard();
  MaskState mask;
  Decode(policy, 512, &mask);
  ItemState state = StateAt(policy, Phase::kDecode, 513, 3);
  state.mask = mask;
  EXPECT_EQ(PlanItem(state).blocks[0].mask_age[0], 3);
}

TEST(PlanUse, PrefillAlwaysSelectsAfresh) {
  const AttentionPolicy policy = SmallStandard();
  ItemState state = StateAt(policy, Phase::kPrefill, 512, 192);
  const ItemPlan plan = PlanItem(state);
  for (const BlockPlan& block : plan.blocks) {
    EXPECT_EQ(UsesOf(block), (Uses{StageUse::kPrefill, StageUse::kPrefill}));
    EXPECT_EQ(block.first_stale_stage, 0);
  }
  // What it leaves serves decode: 703 and 704 lie in other periods of 16, 703 + 1 is no first.
  MaskState mask = plan.mask;
  EXPECT_EQ(UsesOf(Decode(policy, 704, &mask)), (Uses{StageUse::kClock, StageUse::kPropagated}));
}

TEST(PlanUse, AMaskThatDoesNotServeIsInvalidated) {
  AttentionPolicy policy = SmallStandard();
  const Uses invalidated = {StageUse::kInvalidated, StageUse::kInvalidated};
  MaskState truncated;
  Decode(policy, 512, &truncated);
  truncated.valid = false;
  EXPECT_EQ(UsesOf(Decode(policy, 513, &truncated)), invalidated);

  ItemState beyond = StateAt(policy, Phase::kDecode, 513, 1);
  Decode(policy, 512, &beyond.mask);
  beyond.trained_tokens = 513;
  EXPECT_EQ(UsesOf(PlanItem(beyond).blocks[0]), invalidated) << "of the trained length";

  policy.dense_below_tokens = 514;
  MaskState dense;
  Decode(policy, 513, &dense);
  EXPECT_EQ(UsesOf(Decode(policy, 514, &dense)), invalidated) << "after a dense block";
}

TEST(PlanUse, BlocksOfOneItemBuildOnEachOther) {
  const AttentionPolicy policy = SmallStandard();
  const ItemPlan plan = PlanItem(StateAt(policy, Phase::kDecode, 570, 20));  // 570..575, 576..589
  ASSERT_EQ(plan.blocks.size(), 2U);
  EXPECT_EQ(UsesOf(plan.blocks[0]), (Uses{StageUse::kFirst, StageUse::kFirst}));
  EXPECT_EQ(UsesOf(plan.blocks[1]), (Uses{StageUse::kClock, StageUse::kPropagated}));
}

}  // namespace
}  // namespace longshore
