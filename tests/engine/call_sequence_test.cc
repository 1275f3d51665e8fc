// Random call sequences. A clean session makes each call block by block and is judged by the
// oracle; an abused twin makes the same calls whole, replays them, and is sent calls that must be
// refused. Both must give the same bits and come to the same state.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/judge.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

constexpr int64_t kMaxTokens = 520;

AttentionPolicy QuickStandard(int64_t dense_below_tokens) {
  AttentionPolicy policy = SmallStandard();
  policy.dense_below_tokens = dense_below_tokens;
  LayerPolicy layers = policy.decode.rest;
  layers.window_tokens = 64;
  layers.stages[0].keep_tokens = 128;
  layers.stages[1].keep_tokens = 32;
  SetLayers(layers, &policy);
  return policy;
}

using Windows = std::vector<int64_t>;  // of two layers

ModelShape TwoLayers(int64_t trained_tokens, const Windows& windows) {
  ModelShape model = TestModel(1, 1);
  model.num_layers = 2;
  model.rope_tables[0].trained_tokens = trained_tokens;
  model.layer_rope_table = {0, 0};
  model.layer_sliding_window = windows;
  return model;
}

// The window holds the newest W at least, and what is selected lies in the middle, each stage's
// within the stage before. That these are the keys attended to: attended_keys_test.cc.
void CheckRegions(const AttentionPolicy& policy, const LayerSelection& selection, int64_t tokens) {
  if (!selection.mask.valid) {
    return;
  }
  const LayerPolicy& layers = policy.decode.rest;
  const int64_t middle_end = selection.mask.middle_end;
  EXPECT_GE(middle_end, policy.sink_tokens);
  EXPECT_EQ((middle_end - policy.sink_tokens) % layers.MiddleChunkTokens(), 0);
  if (middle_end > policy.sink_tokens) {
    EXPECT_GE(tokens - middle_end, layers.window_tokens);
  }
  std::vector<bool> kept(static_cast<size_t>(tokens), false);
  std::fill(kept.begin() + policy.sink_tokens, kept.begin() + middle_end, true);
  for (size_t stage = 0; stage < selection.stages.size(); ++stage) {
    std::vector<bool> next(static_cast<size_t>(tokens), false);
    for (const int32_t first : selection.stages[stage]) {
      for (int32_t token = first; token < first + layers.stages[stage].chunk_tokens; ++token) {
        ASSERT_TRUE(kept[static_cast<size_t>(token)]) << "stage " << stage << " token " << token;
        ASSERT_FALSE(next[static_cast<size_t>(token)]) << "stage " << stage << " token " << token;
        next[static_cast<size_t>(token)] = true;
      }
    }
    kept = std::move(next);
  }
}

// A clean session and its twin.
class Pair {
 public:
  Pair(Engine* engine, const ModelShape& model, const AttentionPolicy& policy, bool overcommit)
      : model_(model),
        policy_(policy),
        clean_(engine, Spec(overcommit), StrictnessOf(model)),
        twin_(engine, Spec(!overcommit)) {}

  // One call in both.
  void Step(StepKind kind, int64_t rows, int32_t layer, Random* random) {
    rows = std::min(rows, kMaxTokens - twin_.Tokens(layer));
    if (rows == 0) {
      return;
    }
    const TokenRows tokens = RandomTokens(model_, rows, ValueKind::kGaussian, random);
    const auto output = twin_.Run(kind, tokens, layer);
    ASSERT_TRUE(output.ok()) << output.status();
    last_output_ = *output;
    has_last_ = true;
    last_layer_ = layer;
    switch (kind) {
      case StepKind::kAppend: clean_.Append(tokens, layer); break;
      case StepKind::kPrefill:
        EXPECT_TRUE(IsSameBits(*output, clean_.Prefill(tokens, layer)));
        break;
      case StepKind::kDecode: EXPECT_TRUE(IsSameBits(*output, clean_.Decode(tokens, layer))); break;
    }
    CheckRegions(policy_, twin_.Selection(layer), twin_.Tokens(layer));
  }

