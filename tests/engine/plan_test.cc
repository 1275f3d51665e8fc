#include "engine/plan.h"

#include <gtest/gtest.h>

#include "tests/engine/plan_test.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

using Slots = std::array<int32_t, kMaxStages>;

MaskState MaskAt(int64_t coarse, int64_t fine, int64_t middle_end, const Slots& slots = {}) {
  MaskState mask;
  mask.valid = true;
  mask.middle_end = middle_end;
  mask.refreshed_at = {coarse, fine};
  mask.selected_chunks = {4, 8};
  mask.slots = slots;
  mask.attended = true;
  return mask;
}

// What of a decode block depends on the refresh clock.
struct Clock {
  int32_t first_stale_stage;
  int64_t middle_end;
  MaskState mask;
};

Clock DecodeAt(const AttentionPolicy& policy,
               int64_t position,
               const MaskState& mask,
               int32_t layer = 0) {
  ItemState state = StateAt(policy, Phase::kDecode, position, 1);
  state.mask = mask;
  state.layer = layer;
  const ItemPlan plan = PlanItem(state);
  EXPECT_EQ(plan.blocks.size(), 1U);
  EXPECT_EQ(plan.blocks[0].stages_to_cache, 2);
  EXPECT_EQ(plan.blocks[0].regions.middle_end, plan.mask.middle_end);
  EXPECT_EQ(plan.blocks[0].selected_chunks, plan.mask.selected_chunks);
  return {plan.blocks[0].first_stale_stage, plan.blocks[0].regions.middle_end, plan.mask};
}

TEST(PlanItem, CutsAtAbsoluteMultiplesOfTheBlock) {
  const AttentionPolicy policy = SmallDense();
  ItemState state = StateAt(policy, Phase::kPrefill, 50, 100);
  state.item = 3;
  state.first_row = 7;
  const ItemPlan plan = PlanItem(state);
  ASSERT_EQ(plan.blocks.size(), 3U);
  struct Case {
    int64_t first_position;
    int32_t first_row;
    int32_t rows;
  };
  const std::vector<Case> expected = {{50, 7, 14}, {64, 21, 64}, {128, 85, 22}};
  for (size_t block = 0; block < 3; ++block) {
    EXPECT_EQ(plan.blocks[block].item, 3);
    EXPECT_EQ(plan.blocks[block].first_position, expected[block].first_position);
    EXPECT_EQ(plan.blocks[block].first_row, expected[block].first_row);
    EXPECT_EQ(plan.blocks[block].rows, expected[block].rows);
    EXPECT_EQ(plan.blocks[block].middle, Middle::kDense);
  }
  EXPECT_FALSE(plan.mask.valid);
  EXPECT_EQ(PlanItem(StateAt(policy, Phase::kPrefill, 64, 64)).blocks.size(), 1U);
  EXPECT_EQ(PlanItem(StateAt(policy, Phase::kPrefill, 63, 2)).blocks.size(), 2U);
}

TEST(PlanItem, PrefillSelectsAfreshForEveryBlock) {
  const AttentionPolicy policy = SmallStandard();
  ItemState state = StateAt(policy, Phase::kPrefill, 448, 192);
  state.mask = MaskAt(447, 447, 320);
  const ItemPlan plan = PlanItem(state);
  ASSERT_EQ(plan.blocks.size(), 3U);
  for (size_t block = 0; block < 3; ++block) {
    EXPECT_EQ(plan.blocks[block].first_stale_stage, 0);
    // S + floor((p + 1 - W - S) / 64) 64 with p a multiple of 64.
    EXPECT_EQ(plan.blocks[block].regions.middle_end, plan.blocks[block].first_position - 128);
    EXPECT_EQ(plan.blocks[block].stages_to_cache, block == 2 ? 2 : 0)
        << "the last block leaves its mask";
  }
  EXPECT_EQ(plan.blocks[0].selected_chunks[0], 4);  // of (320 - 64) / 64 = 4
  EXPECT_EQ(plan.blocks[0].selected_chunks[1], 8);  // of 32
  MaskState expected;
  expected.valid = true;
  expected.middle_end = 448;
  expected.refreshed_at = {639, 639};
  expected.selected_chunks = {4, 8};
  expected.slots = {1, 1};
  expected.attended = true;
  EXPECT_TRUE(plan.mask == expected);
}

