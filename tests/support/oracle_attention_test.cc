#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/oracle.h"

// Rotary ids in attention, by hand: keys (1, 10) turned by quarters a position, a query (1, 0).

namespace longshore::oracle {
namespace {

using Numbers = std::vector<double>;

Model QuarterTurns(int64_t trained_tokens) {
  Model model = {.head_dim = 2, .scale = 0.125, .rope = {.rotary_dim = 2}};
  for (int id = 0; id < 16; ++id) {
    model.rope.cos_table.push_back(id % 2 == 0 ? 1 - id % 4 : 0);
    model.rope.sin_table.push_back(id % 2 == 0 ? 0 : 2 - id % 4);
  }
  model.rope.trained_tokens = trained_tokens;
  return model;
}

/// log sum exp of the logits of keys at these distances.
double LseAt(const std::vector<int64_t>& distances) {
  const Numbers dots = {1, 10, -1, -10};
  double sum = 0.0;
  for (const int64_t distance : distances) sum += std::exp(0.125 * dots.at(distance % 4));
  return std::log(sum);
}

/// A layer of `tokens` tokens.
Layer LayerOf(const Model& model, const Policy& policy, int64_t tokens) {
  Layer layer(model, policy, 0);
  Numbers keys;
  for (int64_t token = 0; token < tokens; ++token) keys.insert(keys.end(), {1, 10});
  layer.Append(keys, keys);
  return layer;
}

/// The log-sum-exp of `rows` rows at `position` in one block.
Numbers Lse(const Layer& layer, int64_t position, int64_t rows, const Selection& selection) {
  Numbers queries;
  for (int64_t row = 0; row < rows; ++row) queries.insert(queries.end(), {1, 0});
  return layer.Attend(position, queries, selection).lse;
}

TEST(OracleAttention, InfLlmPutsSinkAndSelectedAWindowAway) {
  // S = 2, W = 3: rows 9 and 10 see tokens 0, 1 and 3 from three away, 5 to 10 where they are.
  const Policy policy = {.middle = Middle::kStages,
                         .sink_tokens = 2,
                         .window_tokens = 3,
                         .rope_beyond = RopeStyle::kInfLlm,
                         .stages = {Stage{}}};
  const Layer layer = LayerOf(QuarterTurns(8), policy, 11);
  const Numbers lse = Lse(layer, 9, 2, {.middle_end = 5, .chosen = {3}});
  EXPECT_NEAR(lse[0], LseAt({3, 3, 3, 4, 3, 2, 1, 0}), 1e-14);
  EXPECT_NEAR(lse[1], LseAt({3, 3, 3, 5, 4, 3, 2, 1, 0}), 1e-14);
  // Within the trained length everything is where it is.
  const Layer within = LayerOf(QuarterTurns(16), policy, 11);
  EXPECT_NEAR(Lse(within, 9, 2, {.middle_end = 5, .chosen = {3}})[0],
              LseAt({9, 8, 6, 4, 3, 2, 1, 0}), 1e-14);
}

TEST(OracleAttention, InfLlmStopsAtTheFirstPosition) {
  const Policy policy = {.middle = Middle::kNone,
                         .sink_tokens = 2,
                         .window_tokens = 6,
                         .rope_within = RopeStyle::kInfLlm};
  const Layer layer = LayerOf(QuarterTurns(0), policy, 4);
  EXPECT_NEAR(Lse(layer, 3, 1, {.middle_end = 2, .chosen = {}})[0], LseAt({3, 3, 1, 0}), 1e-14);
}

TEST(OracleAttention, SelfExtendGroupsTheFar) {
  // n = 2, g = 3: distances 0 to 8 become 0, 1, 2, 2, 2, 3, 3, 3, 4.
  const Policy policy = {.middle = Middle::kNone,
                         .sink_tokens = 2,
                         .window_tokens = 3,
                         .rope_within = RopeStyle::kSelfExtend,
                         .self_extend = {.group = 3, .neighbor_tokens = 2}};
  const Layer layer = LayerOf(QuarterTurns(0), policy, 9);
  const Numbers lse = Lse(layer, 7, 2, {.middle_end = 5, .chosen = {}});
  EXPECT_NEAR(lse[0], LseAt({3, 3, 2, 1, 0}), 1e-14);     // 7, 6, 2, 1, 0
  EXPECT_NEAR(lse[1], LseAt({4, 3, 2, 2, 1, 0}), 1e-14);  // 8, 7, 3, 2, 1, 0
}

TEST(OracleAttention, DynamicExtendFollowsTheBlocksFirstPosition) {
  // L = 4, w = 1. In the block of 8 and 9: ids 4, 4, 5, 6, 6, 7, 8 of 0, 1, 3, 5, 6, 7, 8, but at
  // least 5 for row 8 and 6 for row 9. In a block of 9 alone: 5, 5, 6, 6, 7, 7, 8, at least 6.
  const Policy policy = {.middle = Middle::kStages,
                         .sink_tokens = 2,
                         .rope_beyond = RopeStyle::kDynamicExtend,
                         .stages = {Stage{}}};
  const Layer layer = LayerOf(QuarterTurns(4), policy, 10);
  const Selection selection = {.middle_end = 5, .chosen = {3}};
  const Numbers both = Lse(layer, 8, 2, selection);
  EXPECT_NEAR(both[0], LseAt({3, 3, 3, 2, 2, 1, 0}), 1e-14);
  EXPECT_NEAR(both[1], LseAt({3, 3, 3, 3, 3, 2, 1, 0}), 1e-14);
  const Numbers alone = Lse(layer, 9, 1, selection);
  EXPECT_NEAR(alone[0], LseAt({3, 3, 3, 3, 2, 2, 1, 0}), 1e-14);
}

}  // namespace
}  // namespace longshore::oracle