  void Replay() {
    if (!has_last_) {
      return;
    }
    const SessionState before = StateOf(twin_.engine(), twin_.id());
    EXPECT_TRUE(IsSameBits(twin_.Replay(), last_output_));
    EXPECT_TRUE(StateOf(twin_.engine(), twin_.id()) == before) << "a replay changed something";
  }

  void Truncate(int64_t position) {
    // The clean one makes smaller calls, so a window has freed no less of it.
    const uint64_t clean_id = clean_.session().id();
    const SessionState before = StateOf(twin_.engine(), clean_id);
    const absl::Status status = twin_.engine().Truncate(clean_id, position).status();
    if (!status.ok()) {
      EXPECT_EQ(DetailsOf(status)->reason, "TOKENS_EXPIRED");
      EXPECT_TRUE(StateOf(twin_.engine(), clean_id) == before);
      return;
    }
    clean_.Truncate(
        std::min(position, std::max(clean_.session().Tokens(0), clean_.session().Tokens(1))));
    ASSERT_TRUE(twin_.engine().Truncate(twin_.id(), position).ok());
    has_last_ = has_last_ && twin_.Tokens(last_layer_) < position;
  }

  // A call that is refused: a gap, a taken position, past max_tokens, an infinity.
  void Refuse(int32_t layer, Random* random) {
    const int64_t tokens = twin_.Tokens(layer);
    std::string reason;
    CallPart part{.session_id = twin_.id(), .position = tokens, .append_id = 1000000, .rows = {}};
    int64_t rows = std::min<int64_t>(70, kMaxTokens - tokens);
    switch (random->Uniform(0, 3)) {
      case 0:
        part.position += 1;
        reason = "POSITION_GAP";
        break;
      case 1:
        part.position -= 1;
        reason = tokens == 0 ? "INVALID_FIELD" : "POSITION_CONFLICT";
        break;
      case 2:
        rows = kMaxTokens - tokens + 1;
        reason = "MAX_TOKENS";
        break;
      default: reason = rows == 0 ? "MAX_TOKENS" : "NON_FINITE"; break;
    }
    part.rows = RandomTokens(model_, std::max<int64_t>(1, rows), ValueKind::kGaussian, random);
    if (reason == "NON_FINITE") {
      part.rows.v.back() = HUGE_VAL;
    }
    const SessionState before = StateOf(twin_.engine(), twin_.id());
    const auto kind = random->OneIn(2) ? StepKind::kPrefill : StepKind::kAppend;
    const absl::Status status = RunCall(&twin_.engine(), kind, layer, {&part, 1}).status();
    ASSERT_TRUE(DetailsOf(status).has_value()) << status;
    EXPECT_EQ(DetailsOf(status)->reason, reason) << status;
    EXPECT_TRUE(StateOf(twin_.engine(), twin_.id()) == before)
        << "a refused call changed something";
  }

  // Both are in the same state but for what they reserve.
  void CheckSameState() {
    for (int32_t layer = 0; layer < model_.num_layers; ++layer) {
      EXPECT_EQ(clean_.session().Tokens(layer), twin_.Tokens(layer));
      const LayerSelection clean = clean_.session().Selection(layer);
      const LayerSelection twin = twin_.Selection(layer);
      EXPECT_EQ(clean.mask.valid, twin.mask.valid);
      EXPECT_EQ(clean.stages, twin.stages);
    }
  }

  int64_t Longest() const { return std::max(twin_.Tokens(0), twin_.Tokens(1)); }
  int64_t judged_prunings() const { return clean_.judged_prunings(); }

 private:
  SessionSpec Spec(bool overcommit) const {
    SessionSpec spec = TestSpec(model_, policy_, kMaxTokens);
    spec.overcommit = overcommit;
    return spec;
  }

