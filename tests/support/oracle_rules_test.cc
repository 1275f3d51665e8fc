#include "tests/support/oracle_rules.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <random>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/oracle_math.h"

namespace longshore::oracle {
namespace {

using Tokens = std::vector<int64_t>;

/// Rounds to bfloat16 by the bit pattern, another way than the oracle's.
float Bf16ByBits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) & 0xFFFF0000U;
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

/// The float16 with this pattern, sign bit clear.
double F16FromBits(int bits) {
  const int exponent = bits >> 10;
  const int fraction = bits & 0x3FF;
  return exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
}

Policy Stages(int64_t sink, int64_t window, std::vector<Stage> stages) {
  return {.middle = Middle::kStages,
          .sink_tokens = sink,
          .window_tokens = window,
          .stages = std::move(stages)};
}

TEST(OracleMath, RoundsFloat32AsTheHardwareDoes) {
  std::mt19937_64 random(1);
  for (int sample = 0; sample < 10000; ++sample) {
    const double value = std::ldexp(std::normal_distribution<>()(random), sample % 300 - 160);
    EXPECT_EQ(RoundTo(Storage::kF32, value), static_cast<double>(static_cast<float>(value)));
  }
}

TEST(OracleMath, RoundsBfloat16AsTheBitPatternDoes) {
  std::mt19937 random(2);
  for (int sample = 0; sample < 100000; ++sample) {
    const auto bits = static_cast<uint32_t>(random());
    float value = 0.0F;
    std::memcpy(&value, &bits, sizeof(bits));
    if (!std::isfinite(value)) continue;
    EXPECT_EQ(RoundTo(Storage::kBf16, value), Bf16ByBits(value)) << value;
  }
  EXPECT_EQ(RoundTo(Storage::kBf16, 1.0 + 0x1p-8), 1.0);               // tie, even below
  EXPECT_EQ(RoundTo(Storage::kBf16, 1.0 + 3 * 0x1p-8), 1.0 + 0x1p-6);  // tie, even above
  EXPECT_EQ(RoundTo(Storage::kBf16, 1.0 + 0x1p-8 + 0x1p-40), 1.0 + 0x1p-7);
}

TEST(OracleMath, RoundsToTheNearestOfAllFloat16) {
  for (int bits = 0; bits < 0x7BFF; ++bits) {
    const double low = F16FromBits(bits);
    const double high = F16FromBits(bits + 1);
    const double middle = (low + high) / 2;
    EXPECT_EQ(RoundTo(Storage::kF16, low), low);
    EXPECT_EQ(RoundTo(Storage::kF16, middle), bits % 2 == 0 ? low : high);
    EXPECT_EQ(RoundTo(Storage::kF16, -middle * (1 - 0x1p-30)), -low);
    EXPECT_EQ(RoundTo(Storage::kF16, middle * (1 + 0x1p-30)), high);
  }
  EXPECT_EQ(RoundTo(Storage::kF16, 65519.99), 65504.0);
  EXPECT_EQ(RoundTo(Storage::kF16, -65520.0), -std::numeric_limits<double>::infinity());
}

TEST(OracleMath, RotatesPairsOfBothKinds) {
  Rope rope{.rotary_dim = 4,
            .cos_table = {1, 1, 0, -1},  // id 1: a quarter turn and a half turn
            .sin_table = {0, 0, 1, 0}};
  const std::vector<double> vector = {1, 2, 3, 4, 5};
  EXPECT_EQ(Rotate(rope, {0, 1.0}, vector), vector);
  EXPECT_EQ(Rotate(rope, {1, 1.0}, vector), (std::vector<double>{-3, -2, 1, -4, 5}));
  rope.pairing = Pairing::kInterleaved;
  EXPECT_EQ(Rotate(rope, {1, 1.0}, vector), (std::vector<double>{-2, 1, -3, -4, 5}));
  EXPECT_EQ(Rotate(rope, {1, 2.0}, vector), (std::vector<double>{-4, 2, -6, -8, 5}));
  EXPECT_THROW(Rotate(rope, {2, 1.0}, vector), std::out_of_range);
}

TEST(OracleMath, RotatesByTheAngleOfTheId) {
  const Rope rope{.rotary_dim = 4, .inv_freq = {std::numbers::pi / 6, 0.0}};
  const auto rotated = Rotate(rope, {2, 1.0}, std::vector<double>{1, 7, 0, 8});  // 60 degrees
  EXPECT_NEAR(rotated[0], 0.5, 1e-15);
  EXPECT_NEAR(rotated[2], std::sqrt(3.0) / 2, 1e-15);
  EXPECT_EQ(rotated[1], 7.0);
  EXPECT_EQ(rotated[3], 8.0);
}

TEST(OracleMath, RotatedDotsDependOnTheDifferenceOfIdsOnly) {
  const std::vector<double> query = {0.3, -1.2, 0.7, 2.0, -0.4, 0.9};
  const std::vector<double> key = {1.1, 0.2, -0.6, 0.5, 1.5, -2.2};
  for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
    const Rope rope{.rotary_dim = 4, .pairing = pairing, .inv_freq = {1.0, 0.01}};
    const double expected = Dot(Rotate(rope, {17, 1.0}, query), Rotate(rope, {0, 1.0}, key));
    for (const int64_t shift : {1, 5, 4096}) {
      const auto moved_query = Rotate(rope, {17 + shift, 1.0}, query);
      EXPECT_NEAR(Dot(moved_query, Rotate(rope, {shift, 1.0}, key)), expected, 1e-11);
    }
    const auto other = Rotate(rope, {18, 1.0}, query);
    EXPECT_GT(std::abs(Dot(other, key) - expected), 0.1);
  }
}