TEST(PlanItem, StagesKeepNoMoreThanThereIs) {
  const AttentionPolicy policy = SmallStandard();
  struct Case {
    int64_t position;
    int64_t middle_end;
    int32_t coarse;
    int32_t fine;
  };
  for (const Case& test : {Case{0, 64, 0, 0}, Case{254, 64, 0, 0}, Case{255, 128, 1, 8},
                           Case{319, 192, 2, 8}, Case{447, 320, 4, 8}, Case{1000, 832, 4, 8}}) {
    const ItemPlan plan = PlanItem(StateAt(policy, Phase::kDecode, test.position, 1));
    EXPECT_EQ(plan.blocks[0].regions.sink_end, 64);
    EXPECT_EQ(plan.blocks[0].regions.middle_end, test.middle_end) << test.position;
    EXPECT_EQ(plan.blocks[0].selected_chunks[0], test.coarse) << test.position;
    EXPECT_EQ(plan.blocks[0].selected_chunks[1], test.fine) << test.position;
    EXPECT_TRUE(plan.mask.valid);
  }
}

TEST(PlanItem, StagesGoStaleWhenTheirClockMovesOn) {
  const AttentionPolicy policy = SmallStandard();
  // Layer 0: ticks at multiples of 16 and 4.
  Clock clock = DecodeAt(policy, 513, MaskAt(512, 512, 384));
  EXPECT_EQ(clock.first_stale_stage, 2);
  EXPECT_TRUE(clock.mask == MaskAt(512, 512, 384));
  EXPECT_EQ(DecodeAt(policy, 515, MaskAt(512, 512, 384)).first_stale_stage, 2);
  clock = DecodeAt(policy, 516, MaskAt(512, 512, 384));
  EXPECT_EQ(clock.first_stale_stage, 1);
  EXPECT_EQ(clock.middle_end, 384) << "frozen until the coarsest stage refreshes";
  EXPECT_TRUE(clock.mask == MaskAt(512, 516, 384, {0, 1}));
  EXPECT_EQ(DecodeAt(policy, 527, MaskAt(512, 524, 384)).first_stale_stage, 2);
  clock = DecodeAt(policy, 528, MaskAt(512, 524, 384));
  EXPECT_EQ(clock.first_stale_stage, 0);
  EXPECT_TRUE(clock.mask == MaskAt(528, 528, 384, {1, 1}));
  // Steps that were skipped count: 600 is many ticks after 512.
  clock = DecodeAt(policy, 600, MaskAt(512, 512, 384));
  EXPECT_EQ(clock.first_stale_stage, 0);
  EXPECT_EQ(clock.middle_end, 64 + (601 - 192) / 64 * 64);
}

TEST(PlanItem, LayersTakeTurns) {
  const AttentionPolicy policy = SmallStandard();
  for (int32_t layer = 0; layer < 40; ++layer) {
    for (int64_t position = 513; position < 530; ++position) {
      const bool coarse = (position + layer) / 16 != (position - 1 + layer) / 16;
      const bool fine = (position + layer) / 4 != (position - 1 + layer) / 4;
      EXPECT_EQ(DecodeAt(policy, position, MaskAt(position - 1, position - 1, 384), layer)
                    .first_stale_stage,
                coarse ? 0 : (fine ? 1 : 2))
          << "layer " << layer << " at " << position;
    }
  }
}

TEST(PlanItem, ARefreshRedoesAllFinerStages) {
  const AttentionPolicy policy = SmallStandard();
  // The finer stage was refreshed later; the coarser one takes it along.
  const Clock clock = DecodeAt(policy, 530, MaskAt(512, 529, 384));
  EXPECT_EQ(clock.first_stale_stage, 0);
  EXPECT_EQ(clock.mask.refreshed_at[1], 530);
}

