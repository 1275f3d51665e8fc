// In which of its two slots the mask cache keeps what each stage selects: a call fills the one
// beside what it found.

#include <array>

#include <gtest/gtest.h>

#include "engine/plan.h"
#include "tests/engine/plan_test.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

using Slots = std::array<int32_t, kMaxStages>;

// Rows of a layer whose ticks are every 16 positions and every 4; `*mask` becomes what they leave.
ItemPlan Plan(const AttentionPolicy& policy,
              Phase phase,
              int64_t position,
              int64_t rows,
              MaskState* mask) {
  ItemState state = StateAt(policy, phase, position, rows);
  state.mask = *mask;
  ItemPlan plan = PlanItem(state);
  EXPECT_EQ(plan.blocks.back().mask_slots, plan.mask.slots);
  *mask = plan.mask;
  return plan;
}

TEST(PlanSlots, OnlyAStageThatIsRunTakesTheOther) {
  const AttentionPolicy policy = SmallStandard();
  MaskState mask;
  Plan(policy, Phase::kDecode, 512, 1, &mask);
  EXPECT_EQ(mask.slots, (Slots{1, 1}));
  Plan(policy, Phase::kDecode, 513, 1, &mask);
  EXPECT_EQ(mask.slots, (Slots{1, 1})) << "nothing was stale";
  Plan(policy, Phase::kDecode, 516, 1, &mask);
  EXPECT_EQ(mask.slots, (Slots{1, 0})) << "the finer stage was";
  Plan(policy, Phase::kDecode, 520, 1, &mask);
  EXPECT_EQ(mask.slots, (Slots{1, 1}));
  Plan(policy, Phase::kDecode, 528, 1, &mask);
  EXPECT_EQ(mask.slots, (Slots{0, 0}));
}

TEST(PlanSlots, AReplayTakesTheSame) {
  const AttentionPolicy policy = SmallStandard();
  MaskState mask;
  Plan(policy, Phase::kDecode, 512, 1, &mask);
  const MaskState found = mask;
  const ItemPlan plan = Plan(policy, Phase::kDecode, 516, 1, &mask);
  MaskState again = found;
  EXPECT_TRUE(Plan(policy, Phase::kDecode, 516, 1, &again).blocks[0] == plan.blocks[0]);
  EXPECT_TRUE(again == mask);
}

// The first block works with what the call found, which must outlast the two that refresh.
TEST(PlanSlots, BlocksOfACallShareTheNewOne) {
  const AttentionPolicy policy = SmallStandard();
  MaskState mask;
  Plan(policy, Phase::kDecode, 512, 1, &mask);
  const ItemPlan plan = Plan(policy, Phase::kDecode, 513, 191, &mask);  // ..575, ..639, ..703
  ASSERT_EQ(plan.blocks.size(), 3U);
  for (const BlockPlan& block : plan.blocks) {
    EXPECT_EQ(block.first_stale_stage, 0);
    EXPECT_EQ(block.mask_slots, (Slots{0, 0}));
  }
  mask = MaskState{};
  Plan(policy, Phase::kDecode, 560, 1, &mask);
  const ItemPlan crossing = Plan(policy, Phase::kDecode, 574, 20, &mask);  // 574, 575; 576..593
  EXPECT_EQ(crossing.blocks[0].first_stale_stage, 1);
  EXPECT_EQ(crossing.blocks[0].mask_slots, (Slots{1, 0}));
  EXPECT_EQ(crossing.blocks[1].mask_slots, (Slots{0, 0}));
}

TEST(PlanSlots, APrefillTakesTheOtherForTheBlocksThatLeaveAMask) {
  AttentionPolicy policy = SmallStandard();
  for (PhasePolicy* phase : {&policy.prefill, &policy.decode}) {
    phase->rest.stages[0].query_block = 128;
  }
  MaskState mask;
  // 448..511 alone; 512..639, of which the second half leaves the finer stage's mask.
  const ItemPlan plan = Plan(policy, Phase::kPrefill, 448, 192, &mask);
  ASSERT_EQ(plan.blocks.size(), 3U);
  EXPECT_EQ(plan.blocks[0].stages_to_cache, 0);
  EXPECT_EQ(plan.blocks[1].stages_to_cache, 1);
  EXPECT_EQ(plan.blocks[1].mask_slots, (Slots{1, 0}));
  EXPECT_EQ(plan.blocks[2].stages_to_cache, 2);
  EXPECT_EQ(plan.blocks[2].mask_slots, (Slots{1, 1}));
}

TEST(PlanSlots, APrefillWhoseMasksServeNobodyTakesNone) {
  AttentionPolicy policy = SmallStandard();
  policy.prefill.rest.window_tokens += 64;
  MaskState mask;
  mask.slots = {1, 0};
  Plan(policy, Phase::kPrefill, 448, 192, &mask);
  EXPECT_FALSE(mask.valid);
  EXPECT_EQ(mask.slots, (Slots{1, 0}));
}

}  // namespace
}  // namespace longshore