TEST(OracleMath, CapsLogitsAfterTheScale) {
  EXPECT_EQ(Logit({.scale = 0.5}, 3.0), 1.5);
  EXPECT_DOUBLE_EQ(Logit({.scale = 0.5, .soft_cap = 2.0}, 3.0), 2.0 * std::tanh(0.75));
}

TEST(OracleRules, RegionsMoveByWholeChunks) {
  const Policy pairs = Stages(4, 3, {{.chunk_tokens = 2, .keep_tokens = 100}});
  const Policy singles = {.middle = Middle::kNone, .sink_tokens = 4, .window_tokens = 3};
  struct Case {
    int64_t first_position, of_pairs, of_singles;
  };
  for (const Case& expected : {Case{0, 4, 4}, Case{1, 4, 4}, Case{4, 4, 4},  // S
                               Case{6, 4, 4},  // S + W - 1: attended whole
                               Case{7, 4, 5},  // S + W: the first middle token
                               Case{8, 6, 6},  // S + W + 1
                               Case{9, 6, 7}, Case{10, 8, 8}}) {
    EXPECT_EQ(MiddleEnd(pairs, expected.first_position), expected.of_pairs);
    EXPECT_EQ(MiddleEnd(singles, expected.first_position), expected.of_singles);
  }
}

TEST(OracleRules, EveryTokenIsInOneRegion) {
  const Policy policy = Stages(4, 3, {{.chunk_tokens = 2, .keep_tokens = 100}});
  for (int64_t position = 0; position < 20; ++position) {
    const int64_t middle_end = MiddleEnd(policy, position);
    const Tokens chunks = StageCandidates(policy, 0, middle_end, {});
    Tokens all;
    for (int64_t token = 0; token <= position; ++token) all.push_back(token);
    EXPECT_EQ(AttendedTokens(policy, position, middle_end, chunks), all);
  }
  EXPECT_EQ(AttendedTokens(policy, 9, 8, Tokens{6}), (Tokens{0, 1, 2, 3, 6, 7, 8, 9}));
}