TEST(PlanItem, MultiRowDecodeRefreshesByItsLastRow) {
  const AttentionPolicy policy = SmallStandard();
  ItemState state = StateAt(policy, Phase::kDecode, 525, 5);  // 525 .. 529 passes the tick at 528
  state.mask = MaskAt(512, 524, 320);
  ItemPlan plan = PlanItem(state);
  EXPECT_EQ(plan.blocks[0].first_stale_stage, 0);
  EXPECT_EQ(plan.mask.refreshed_at[0], 529);
  EXPECT_EQ(plan.blocks[0].regions.middle_end, 64 + (526 - 192) / 64 * 64) << "by the first row";
  // Across a block: the second block builds on what the first leaves.
  state = StateAt(policy, Phase::kDecode, 570, 20);
  state.mask = MaskAt(560, 568, 384);
  plan = PlanItem(state);
  ASSERT_EQ(plan.blocks.size(), 2U);
  EXPECT_EQ(plan.blocks[0].first_stale_stage, 1);  // last row 575
  EXPECT_EQ(plan.blocks[0].regions.middle_end, 384);
  EXPECT_EQ(plan.blocks[1].first_stale_stage, 0);  // last row 589
  EXPECT_EQ(plan.blocks[1].regions.middle_end, 448);
  EXPECT_EQ(plan.blocks[0].stages_to_cache, 2);
  EXPECT_EQ(plan.blocks[1].stages_to_cache, 2);
}

TEST(PlanItem, CrossingTheTrainedLengthRefreshesEveryStage) {
  const AttentionPolicy policy = SmallStandard();
  ItemState state = StateAt(policy, Phase::kDecode, 513, 1);
  state.mask = MaskAt(512, 512, 384);
  state.trained_tokens = 514;
  EXPECT_FALSE(PlanItem(state).blocks[0].beyond);
  EXPECT_EQ(PlanItem(state).blocks[0].first_stale_stage, 2);
  state.trained_tokens = 513;  // position 513 is the first beyond
  EXPECT_TRUE(PlanItem(state).blocks[0].beyond);
  EXPECT_EQ(PlanItem(state).blocks[0].first_stale_stage, 0);
  EXPECT_TRUE(PlanItem(state).mask.beyond);
  state.mask.beyond = true;
  EXPECT_EQ(PlanItem(state).blocks[0].first_stale_stage, 2);
  state.trained_tokens = 514;  // and back, after a truncate
  EXPECT_EQ(PlanItem(state).blocks[0].first_stale_stage, 0);
  EXPECT_FALSE(PlanItem(state).mask.beyond);
  // A block is beyond when its last row is.
  state = StateAt(policy, Phase::kPrefill, 512, 64);
  state.trained_tokens = 575;
  EXPECT_TRUE(PlanItem(state).blocks[0].beyond);
  state.trained_tokens = 576;
  EXPECT_FALSE(PlanItem(state).blocks[0].beyond);
}

TEST(PlanItem, ShortContextsAreDenseAndLeaveNoMask) {
  AttentionPolicy policy = SmallStandard();
  policy.dense_below_tokens = 514;
  ItemState state = StateAt(policy, Phase::kDecode, 513, 1);
  state.mask = MaskAt(512, 512, 384);
  ItemPlan plan = PlanItem(state);
  EXPECT_EQ(plan.blocks[0].middle, Middle::kDense);
  EXPECT_EQ(plan.blocks[0].stages_to_cache, 0);
  EXPECT_FALSE(plan.mask.valid);
  state.position = 514;
  state.mask = plan.mask;
  plan = PlanItem(state);
  EXPECT_EQ(plan.blocks[0].middle, Middle::kStages);
  EXPECT_EQ(plan.blocks[0].first_stale_stage, 0);
  // The trained length is the limit where it is shorter.
  state.position = 513;
  state.trained_tokens = 513;
  EXPECT_EQ(PlanItem(state).blocks[0].middle, Middle::kStages);
  // By a block's last row.
  state = StateAt(policy, Phase::kPrefill, 448, 128);
  plan = PlanItem(state);
  EXPECT_EQ(plan.blocks[0].middle, Middle::kDense);   // 448 .. 511
  EXPECT_EQ(plan.blocks[1].middle, Middle::kStages);  // 512 .. 575
  EXPECT_TRUE(plan.mask.valid);
}

TEST(PlanItem, SessionsThatMayPassTheTrainedLengthCanBeExtendedFromTheStart) {
  AttentionPolicy policy = SmallStandard();
  policy.extension = Extension::kFromStart;
  policy.dense_below_tokens = 8192;
  ItemState state = StateAt(policy, Phase::kDecode, 0, 1);
  state.trained_tokens = 4096;
  state.max_tokens = 4097;
  EXPECT_TRUE(PlanItem(state).blocks[0].beyond);
  EXPECT_EQ(PlanItem(state).blocks[0].middle, Middle::kStages);
  EXPECT_TRUE(PlanItem(state).mask.beyond);
  state.position = 4096;  // nothing changes at the trained length
  state.mask = MaskAt(4095, 4095, 3904);
  state.mask.beyond = true;
  EXPECT_TRUE(PlanItem(state).blocks[0].beyond);
  state.max_tokens = 4096;  // a session that fits is as if it were not extended
  state.position = 0;
  EXPECT_FALSE(PlanItem(state).blocks[0].beyond);
  EXPECT_EQ(PlanItem(state).blocks[0].middle, Middle::kDense);
}

