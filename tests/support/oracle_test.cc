#include "tests/support/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/support/oracle_quarter_turns.h"

namespace longshore::oracle {
namespace {

using Numbers = std::vector<double>;
using Tokens = std::vector<int64_t>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Queries, keys and values of consecutive tokens; keys and values fit the model's storage.
struct Rows {
  Numbers queries, keys, values;
};

Numbers Gaussian(std::mt19937& random, int64_t elements, Storage storage) {
  Numbers numbers(elements);
  for (double& number : numbers) number = RoundTo(storage, std::normal_distribution<>()(random));
  return numbers;
}

Rows RandomRows(const Model& model, int64_t tokens, uint32_t seed) {
  std::mt19937 random(seed);
  const int64_t token_elements = tokens * model.head_dim;
  return {Gaussian(random, token_elements * model.heads, Storage::kF32),
          Gaussian(random, token_elements * model.kv_heads, model.kv_dtype),
          Gaussian(random, token_elements * model.kv_heads, model.kv_dtype)};
}

Rows Slice(const Model& model, const Rows& rows, int64_t begin, int64_t end) {
  const auto cut = [&](const Numbers& all, int heads) {
    const int64_t width = int64_t{heads} * model.head_dim;
    return Numbers(all.begin() + begin * width, all.begin() + end * width);
  };
  return {cut(rows.queries, model.heads), cut(rows.keys, model.kv_heads),
          cut(rows.values, model.kv_heads)};
}

Attention Prefill(Layer& layer, const Model& model, const Rows& all, int64_t end) {
  const Rows rows = Slice(model, all, layer.length(), end);
  return layer.Prefill(layer.length(), rows.queries, rows.keys, rows.values);
}

Attention Decode(Layer& layer, const Model& model, const Rows& all, int64_t end) {
  const Rows rows = Slice(model, all, layer.length(), end);
  return layer.Decode(layer.length(), rows.queries, rows.keys, rows.values);
}

void Extend(Attention& all, const Attention& more) {
  all.out.insert(all.out.end(), more.out.begin(), more.out.end());
  all.lse.insert(all.lse.end(), more.lse.begin(), more.lse.end());
}

double LargestDifference(const Numbers& left, const Numbers& right) {
  if (left.size() != right.size()) return kInfinity;
  double largest = 0.0;
  for (size_t index = 0; index < left.size(); ++index) {
    largest = std::max(largest, std::abs(left[index] - right[index]));
  }
  return largest;
}

Model GroupedModel(Storage storage) {
  return {.heads = 4,
          .kv_heads = 2,
          .head_dim = 6,
          .scale = 0.7,
          .rope = {.rotary_dim = 4, .inv_freq = {1.0, 0.03}, .attention_scaling = 1.1},
          .kv_dtype = storage};
}

/// Two stages on a small scale: bounds of 8 tokens, then exact chunks of 2.
Policy SmallPolicy() {
  return {
      .middle = Middle::kStages,
      .sink_tokens = 8,
      .window_tokens = 11,
      .query_block_tokens = 16,
      .stages = {
          {.selector = Selector::kBounds, .chunk_tokens = 8, .keep_tokens = 24, .refresh_steps = 8},
          {.selector = Selector::kExact,
           .chunk_tokens = 2,
           .keep_tokens = 10,
           .refresh_steps = 2}}};
}

TEST(Oracle, AttendsTwoTokensAsByHand) {
  Model model = {.scale = std::log(3.0)};
  const Attention plain = DenseAttention(model, 0, Numbers{1, 1}, Numbers{0, 1}, Numbers{1, 5});
  EXPECT_NEAR(plain.out[0], 1.0, 1e-15);
  EXPECT_NEAR(plain.lse[0], 0.0, 1e-15);
  EXPECT_NEAR(plain.out[1], 4.0, 1e-14);  // (1 * 1 + 3 * 5) / 4
  EXPECT_NEAR(plain.lse[1], std::log(4.0), 1e-15);

  model.sink_logits = {std::log(4.0)};
  const Attention sunk = DenseAttention(model, 1, Numbers{1}, Numbers{0, 1}, Numbers{1, 5});
  EXPECT_NEAR(sunk.out[0], 2.0, 1e-14);  // 16 / (4 + 4)
  EXPECT_NEAR(sunk.lse[0], std::log(8.0), 1e-14);
}

TEST(Oracle, QueryHeadsReadTheirKvHeadAndSink) {
  Model model = {.heads = 4, .kv_heads = 2};
  const Attention attention =
      DenseAttention(model, 0, Numbers{1, 2, 3, 4}, Numbers{5, 7}, Numbers{10, 20});
  EXPECT_EQ(attention.out, (Numbers{10, 10, 20, 20}));
  EXPECT_EQ(attention.lse, (Numbers{5, 10, 21, 28}));
  model.sink_logits = {5, -kInfinity, 21, 28 + std::log(3)};
  const Attention sunk =
      DenseAttention(model, 0, Numbers{1, 2, 3, 4}, Numbers{5, 7}, Numbers{10, 20});
  EXPECT_LT(LargestDifference(sunk.out, Numbers{5, 10, 10, 5}), 1e-12);
}

TEST(Oracle, PrunesFiveTokensAsByHand) {
  // Sink 0, window 4, one of the tokens 1 to 3; logits are the keys.
  const Policy policy = {.middle = Middle::kStages, .sink_tokens = 1, .stages = {Stage{}}};
  const Model model;
  Layer layer(model, policy, 0);
  layer.Append(Numbers{0, 1, 3, 2}, Numbers{10, 20, 30, 40});
  const Attention attention = layer.Decode(4, Numbers{1}, Numbers{0}, Numbers{50});
  const StageTrace& stage = layer.trace().at(0).stages.at(0);
  EXPECT_EQ(stage.candidates, (Tokens{1, 2, 3}));
  EXPECT_EQ(stage.chosen, Tokens{2});
  const double lse_of_middle = std::log(std::exp(1) + std::exp(3) + std::exp(2));
  EXPECT_NEAR(stage.scores[0], 1 - lse_of_middle, 1e-14);
  EXPECT_NEAR(stage.scores[1], 3 - lse_of_middle, 1e-14);
  EXPECT_NEAR(stage.scores[2], 2 - lse_of_middle, 1e-14);
  EXPECT_NEAR(attention.out[0], (10 + 30 * std::exp(3) + 50) / (2 + std::exp(3)), 1e-13);
  EXPECT_NEAR(attention.lse[0], std::log(2 + std::exp(3)), 1e-14);
}

TEST(Oracle, BoundsCanRankAnEmptyPromiseFirst) {
  // (2,-2), (-2,2): both dots 0, bound 4. (1,1), (0,0): largest dot 2, bound 2. Of the first pair
  // token 0 is kept: equal scores keep the lower.
  Policy policy = {
      .middle = Middle::kStages,
      .ranking = Ranking::kScoreMax,
      .stages = {{.selector = Selector::kBounds, .chunk_tokens = 2, .keep_tokens = 2}, Stage{}}};
  const Model model = {.head_dim = 2};
  const Numbers keys = {2, -2, -2, 2, 1, 1, 0, 0};
  Layer layer(model, policy, 0);
  layer.Append(keys, keys);
  layer.Decode(4, Numbers{1, 1}, Numbers{0, 0}, Numbers{0, 0});
  EXPECT_EQ(layer.trace()[0].stages[0].scores, (Numbers{4, 2}));
  EXPECT_EQ(layer.trace()[0].stages[0].chosen, Tokens{0});
  EXPECT_EQ(layer.trace()[0].stages[1].candidates, (Tokens{0, 1}));
  EXPECT_EQ(layer.trace()[0].stages[1].chosen, Tokens{0});

  policy.stages[0].selector = Selector::kExact;
  Layer exact(model, policy, 0);
  exact.Append(keys, keys);
  exact.Decode(4, Numbers{1, 1}, Numbers{0, 0}, Numbers{0, 0});
  EXPECT_EQ(exact.trace()[0].stages[0].scores, (Numbers{0, 2}));
  EXPECT_EQ(exact.trace()[0].stages[0].chosen, Tokens{2});
}

TEST(Oracle, StreamingNumbersTokensByRank) {
  // Sink 0 and window 4. By rank the query stands one quarter turn from token 0, by position four.
  Model model = {.head_dim = 2, .rope = QuarterTurns()};
  model.rope.trained_tokens = 5;
  const Policy policy = {.middle = Middle::kNone, .sink_tokens = 1};
  const Numbers query = {1, 0};
  const Numbers keys = {1, 0, 9, 9, 9, 9, 9, 9, 1, 0};
  const Numbers values(10, 1.0);
  Layer layer(model, policy, 0);
  layer.Append(keys, values);
  EXPECT_NEAR(layer.Attend(4, query, {.middle_end = 4, .chosen = {}}).lse[0],
              std::log(2 * std::exp(1)), 1e-15);
  model.rope.trained_tokens = 4;
  Layer beyond(model, policy, 0);
  beyond.Append(keys, values);
  EXPECT_NEAR(beyond.Attend(4, query, {.middle_end = 4, .chosen = {}}).lse[0],
              std::log(1 + std::exp(1)), 1e-15);
}

TEST(Oracle, PruningStylesAsByHand) {
  // Relative: the query (1, 0) turns by W = 1 quarter to (0, 1), keys stay. True: it turns by 3 to
  // (0, -1), and key i by i.
  Model model = {.head_dim = 2, .rope = QuarterTurns()};
  const Policy policy = {
      .middle = Middle::kStages, .ranking = Ranking::kScoreMax, .stages = {Stage{}}};
  const Numbers keys = {1, 0, 0, 1, 0, -1, 5, 5};
  const auto scores = [&] {
    Layer layer(model, policy, 0);
    layer.Append(keys, keys);
    return layer.ScoreStage(0, 3, Numbers{1, 0}, Tokens{0, 1, 2});
  };
  EXPECT_EQ(scores(), (Numbers{0, 0, -1}));
  model.rope.trained_tokens = 3;
  EXPECT_EQ(scores(), (Numbers{0, 1, -1}));
  // Row 2 shares the fate of row 3: the block's last position decides.
  Layer layer(model, policy, 0);
  layer.Append(keys, keys);
  EXPECT_EQ(layer.ScoreStage(0, 2, Numbers{1, 0, 1, 0}, Tokens{0, 1, 2}), (Numbers{0, 1, -1}));
  EXPECT_EQ(layer.ScoreStage(0, 2, Numbers{1, 0}, Tokens{0, 1}), (Numbers{-1, 1}));
  model.rope.attention_scaling = 2.0;
  EXPECT_EQ(scores(), (Numbers{0, 4, -4}));
  model.scale = 0.25;
  model.soft_cap = 0.5;
  EXPECT_EQ(scores(), (Numbers{0, 0.5 * std::tanh(2), -0.5 * std::tanh(2)}));
}

TEST(Oracle, RoundsRotatedVectorsToTheStorageType) {
  const double odd = 1 + 0x1p-8;  // not a bfloat16
  Model model = {.rope = {.inv_freq = {}}, .kv_dtype = Storage::kBf16};
  EXPECT_EQ(DenseAttention(model, 0, Numbers{odd}, Numbers{2}, Numbers{1}).lse[0], 2.0);
  model = {.head_dim = 2, .rope = {.rotary_dim = 2, .inv_freq = {0.3}}, .kv_dtype = Storage::kBf16};
  const Attention rotated =
      DenseAttention(model, 1, Numbers{0, 1}, Numbers{0, 0, 1, 0}, Numbers{0, 0, 0, 0});
  const double cosine = RoundTo(Storage::kBf16, std::cos(0.3));
  const double sine = RoundTo(Storage::kBf16, std::sin(0.3));
  EXPECT_NE(cosine, std::cos(0.3));
  EXPECT_NEAR(rotated.lse[0], std::log(1 + std::exp(sine * cosine - cosine * sine)), 1e-15);
  Layer layer(model, {}, 0);
  EXPECT_THROW(layer.Append(Numbers{odd, 0}, Numbers{0, 0}), std::invalid_argument);
}

TEST(Oracle, ScoresEveryStrideThRowBackFromTheLast) {
  Policy policy = {.middle = Middle::kStages,
                   .query_stride = 2,
                   .ranking = Ranking::kScoreMax,
                   .stages = {Stage{}}};
  Layer layer(Model{}, policy, 0);
  layer.Append(Numbers{1, 0, 0, 0, 0}, Numbers(5, 0.0));
  const Numbers queries = {3, 9, 5, 8, 4};  // rows 4, 2 and 0 are scored
  EXPECT_EQ(layer.ScoreStage(0, 0, queries, Tokens{0}), Numbers{5});
  EXPECT_EQ(layer.ScoreStage(0, 0, Numbers{3, 9, 5, 8}, Tokens{0}), Numbers{9});
}

TEST(Oracle, KeepingEverythingIsDense) {
  for (const Storage storage : {Storage::kF32, Storage::kBf16, Storage::kF16}) {
    for (const int64_t trained : {0, 30}) {  // past 30 ranks replace positions: the same numbers
      Model model = GroupedModel(storage);
      model.soft_cap = 3.0;
      model.sink_logits = {0.5, -1.0, 2.0, 0.0};
      model.rope.trained_tokens = trained;
      Policy policy = SmallPolicy();
      policy.stages[0].keep_tokens = policy.stages[1].keep_tokens = 1 << 20;
      const Rows all = RandomRows(model, 90, 3);
      Layer layer(model, policy, 5);
      Attention pruned = Prefill(layer, model, all, 70);
      EXPECT_EQ(layer.trace().size(), 5U);
      EXPECT_FALSE(layer.trace().back().stages[1].chosen.empty());
      while (layer.length() < 90) Extend(pruned, Decode(layer, model, all, layer.length() + 4));
      const Attention dense = DenseAttention(model, 0, all.queries, all.keys, all.values);
      EXPECT_LT(LargestDifference(pruned.out, dense.out), 1e-12);
      EXPECT_LT(LargestDifference(pruned.lse, dense.lse), 1e-12);
    }
  }
}

TEST(Oracle, BoundsAreNeverBelowExact) {
  for (const int64_t trained : {0, 1}) {
    Model model = GroupedModel(Storage::kBf16);
    model.rope.trained_tokens = trained;
    const Rows all = RandomRows(model, 96, 4);
    Policy policy = SmallPolicy();
    policy.ranking = Ranking::kScoreMax;
    policy.stages = {policy.stages[0]};
    Layer bounds(model, policy, 0);
    policy.stages[0].selector = Selector::kExact;
    Layer exact(model, policy, 0);
    Prefill(bounds, model, all, 96);
    Prefill(exact, model, all, 96);
    for (size_t block = 2; block < bounds.trace().size(); ++block) {
      const StageTrace& above = bounds.trace()[block].stages[0];
      const StageTrace& below = exact.trace()[block].stages[0];
      ASSERT_EQ(above.candidates, below.candidates);
      ASSERT_FALSE(above.candidates.empty());
      for (size_t chunk = 0; chunk < above.scores.size(); ++chunk) {
        EXPECT_GE(above.scores[chunk], below.scores[chunk] - 1e-12);
      }
    }
  }
}

TEST(Oracle, DecodeThatAlwaysRefreshesIsPrefillOfOneRowBlocks) {
  Model model = GroupedModel(Storage::kF16);
  model.rope.trained_tokens = 60;
  const Rows all = RandomRows(model, 80, 5);
  Policy policy = SmallPolicy();
  policy.stages[0].refresh_steps = policy.stages[1].refresh_steps = 1;
  policy.query_block_tokens = 1;
  Layer decoded(model, policy, 0);
  Layer prefilled(model, policy, 0);
  const Attention expected = Prefill(prefilled, model, all, 80);
  const Attention attention = Decode(decoded, model, all, 80);
  EXPECT_EQ(attention.out, expected.out);
  EXPECT_EQ(attention.lse, expected.lse);
}

TEST(Oracle, PromptsCutAtBlocksGiveTheSameBits) {
  const Model model = GroupedModel(Storage::kBf16);
  const Rows all = RandomRows(model, 80, 6);
  Layer whole(model, SmallPolicy(), 0);
  Layer aligned(model, SmallPolicy(), 0);
  Layer split(model, SmallPolicy(), 0);
  const Attention expected = Prefill(whole, model, all, 80);
  Attention attention = Prefill(aligned, model, all, 48);
  Extend(attention, Prefill(aligned, model, all, 80));
  EXPECT_EQ(attention.out, expected.out);
  Prefill(split, model, all, 40);
  Prefill(split, model, all, 80);
  ASSERT_EQ(split.trace().size(), 3U);  // 40 to 47, 48 to 63, 64 to 79
  EXPECT_EQ(split.trace()[0].last_position, 47);
  EXPECT_EQ(split.trace()[0].middle_end, 24);  // 8 + floor((41 - 11 - 8) / 8) * 8
  EXPECT_EQ(split.trace()[2].middle_end, 48);
}

}  // namespace
}  // namespace longshore::oracle