TEST(OracleRules, BlocksBeginAtAbsoluteMultiples) {
  const Policy policy = {.query_block_tokens = 64};
  EXPECT_EQ(BlockEnd(policy, 0, 200), 64);
  EXPECT_EQ(BlockEnd(policy, 63, 200), 64);
  EXPECT_EQ(BlockEnd(policy, 64, 200), 128);
  EXPECT_EQ(BlockEnd(policy, 100, 110), 110);
}

TEST(OracleRules, BeyondAndDenseFollowTheLastPosition) {
  const Model unlimited;
  const Model trained = {.rope = {.trained_tokens = 100}};
  EXPECT_FALSE(IsBeyond(unlimited, int64_t{1} << 40));
  EXPECT_FALSE(IsBeyond(trained, 99));
  EXPECT_TRUE(IsBeyond(trained, 100));
  EXPECT_TRUE(IsBeyond({.rope = {.trained_tokens = 100, .beyond_from_start = true}}, 0));

  Policy policy = Stages(0, 1, {Stage{}});
  EXPECT_FALSE(IsDense(trained, policy, 0));
  policy.dense_below_tokens = 50;
  EXPECT_TRUE(IsDense(trained, policy, 49));
  EXPECT_FALSE(IsDense(trained, policy, 50));
  policy.dense_below_tokens = 500;
  EXPECT_TRUE(IsDense(trained, policy, 99));
  EXPECT_FALSE(IsDense(trained, policy, 100));
  EXPECT_TRUE(IsDense(unlimited, policy, 499));
  policy = {.middle = Middle::kNone, .dense_below_tokens = 500};
  EXPECT_FALSE(IsDense(trained, policy, 0));
  EXPECT_TRUE(IsDense(trained, {.middle = Middle::kDense}, 1000));
}

TEST(OracleRules, RefreshClockTicksByPositionAndLayer) {
  // Interval 4: layer 0 ticks at 4, 8, 12; layer 1 at 3, 7, 11; layer 4 as layer 0.
  EXPECT_FALSE(IsStale(4, 0, 4, 4));
  EXPECT_FALSE(IsStale(4, 0, 4, 7));
  EXPECT_TRUE(IsStale(4, 0, 4, 8));
  EXPECT_TRUE(IsStale(4, 0, 7, 8));
  EXPECT_TRUE(IsStale(4, 1, 6, 7));
  EXPECT_FALSE(IsStale(4, 1, 7, 10));
  EXPECT_TRUE(IsStale(4, 1, 10, 11));
  EXPECT_FALSE(IsStale(4, 4, 4, 7));
  EXPECT_TRUE(IsStale(1, 0, 7, 8));
  EXPECT_TRUE(IsStale(16, 0, 3, 200));  // rows may skip whole intervals
}

TEST(OracleRules, FinerStagesSplitWhatWasKept) {
  const Policy policy =
      Stages(8, 1, {{.chunk_tokens = 4, .keep_tokens = 8}, {.chunk_tokens = 2, .keep_tokens = 2}});
  EXPECT_EQ(StageCandidates(policy, 0, 8, {}), Tokens{});
  EXPECT_EQ(StageCandidates(policy, 0, 20, {}), (Tokens{8, 12, 16}));
  EXPECT_EQ(StageCandidates(policy, 1, 20, Tokens{8, 16}), (Tokens{8, 10, 16, 18}));
  EXPECT_EQ(KeepCount(policy.stages[0], 1), 1);
  EXPECT_EQ(KeepCount(policy.stages[0], 5), 2);
}