  ModelShape model_;
  AttentionPolicy policy_;
  Judge clean_;
  EngineSession twin_;
  StepOutput last_output_;
  bool has_last_ = false;
  int32_t last_layer_ = 0;
};

void RandomStep(Pair* pair, Random* random) {
  const auto layer = static_cast<int32_t>(random->Uniform(0, 1));
  const int64_t die = random->Uniform(0, 99);
  if (die < 45) {
    pair->Step(StepKind::kDecode, 1, layer, random);
  } else if (die < 62) {
    pair->Step(StepKind::kDecode, random->Uniform(2, 24), layer, random);
  } else if (die < 68) {
    pair->Step(StepKind::kPrefill, random->Uniform(1, 90), layer, random);
  } else if (die < 78) {
    pair->Step(StepKind::kAppend, random->Uniform(1, 90), layer, random);
  } else if (die < 88) {
    pair->Replay();
  } else if (die < 94) {
    pair->Refuse(layer, random);
  } else {
    const int64_t longest = pair->Longest();
    pair->Truncate(random->OneIn(6) ? random->Uniform(0, longest)
                                    : std::max<int64_t>(0, longest - random->Uniform(0, 40)));
  }
  pair->CheckSameState();
}

void RunSequence(const AttentionPolicy& policy,
                 int64_t trained_tokens,
                 int32_t steps,
                 const Windows& windows = {0, 0}) {
  const auto engine = MakeTestEngine();
  const ModelShape model = TwoLayers(trained_tokens, windows);
  Random random;
  {
    Pair first(engine.get(), model, policy, false);
    Pair second(engine.get(), model, policy, true);  // their pages interleave
    for (Pair* pair : {&first, &second}) {
      pair->Step(StepKind::kAppend, 300, 0, &random);
      pair->Step(StepKind::kAppend, 280, 1, &random);
    }
    for (int32_t step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE(absl::StrCat("step ", step, ", seed ", TestSeed()));
      RandomStep(random.OneIn(2) ? &first : &second, &random);
    }
    if (policy.decode.rest.middle == Middle::kStages && windows[1] == 0) {
      EXPECT_GT(first.judged_prunings() + second.judged_prunings(), steps / 10);
    }
  }
  for (const SessionInfo& info : engine->List()) {
    EXPECT_TRUE(engine->Close(info.id).ok());
  }
  EXPECT_EQ(engine->pool_usage().free_bytes, engine->pool_usage().total_bytes);
}

TEST(CallSequence, StandardIsWhatTheOracleSays) {
  RunSequence(QuickStandard(0), kNeverBeyond, 260);
}

TEST(CallSequence, StandardAcrossTheTrainedLengthIsWhatTheOracleSays) {
  RunSequence(QuickStandard(330), 400, 260);
}

TEST(CallSequence, StandardExtendedFromTheStartIsWhatTheOracleSays) {
  AttentionPolicy policy = QuickStandard(330);
  policy.extension = Extension::kFromStart;
  RunSequence(policy, 400, 260);
}

TEST(CallSequence, OneStageIsWhatTheOracleSays) { RunSequence(OneStage(4, 64, 3), 350, 260); }

TEST(CallSequence, StreamingIsWhatTheOracleSays) { RunSequence(SmallStreaming(), 400, 160); }

// Pages are freed, promised again and taken by the other session.
TEST(CallSequence, SlidingWindowsAreWhatTheOracleSays) {
  RunSequence(QuickStandard(0), kNeverBeyond, 200, {70, 0});
  RunSequence(QuickStandard(0), 300, 200, {1, 33});
  RunSequence(SmallDense(), kNeverBeyond, 120, {64, 65});
}

TEST(CallSequence, DenseIsWhatTheOracleSays) { RunSequence(SmallDense(), kNeverBeyond, 160); }

}  // namespace
}  // namespace longshore
