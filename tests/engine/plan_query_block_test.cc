// Query blocks of stages: which blocks of a prefill share a selection, and what decode makes of it.

#include <array>

#include <gtest/gtest.h>

#include "engine/plan.h"
#include "tests/engine/plan_test.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

// 512..703 in rows 0..191 of the call, first stage in blocks of 128: 512..639, 640..703.
TEST(PlanItem, BlocksShareTheSelectionOfAStageWithALargerQueryBlock) {
  AttentionPolicy policy = SmallStandard();
  policy.prefill.rest.stages[0].query_block = 128;
  policy.decode.rest.stages[0].query_block = 128;
  ItemState state = StateAt(policy, Phase::kPrefill, 512, 192);
  state.first_row = 1000;
  const ItemPlan plan = PlanItem(state);
  ASSERT_EQ(plan.blocks.size(), 3U);
  const std::array<StageRows, 3> coarse = {{{1000, 128}, {1000, 128}, {1128, 64}}};
  const std::array<bool, 3> runs_coarse = {true, false, true};
  const std::array<int64_t, 3> middle_end = {512 - 128, 512 - 128, 640 - 128};
  for (size_t block = 0; block < 3; ++block) {
    EXPECT_EQ(plan.blocks[block].stage_rows[0], coarse[block]);
    EXPECT_EQ(plan.blocks[block].RunsStage(0), runs_coarse[block]);
    EXPECT_TRUE(plan.blocks[block].RunsStage(1));
    EXPECT_EQ(plan.blocks[block].stage_rows[1].rows, 64);
    EXPECT_EQ(plan.blocks[block].regions.middle_end, middle_end[block]);
    EXPECT_EQ(plan.blocks[block].stages_to_cache, block == 2 ? 2 : 0);
  }
  // The second block of a pair is the last one: the first one's coarse selection is kept, too.
  state.rows = 128;
  const ItemPlan pair = PlanItem(state);
  EXPECT_EQ(pair.blocks[0].stages_to_cache, 1);
  EXPECT_EQ(pair.blocks[1].stages_to_cache, 2);
  // In decode every block runs what is stale for itself.
  state.phase = Phase::kDecode;
  const ItemPlan decode = PlanItem(state);
  EXPECT_EQ(decode.blocks[0].stage_rows[0].rows, 64);
  EXPECT_TRUE(decode.blocks[1].RunsStage(0));
}

// A decode step has one query block, so which rows of a prefill chose together is no difference.
TEST(PlanItem, MasksCarryOverWhateverTheQueryBlocksOfAPrefill) {
  AttentionPolicy policy = SmallStandard();
  policy.prefill.rest.stages[0].query_block = 256;
  ItemState state = StateAt(policy, Phase::kPrefill, 512, 256);
  const ItemPlan prefill = PlanItem(state);
  EXPECT_EQ(prefill.blocks.back().stages_to_cache, 2);
  EXPECT_TRUE(prefill.mask.valid);
  state.phase = Phase::kDecode;
  state.position = 768;
  state.rows = 1;
  state.mask = prefill.mask;
  EXPECT_EQ(PlanItem(state).blocks[0].first_stale_stage, 0);  // 767 and 768 lie in other periods
  state.mask.refreshed_at = {768, 768};
  EXPECT_EQ(PlanItem(state).blocks[0].first_stale_stage, 2);
}

TEST(PlanItem, BlocksOfOtherStylesOrWithoutStagesShareNothing) {
  AttentionPolicy policy = SmallStandard();
  policy.prefill.rest.stages[0].query_block = 256;
  ItemState state = StateAt(policy, Phase::kPrefill, 512, 256);
  state.trained_tokens = 700;  // 640..703 is the first block beyond
  const ItemPlan plan = PlanItem(state);
  ASSERT_EQ(plan.blocks.size(), 4U);
  EXPECT_EQ(plan.blocks[1].stage_rows[0], (StageRows{0, 128}));
  EXPECT_EQ(plan.blocks[2].stage_rows[0], (StageRows{128, 128}));
  policy.dense_below_tokens = 576;  // 512..575 is dense
  const ItemPlan dense = PlanItem(state);
  EXPECT_EQ(dense.blocks[1].stage_rows[0], (StageRows{64, 64}));
  EXPECT_EQ(dense.blocks[1].regions.middle_end, 576 - 128);
}

}  // namespace
}  // namespace longshore