TEST(OracleRules, ProbesLookAtTheMiddlesOfEqualParts) {
  const auto offsets = [](int64_t chunk, int64_t probes) {
    Tokens tokens;
    for (int64_t probe = 0; probe < probes; ++probe) {
      tokens.push_back(ProbeOffset({.chunk_tokens = chunk, .probes = probes}, probe));
    }
    return tokens;
  };
  EXPECT_EQ(offsets(8, 1), Tokens{4});
  EXPECT_EQ(offsets(8, 2), (Tokens{2, 6}));
  EXPECT_EQ(offsets(8, 3), (Tokens{1, 4, 6}));  // 4/3, 4, 20/3
  EXPECT_EQ(offsets(8, 8), (Tokens{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(offsets(3, 2), (Tokens{0, 2}));  // 3/4, 9/4
  EXPECT_EQ(offsets(1, 1), Tokens{0});
  EXPECT_EQ(offsets(256, 4), (Tokens{32, 96, 160, 224}));
}

// Head 0 has probabilities 1/4 and 3/4, head 1 has 9/10 and 1/10 and much larger logits.
const LogitTable kTwoHeads = {{0.0, std::log(3.0)}, {50.0 + std::log(9.0), 50.0}};

TEST(OracleRules, RankingsOfTwoHeads) {
  const auto best = RankChunks({.ranking = Ranking::kProbability}, kTwoHeads);
  EXPECT_NEAR(std::exp(best[0]), 0.9, 1e-12);
  EXPECT_NEAR(std::exp(best[1]), 0.75, 1e-12);
  const auto sum = RankChunks({.ranking = Ranking::kProbabilitySum}, kTwoHeads);
  EXPECT_NEAR(std::exp(sum[0]), 1.15, 1e-12);
  EXPECT_NEAR(std::exp(sum[1]), 0.85, 1e-12);
  EXPECT_EQ(RankChunks({.ranking = Ranking::kScoreMax}, kTwoHeads),
            (std::vector<double>{50.0 + std::log(9.0), 50.0}));
}

TEST(OracleRules, PowersOfProbabilities) {
  Policy policy = {.ranking = Ranking::kProbabilityPower};
  EXPECT_EQ(RankChunks(policy, kTwoHeads),
            RankChunks({.ranking = Ranking::kProbabilitySum}, kTwoHeads));
  policy.probability_power = 2.0;
  const auto squares = RankChunks(policy, kTwoHeads);
  EXPECT_NEAR(std::exp(squares[0]), 0.8725, 1e-12);  // 1/16 + 81/100
  EXPECT_NEAR(std::exp(squares[1]), 0.5725, 1e-12);  // 9/16 + 1/100
  policy.probability_power = 1000.0;
  EXPECT_NEAR(RankChunks(policy, kTwoHeads)[1] / 1000.0, std::log(0.75), 1e-12);
}

TEST(OracleRules, RangesOfScoresHoldWhatTheirLogitsAllow) {
  // Chunk 0 has logit 0 or log 2, chunk 1 has log 2: probabilities 1/3 to 1/2, and 1/2 to 2/3.
  const LogitRanges logits = {.low = {{0.0, std::log(2.0)}},
                              .high = {{std::log(2.0), std::log(2.0)}}};
  for (const Ranking ranking : {Ranking::kProbability, Ranking::kProbabilitySum}) {
    const ScoreRanges scores = RankRanges({.ranking = ranking}, logits);
    EXPECT_LE(std::exp(scores.low[0]), 1.0 / 3);
    EXPECT_GE(std::exp(scores.high[0]), 1.0 / 2);
    EXPECT_NEAR(std::exp(scores.low[1]), 1.0 / 2, 1e-12);
    EXPECT_NEAR(std::exp(scores.high[1]), 2.0 / 3, 1e-12);
  }
  const ScoreRanges raw = RankRanges({.ranking = Ranking::kScoreMax}, logits);
  EXPECT_EQ(raw.low, logits.low[0]);
  EXPECT_EQ(raw.high, logits.high[0]);
}

TEST(OracleRules, KeepsTheBestAndOfEqualScoresTheLower) {
  const Tokens candidates = {10, 20, 30, 40};
  EXPECT_EQ(KeepBest(candidates, std::vector<double>{1, 3, 2, 3}, 1), Tokens{20});
  EXPECT_EQ(KeepBest(candidates, std::vector<double>{1, 3, 2, 3}, 3), (Tokens{20, 30, 40}));
  EXPECT_EQ(KeepBest(candidates, std::vector<double>{5, 5, 5, 5}, 2), (Tokens{10, 20}));
  EXPECT_EQ(KeepBest(candidates, std::vector<double>{0, 0, 0, 0}, 0), Tokens{});
}

TEST(OracleRules, SelectionErrorToleratesTiesOnly) {
  const Tokens candidates = {10, 20, 30, 40};
  const auto error = [&](int64_t keep, const Tokens& chosen, double tolerance) {
    const std::vector<double> scores = {1.0, 9.0, 1.001, 0.0};
    return SelectionError(candidates, {scores, scores}, keep, chosen, tolerance);
  };
  EXPECT_EQ(error(2, {20, 30}, 0.0), "");
  EXPECT_EQ(error(2, {10, 20}, 0.01), "");
  EXPECT_EQ(error(0, {}, 0.0), "");
  EXPECT_EQ(error(4, candidates, 0.0), "");
  EXPECT_NE(error(2, {10, 20}, 0.0001), "");
  EXPECT_NE(error(2, {10, 30}, 0.01), "");  // 20 is left out
  EXPECT_NE(error(2, {20, 40}, 0.01), "");
  EXPECT_NE(error(2, {20}, 0.01), "");
  EXPECT_NE(error(2, {30, 20}, 0.01), "");
  EXPECT_NE(error(2, {20, 20}, 0.01), "");
  EXPECT_NE(error(2, {20, 31}, 0.01), "");
}

TEST(OracleRules, SelectionErrorToleratesWhatRangesAllow) {
  const Tokens candidates = {10, 20, 30};
  const ScoreRanges scores = {.low = {1, 4, 2}, .high = {5, 4, 2}};
  EXPECT_EQ(SelectionError(candidates, scores, 1, Tokens{10}, 0.0), "");
  EXPECT_EQ(SelectionError(candidates, scores, 1, Tokens{20}, 0.0), "");
  EXPECT_NE(SelectionError(candidates, scores, 1, Tokens{30}, 0.0), "");  // 20 scores 4
  EXPECT_EQ(SelectionError(candidates, scores, 2, Tokens{20, 30}, 0.0), "");
  EXPECT_NE(SelectionError(candidates, scores, 2, Tokens{10, 30}, 0.0), "");
}

TEST(OracleRules, RefusesWhatItCannotCompute) {
  const Model model;
  const Policy good = Stages(
      8, 1, {{.chunk_tokens = 4, .keep_tokens = 8, .refresh_steps = 4}, {.refresh_steps = 2}});
  EXPECT_NO_THROW(ValidatePolicy(model, good));
  std::vector<Policy> bad(14, good);
  bad[0].window_tokens = 0;
  bad[1].sink_tokens = 2;
  bad[2].stages[0].keep_tokens = 6;
  bad[3].stages[1].chunk_tokens = 3;
  bad[4].stages[1].refresh_steps = 3;
  bad[5].rope_beyond = RopeStyle::kChunkIndexed;
  bad[6].stages[0].rope_within = RopeStyle::kStreaming;
  bad[7].middle = Middle::kNone;
  bad[8].rope_within = RopeStyle::kRelative;
  bad[9].stages[0].selector = Selector::kProbes;
  bad[9].stages[0].probes = 5;
  bad[10].stages[1].selector = Selector::kProbes;
  bad[10].stages[1].probes = 0;
  bad[11].probability_power = 0.0;
  bad[12].self_extend.group = 0;
  bad[13].stages[1].self_extend.neighbor_tokens = -1;
  for (const Policy& policy : bad) {
    EXPECT_THROW(ValidatePolicy(model, policy), std::invalid_argument) << &policy - bad.data();
  }
}

}  // namespace
}  // namespace longshore::oracle
