// Lengths at which something begins: the first token, the regions' ends, a chunk's or page's end.

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "tests/conformance/conformance_case.h"
#include "tests/support/judge.h"

namespace longshore {
namespace {

constexpr int64_t kSink = 64;
constexpr int64_t kWindow = 128;

class LengthTest : public ::testing::TestWithParam<std::string> {};

AttentionPolicy Keeping(int32_t chunks, AttentionPolicy policy) {
  LayerPolicy layers = policy.decode.rest;
  layers.stages[0].keep_tokens = 64 * chunks;
  SetLayers(layers, &policy);
  return policy;
}

// `length` tokens are there; then `rows` more are decoded or prefilled.
void JudgeAt(const std::string& backend,
             const AttentionPolicy& policy,
             int64_t length,
             StepKind kind,
             int64_t rows) {
  SCOPED_TRACE(absl::StrCat(kind == StepKind::kPrefill ? "prefill" : "decode", " of ", rows,
                            " rows at length ", length));
  const auto engine = MakeTestEngine(backend);
  const ModelShape model = TestModel();
  Judge judge(engine.get(), TestSpec(model, policy, length + rows), StrictnessOf(model));
  Random random(static_cast<uint32_t>(length));
  const TokenRows all = RandomTokens(model, length + rows, ValueKind::kGaussian, &random);
  constexpr int64_t kMostRows = 16384;
  for (int64_t begin = 0; begin < length; begin += kMostRows) {
    judge.Append(Slice(model, all, begin, std::min(begin + kMostRows, length)));
  }
  const TokenRows last = Slice(model, all, length, length + rows);
  kind == StepKind::kPrefill ? judge.Prefill(last) : judge.Decode(last);
}

TEST_P(LengthTest, RegionsBeginAndEndWhereTheyShould) {
  // The query's own token is the last of the length that regions are made of.
  for (const int64_t length :
       {int64_t{1}, kSink - 1, kSink, kSink + 1, kSink + kWindow - 1, kSink + kWindow,
        kSink + kWindow + 1, kSink + kWindow + 63, kSink + kWindow + 64, kSink + kWindow + 65,
        kSink + kWindow + 127, kSink + kWindow + 128}) {
    for (const StepKind kind : {StepKind::kDecode, StepKind::kPrefill}) {
      JudgeAt(GetParam(), Keeping(1, SmallStandard()), length - 1, kind, 1);
      JudgeAt(GetParam(), SmallStreaming(), length - 1, kind, 1);
    }
  }
}

TEST_P(LengthTest, ChunksAndPagesMayBeHalfFull) {
  for (const int64_t length : {511, 512, 513, 544, 575, 576}) {
    JudgeAt(GetParam(), Keeping(2, SmallStandard()), length, StepKind::kDecode, 1);
    JudgeAt(GetParam(), OneStage(4, 64, 1), length, StepKind::kDecode, 2);
    JudgeAt(GetParam(), Keeping(2, SmallStandard()), length, StepKind::kPrefill, 66);
  }
}

// Rankings of many candidates are not done as those of few.
TEST_P(LengthTest, CandidatesMayBeMany) {
  for (const int64_t length : {1200, 3000, 20000, 60000}) {
    JudgeAt(GetParam(), OneStage(1, 64, 1), length, StepKind::kDecode, 1);
  }
}

TEST_P(LengthTest, SessionsGrowTokenByToken) {
  const auto engine = MakeTestEngine(GetParam());
  const ModelShape model = TestModel(1, 1);
  AttentionPolicy policy = OneStage(1, 4, 2);
  policy.sink_tokens = 2;
  LayerPolicy layers = policy.decode.rest;
  layers.window_tokens = 3;
  SetLayers(layers, &policy);
  Judge judge(engine.get(), TestSpec(model, policy, 140), StrictnessOf(model));
  Random random;
  for (int64_t token = 0; token < 140 && !HasFailure(); ++token) {
    judge.Decode(RandomTokens(model, 1, ValueKind::kGaussian, &random));
  }
  EXPECT_GT(judge.judged_prunings(), 50);
}

// The window [M, L) grows until the coarsest stage refreshes; then M jumps.
TEST_P(LengthTest, WindowsGrowBetweenRefreshes) {
  const auto engine = MakeTestEngine(GetParam());
  const ModelShape model = TestModel(1, 1);
  AttentionPolicy policy = Keeping(2, SmallStandard());
  LayerPolicy layers = policy.decode.rest;
  layers.stages[0].refresh_steps = 96;
  layers.stages[1].refresh_steps = 48;
  SetLayers(layers, &policy);
  Judge judge(engine.get(), TestSpec(model, policy, 800), StrictnessOf(model));
  Random random;
  judge.Append(RandomTokens(model, 500, ValueKind::kGaussian, &random));
  int64_t refreshes = 0;
  for (int64_t step = 0; step < 60 && !HasFailure(); ++step) {
    judge.Decode(RandomTokens(model, 5, ValueKind::kGaussian, &random));
    refreshes += judge.session().trace().stage_refreshed[0];
  }
  EXPECT_GE(refreshes, 3);
}

TEST_P(LengthTest, AppendedTokensJoinTheWindow) {
  const auto engine = MakeTestEngine(GetParam());
  const ModelShape model = TestModel();
  Judge judge(engine.get(), TestSpec(model, SmallStandard(), 2000), StrictnessOf(model));
  Random random;
  judge.Append(RandomTokens(model, 500, ValueKind::kGaussian, &random));
  for (const int64_t appended : {1, 3, 40, 64, 130, 1}) {
    judge.Decode(RandomTokens(model, 1, ValueKind::kGaussian, &random));
    judge.Append(RandomTokens(model, appended, ValueKind::kGaussian, &random));
    judge.Decode(RandomTokens(model, 2, ValueKind::kGaussian, &random));
  }
  EXPECT_EQ(judge.session().Tokens(), 500 + 6 * 3 + 239);
}

TEST_P(LengthTest, TruncatedSessionsGoOnAsTheOracleDoes) {
  const auto engine = MakeTestEngine(GetParam());
  ModelShape model = TestModel();
  model.rope_tables[0].trained_tokens = 600;
  Judge judge(engine.get(), TestSpec(model, SmallStandard(), 700), StrictnessOf(model));
  Random random;
  judge.Prefill(RandomTokens(model, 610, ValueKind::kGaussian, &random));
  // Back over the trained length, into a chunk, to a chunk's end, into the sink, to nothing.
  for (const int64_t position : {620, 605, 580, 513, 512, 30, 0}) {
    for (int32_t call = 0; call < 5; ++call) {
      judge.Decode(RandomTokens(model, 3, ValueKind::kGaussian, &random));
    }
    judge.Truncate(position);
    if (HasFailure()) {
      return;
    }
    judge.Decode(RandomTokens(model, 1, ValueKind::kGaussian, &random));
    judge.Append(RandomTokens(model, 40, ValueKind::kGaussian, &random));
    judge.Decode(RandomTokens(model, 1, ValueKind::kGaussian, &random));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LengthTest, ::testing::ValuesIn(TestBackends()));

}  // namespace
}  // namespace longshore
