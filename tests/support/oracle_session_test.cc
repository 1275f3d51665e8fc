#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/support/oracle.h"

// What the oracle remembers between calls: the cached mask, its clock and what invalidates it.

namespace longshore::oracle {
namespace {

using Numbers = std::vector<double>;
using Tokens = std::vector<int64_t>;

/// One head of one dimension; chunks of 2 every 4 steps, then of 1 every 2 steps.
Policy TwoClocks() {
  return {.middle = Middle::kStages,
          .window_tokens = 2,
          .stages = {{.chunk_tokens = 2, .keep_tokens = 4, .refresh_steps = 4},
                     {.chunk_tokens = 1, .keep_tokens = 2, .refresh_steps = 2}}};
}

/// Prefills `rows` tokens whose key is their position and whose query is `query`.
void PrefillRows(Layer& layer, int64_t rows, double query = 1.0) {
  Numbers keys;
  for (int64_t row = 0; row < rows; ++row) {
    keys.push_back(static_cast<double>(layer.length() + row));
  }
  layer.Prefill(layer.length(), Numbers(rows, query), keys, keys);
}

/// As PrefillRows; the blocks it made.
std::vector<BlockTrace> DecodeRows(Layer& layer, int64_t rows, double query = 1.0) {
  Numbers keys;
  for (int64_t row = 0; row < rows; ++row) {
    keys.push_back(static_cast<double>(layer.length() + row));
  }
  layer.Decode(layer.length(), Numbers(rows, query), keys, keys);
  return layer.trace();
}

/// Stages that a one-block decode of `rows` refreshed, as a number: 0 none, 1 the finer, 2 both.
int Refreshed(Layer& layer, int64_t rows = 1) {
  const auto blocks = DecodeRows(layer, rows);
  EXPECT_EQ(blocks.size(), 1U);
  const auto& stages = blocks.at(0).stages;
  EXPECT_TRUE(stages.at(1).refreshed || !stages.at(0).refreshed);
  return int{stages.at(0).refreshed} + int{stages.at(1).refreshed};
}

TEST(OracleSession, RefreshClockFreezesTheMiddle) {
  Layer layer(Model{}, TwoClocks(), 1);
  PrefillRows(layer, 10);  // refreshed at 9: ticks (9 + 1) / 4 = 2 and (9 + 1) / 2 = 5
  struct Case {
    int64_t position;
    int refreshed;
    int64_t middle_end;
  };
  for (const Case& expected :
       {Case{10, 0, 0},  // M of the prefill block, which began at 0
        Case{11, 2, 10}, Case{12, 0, 10}, Case{13, 1, 10}, Case{14, 0, 10}, Case{15, 2, 14}}) {
    ASSERT_EQ(layer.length(), expected.position);
    EXPECT_EQ(Refreshed(layer), expected.refreshed) << expected.position;
    EXPECT_EQ(layer.trace()[0].middle_end, expected.middle_end) << expected.position;
  }
  // Rows 16 to 19 are one block: stale because of row 19, the middle is older than row 16.
  EXPECT_EQ(Refreshed(layer, 4), 2);
  EXPECT_EQ(layer.trace()[0].middle_end, 14);
  EXPECT_EQ(layer.trace()[0].stages[0].refresh_position, 19);
}

TEST(OracleSession, StaleStagesReuseTheCoarserSelection) {
  Layer layer(Model{}, TwoClocks(), 0);
  layer.Append(Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, Numbers(10, 0.0));
  DecodeRows(layer, 1);  // position 10 refreshes all: the largest keys win
  EXPECT_EQ(layer.trace()[0].stages[0].chosen, (Tokens{4, 6}));
  EXPECT_EQ(layer.trace()[0].stages[1].chosen, (Tokens{6, 7}));
  DecodeRows(layer, 1, -1.0);  // 11: nothing is stale
  EXPECT_EQ(layer.trace()[0].stages[1].chosen, (Tokens{6, 7}));
  EXPECT_EQ(layer.trace()[0].stages[1].refresh_position, 10);
  DecodeRows(layer, 1, -1.0);  // 12: both are; now the smallest keys win
  EXPECT_EQ(layer.trace()[0].stages[0].chosen, (Tokens{0, 2}));
  DecodeRows(layer, 1);
  DecodeRows(layer, 1);  // 14: the finer stage alone, among the chunks of 12
  EXPECT_FALSE(layer.trace()[0].stages[0].refreshed);
  EXPECT_EQ(layer.trace()[0].stages[1].candidates, (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(layer.trace()[0].stages[1].chosen, (Tokens{2, 3}));
}

TEST(OracleSession, DecodeBeginsWithThePrefillsSelection) {
  Policy policy = TwoClocks();
  policy.query_block_tokens = 4;
  policy.stages[0].refresh_steps = policy.stages[1].refresh_steps = 1000;
  Layer layer(Model{}, policy, 0);
  PrefillRows(layer, 18);  // the last block is 16 and 17
  const BlockTrace last = layer.trace().back();
  EXPECT_EQ(last.middle_end, 14);
  const auto decoded = DecodeRows(layer, 3);  // rows 18, 19 and, in the next block, 20
  ASSERT_EQ(decoded.size(), 2U);
  EXPECT_EQ(decoded[1].first_position, 20);
  for (const BlockTrace& block : decoded) {
    EXPECT_EQ(block.middle_end, 14);
    EXPECT_EQ(block.stages[1].chosen, last.stages[1].chosen);
    EXPECT_EQ(block.stages[1].refresh_position, 17);
  }
  PrefillRows(layer, 1);  // selects afresh although nothing is stale
  EXPECT_TRUE(layer.trace()[0].stages[0].refreshed);
  EXPECT_EQ(layer.trace()[0].middle_end, 20);
}

TEST(OracleSession, CrossingDenseBelowRefreshesEveryStage) {
  Policy policy = TwoClocks();
  policy.dense_below_tokens = 12;
  policy.stages[0].refresh_steps = policy.stages[1].refresh_steps = 1000;
  Layer layer(Model{}, policy, 0);
  PrefillRows(layer, 11);
  EXPECT_TRUE(layer.trace()[0].dense);
  EXPECT_TRUE(DecodeRows(layer, 1)[0].dense);  // 11
  EXPECT_TRUE(layer.trace()[0].stages.empty());
  EXPECT_EQ(Refreshed(layer), 2);  // 12
  EXPECT_EQ(Refreshed(layer), 0);
  layer.Truncate(11);
  EXPECT_TRUE(DecodeRows(layer, 1)[0].dense);
}

TEST(OracleSession, CrossingTheTrainedLengthRefreshesEveryStage) {
  Policy policy = TwoClocks();
  policy.stages[0].refresh_steps = policy.stages[1].refresh_steps = 1000;
  Model model;
  model.rope.trained_tokens = 12;
  Layer layer(model, policy, 0);
  PrefillRows(layer, 11);
  EXPECT_EQ(Refreshed(layer), 0);  // 11
  EXPECT_FALSE(layer.trace()[0].beyond);
  EXPECT_EQ(Refreshed(layer), 2);  // 12
  EXPECT_TRUE(layer.trace()[0].beyond);
  EXPECT_EQ(layer.trace()[0].middle_end, 10);
  EXPECT_EQ(Refreshed(layer), 0);
}

TEST(OracleSession, TruncateInvalidatesMasksThatReachPastTheCut) {
  Policy policy = TwoClocks();
  policy.stages[0].refresh_steps = policy.stages[1].refresh_steps = 1000;
  Layer layer(Model{}, policy, 0);
  PrefillRows(layer, 10);
  DecodeRows(layer, 5);
  layer.Truncate(10);  // refreshed at 9, which stays
  EXPECT_EQ(layer.length(), 10);
  EXPECT_EQ(Refreshed(layer), 0);
  layer.Truncate(9);
  EXPECT_EQ(Refreshed(layer), 2);
  EXPECT_EQ(Refreshed(layer), 0);
  layer.InvalidateMask();
  EXPECT_EQ(Refreshed(layer), 2);
  layer.Truncate(0);
  DecodeRows(layer, 1);
  EXPECT_EQ(layer.trace()[0].middle_end, 0);
  EXPECT_THROW(layer.Truncate(2), std::invalid_argument);
}

TEST(OracleSession, GivenSelectionsRepeatItsOwn) {
  Layer layer(Model{}, TwoClocks(), 0);
  layer.Append(Numbers{4, -3, 2, 5, 1, -6, 3}, Numbers{1, 2, 3, 4, 5, 6, 7});
  const Attention own = layer.Decode(7, Numbers{0.5}, Numbers{1}, Numbers{8});
  const BlockTrace& block = layer.trace()[0];
  const Selection selection{.middle_end = block.middle_end, .chosen = block.stages[1].chosen};
  EXPECT_EQ(layer.Attend(7, Numbers{0.5}, selection).out, own.out);
  for (int stage = 0; stage < 2; ++stage) {
    const StageTrace& of_stage = block.stages[stage];
    EXPECT_EQ(layer.ScoreStage(stage, 7, Numbers{0.5}, of_stage.candidates), of_stage.scores);
  }
  const Selection other{.middle_end = 6, .chosen = {1, 5}};
  EXPECT_NE(layer.Attend(7, Numbers{0.5}, other).out, own.out);
  EXPECT_THROW(layer.Attend(7, Numbers{0.5}, {6, {6}}), std::invalid_argument);
  EXPECT_THROW(layer.Attend(7, Numbers{0.5}, {8, {}}), std::invalid_argument);
}

TEST(OracleSession, WrongArgumentsChangeNothing) {
  Layer layer(Model{}, TwoClocks(), 0);
  PrefillRows(layer, 3);
  EXPECT_THROW(layer.Decode(2, Numbers{1}, Numbers{1}, Numbers{1}), std::invalid_argument);
  EXPECT_THROW(layer.Decode(3, Numbers{1, 1}, Numbers{1}, Numbers{1}), std::invalid_argument);
  EXPECT_THROW(layer.Prefill(3, Numbers{1}, Numbers{1}, Numbers{}), std::invalid_argument);
  EXPECT_THROW(layer.ScoreStage(0, 3, Numbers{1}, Tokens{0}), std::invalid_argument);
  EXPECT_EQ(layer.length(), 3);
}

}  // namespace
}  // namespace longshore::oracle