TEST(PlanItem, MasksOfOtherStagesDoNotCarryOver) {
  AttentionPolicy policy = SmallStandard();
  policy.prefill = OneStage(8, 64, 4).prefill;
  ItemState state = StateAt(policy, Phase::kPrefill, 512, 64);
  const ItemPlan prefill = PlanItem(state);
  EXPECT_EQ(prefill.blocks[0].stages_to_cache, 0);
  EXPECT_FALSE(prefill.mask.valid);
  policy.prefill = SmallDense().prefill;
  state.mask = MaskAt(500, 500, 320);
  EXPECT_FALSE(PlanItem(state).mask.valid);
}

TEST(PlanItem, StreamingHasRegionsAndNoStages) {
  const AttentionPolicy policy = SmallStreaming();
  const ItemPlan plan = PlanItem(StateAt(policy, Phase::kDecode, 500, 1));
  EXPECT_EQ(plan.blocks[0].middle, Middle::kNone);
  EXPECT_EQ(plan.blocks[0].regions.middle_end, 501 - 128);
  EXPECT_EQ(plan.blocks[0].selected_chunks, (std::array<int32_t, kMaxStages>{}));
  EXPECT_EQ(plan.blocks[0].stages_to_cache, 0);
  EXPECT_FALSE(plan.mask.valid);
}

TEST(PlanItem, EarlyLayersHaveTheirOwnStages) {
  AttentionPolicy policy = SmallStandard();
  policy.decode.first_layers = 2;
  policy.decode.early = OneStage(4, 64, 8).decode.rest;
  ItemState state = StateAt(policy, Phase::kDecode, 600, 1);
  state.layer = 1;
  EXPECT_EQ(PlanItem(state).blocks[0].selected_chunks[0], 16);
  state.layer = 2;
  EXPECT_EQ(PlanItem(state).blocks[0].selected_chunks[0], 4);
}

TEST(GroupBlocks, PrefillIsOneGroupAndDecodeOneABlock) {
  const AttentionPolicy policy = SmallStandard();
  const ItemPlan two = PlanItem(StateAt(policy, Phase::kDecode, 570, 20));
  const ItemPlan one = PlanItem(StateAt(policy, Phase::kDecode, 500, 1));
  const std::vector<const ItemPlan*> plans = {&one, &two};
  const auto decode = GroupBlocks(plans, Phase::kDecode);
  ASSERT_EQ(decode.size(), 2U);
  EXPECT_EQ(decode[0].size(), 2U);
  ASSERT_EQ(decode[1].size(), 1U);
  EXPECT_TRUE(decode[1][0] == two.blocks[1]);
  const auto prefill = GroupBlocks(plans, Phase::kPrefill);
  ASSERT_EQ(prefill.size(), 1U);
  EXPECT_EQ(prefill[0].size(), 3U);
}

// The policy has no say behind a sliding window.
TEST(PlanItem, ASlidingWindowHasNoSinkNoStagesAndNoMask) {
  for (const AttentionPolicy& policy : {SmallStandard(), SmallDense(), SmallStreaming()}) {
    ItemState state = StateAt(policy, Phase::kPrefill, 120, 20);
    state.sliding_window_tokens = 100;
    const ItemPlan plan = PlanItem(state);
    ASSERT_EQ(plan.blocks.size(), 2U);
    for (const BlockPlan& block : plan.blocks) {
      EXPECT_EQ(block.middle, Middle::kNone);
      EXPECT_EQ(block.sliding_window_tokens, 100);
      EXPECT_EQ(block.selected_chunks, (std::array<int32_t, kMaxStages>{}));
    }
    EXPECT_EQ(plan.blocks[0].regions, (Regions{0, 21}));  // a query at 120 sees 21..120
    EXPECT_EQ(plan.blocks[1].regions, (Regions{0, 29}));
    EXPECT_FALSE(plan.mask.valid);
    state.position = 50;
    EXPECT_EQ(PlanItem(state).blocks[0].regions, (Regions{0, 0}));
  }
}

}  // namespace
}  // namespace longshore
