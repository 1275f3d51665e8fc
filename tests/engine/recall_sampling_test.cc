// Which blocks are measured, and what becomes of those whose tokens go first.

#include <array>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/engine/recall_test.h"

namespace longshore {
namespace {

constexpr int64_t kMaxTokens = 2048;
constexpr int64_t kContext = 470;

TokenRows Rows(const ModelShape& model, int64_t rows, uint32_t salt = 0) {
  Random random(salt);
  return RandomTokens(model, rows, ValueKind::kGaussian, &random);
}

// A session of `layers` layers, each kContext tokens long.
EngineSession OpenLayers(Engine* engine,
                         int32_t layers,
                         const AttentionPolicy& policy = SmallStandard()) {
  ModelShape model = TestModel(2, 1);
  model.num_layers = layers;
  model.layer_rope_table.clear();
  model.layer_sliding_window.clear();
  EngineSession session(engine, TestSpec(*NormalizeModelShape(model), policy, kMaxTokens));
  for (int32_t layer = 0; layer < layers; ++layer) {
    session.Append(Rows(session.model(), kContext), layer);
  }
  return session;
}

TEST(RecallSampling, IsOffUnlessAskedFor) {
  const auto engine = MakeTestEngine();
  EngineSession session = OpenLayers(engine.get(), 1);
  session.Decode(Rows(session.model(), 1));
  const absl::StatusOr<RecallSlice> slice = engine->AdvanceRecall(kWholeBlock);
  ASSERT_TRUE(slice.ok());
  EXPECT_EQ(slice->products, 0);
  EXPECT_FALSE(slice->sample.has_value());
  EXPECT_EQ(engine->recall_counts().dropped_busy, 0);
}

TEST(RecallSampling, ANegativeShareIsRefused) {
  const auto engine = Engine::Create({.recall_sample_every = -1}, MakeTestBackend());
  EXPECT_EQ(DetailsOf(engine.status())->field, "recall_sample_every") << engine.status();
}

TEST(RecallSampling, TakesItsShareOfEveryLayer) {
  constexpr int32_t kLayers = 4;
  constexpr int32_t kSteps = 200;
  const auto engine = SamplingEngine(8);  // a multiple of the layers
  EngineSession session = OpenLayers(engine.get(), kLayers);
  std::array<int32_t, kLayers> taken = {};
  for (int32_t step = 0; step < kSteps; ++step) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      session.Run(StepKind::kDecode, Rows(session.model(), 1), layer).IgnoreError();
      if (const auto sample = Measure(engine.get()); sample.has_value()) {
        EXPECT_EQ(sample->labels.layer, layer);
        ++taken[static_cast<size_t>(layer)];
      }
    }
  }
  for (const int32_t of_layer : taken) {  // 25 on average; four standard deviations
    EXPECT_GT(of_layer, 5);
    EXPECT_LT(of_layer, 45);
  }
}

TEST(RecallSampling, LabelsSayWhichLayersPhaseAndAge) {
  AttentionPolicy policy = SmallStandard();
  for (PhasePolicy* phase : {&policy.prefill, &policy.decode}) {
    phase->early = phase->rest;
    phase->first_layers = 1;
  }
  const auto engine = SamplingEngine();
  EngineSession session = OpenLayers(engine.get(), 2, policy);
  session.Run(StepKind::kPrefill, Rows(session.model(), 42), 1).IgnoreError();  // 470..511
  const RecallSample prefilled = Measure(engine.get()).value();
  EXPECT_EQ(prefilled.labels.session_id, session.id());
  EXPECT_EQ(prefilled.labels.phase, Phase::kPrefill);
  EXPECT_FALSE(prefilled.labels.early);
  EXPECT_EQ(prefilled.labels.age_steps, 0);
  std::vector<int64_t> ages;
  for (int32_t step = 0; step < 6; ++step) {
    session.Run(StepKind::kDecode, Rows(session.model(), 1), 1).IgnoreError();
    const RecallSample sample = Measure(engine.get()).value();
    EXPECT_EQ(sample.labels.layer, 1);
    EXPECT_EQ(sample.labels.phase, Phase::kDecode);
    ages.push_back(sample.labels.age_steps);
  }
  // Its clock, (position + 1) / 4, moves on at 515 and 519; the prefill chose at 511.
  EXPECT_EQ(ages, (std::vector<int64_t>{1, 2, 3, 0, 1, 2}));
  session.Run(StepKind::kDecode, Rows(session.model(), 1), 0).IgnoreError();
  EXPECT_TRUE(Measure(engine.get()).value().labels.early);
}

// 42 rows of 512 tokens, 128 products each.
TEST(RecallSampling, RowsAreLeftOutWhereABlockIsTooMuchWork) {
  for (const auto& [products, rows] : std::map<int64_t, size_t>{
           {kWholeBlock, 42}, {int64_t{10} * 128 * 512, 10}, {1, RecallProbe::kFewestRows}}) {
    const auto engine = SamplingEngine(1, products);
    EngineSession session = OpenLayers(engine.get(), 1);
    session.Prefill(Rows(session.model(), 42));
    const std::vector<int64_t> positions = Measure(engine.get()).value().positions;
    EXPECT_EQ(positions.size(), rows);
    EXPECT_EQ(std::set<int64_t>(positions.begin(), positions.end()).size(), rows);
  }
}

TEST(RecallSampling, EveryRowHasItsTurn) {
  const auto engine = SamplingEngine(1, 1);
  std::set<int64_t> rows;
  for (int32_t session = 0; session < 50; ++session) {
    EngineSession opened = OpenLayers(engine.get(), 1);
    opened.Prefill(Rows(opened.model(), 42));
    const RecallSample sample = Measure(engine.get()).value();
    rows.insert(sample.positions.begin(), sample.positions.end());
    ASSERT_TRUE(engine->Close(opened.id()).ok());
  }
  EXPECT_EQ(*rows.begin(), kContext);
  EXPECT_EQ(*rows.rbegin(), kContext + 41);
  EXPECT_EQ(rows.size(), 42U);
}

TEST(RecallSampling, BlocksThatLeaveNothingOutAreNotSampled) {
  const auto engine = SamplingEngine();
  ModelShape sliding = TestModel(2, 1);
  sliding.layer_sliding_window = {100};
  for (const SessionSpec& spec : {TestSpec(TestModel(2, 1), SmallDense(), kMaxTokens),
                                  TestSpec(TestModel(2, 1), SmallStreaming(), kMaxTokens),
                                  TestSpec(TestModel(2, 1), OneStage(8, 1024, 4), kMaxTokens),
                                  TestSpec(sliding, SmallStandard(), kMaxTokens)}) {
    EngineSession session(engine.get(), spec);
    session.Append(Rows(session.model(), kContext));
    session.Decode(Rows(session.model(), 1));
    EXPECT_FALSE(Measure(engine.get()).has_value());
  }
  EXPECT_EQ(engine->recall_counts().dropped_busy, 0);
}

TEST(RecallSampling, OneBlockWaitsAndOthersAreCounted) {
  const auto engine = SamplingEngine();
  EngineSession session = OpenLayers(engine.get(), 1);
  session.Decode(Rows(session.model(), 1));
  for (int32_t step = 0; step < 5; ++step) {
    session.Decode(Rows(session.model(), 1));
  }
  session.Replay();  // was sampled when it was run
  EXPECT_EQ(engine->recall_counts().dropped_busy, 5);
  EXPECT_EQ(Measure(engine.get()).value().positions, std::vector<int64_t>{kContext});
  EXPECT_FALSE(Measure(engine.get()).has_value());
  EXPECT_EQ(engine->recall_counts().measured, 1);
}

// What the block kept is copied: later steps that select anew do not change what is said of it.
TEST(RecallSampling, LaterStepsDoNotMatter) {
  std::array<std::vector<double>, 2> mass;
  for (const bool later : {false, true}) {
    const auto engine = SamplingEngine();
    EngineSession session = OpenLayers(engine.get(), 1);
    session.Decode(Rows(session.model(), 1, 7));
    engine->AdvanceRecall(1).IgnoreError();
    if (later) {
      session.Prefill(Rows(session.model(), 300, 8));
      session.Decode(Rows(session.model(), 20, 9));
    }
    mass[later ? 1 : 0] = Measure(engine.get()).value().mass_kept;
  }
  EXPECT_EQ(mass[0], mass[1]);
}

TEST(RecallSampling, AnswersAreTheSameBitsWithAndWithout) {
  const auto off = MakeTestEngine();
  const auto on = SamplingEngine();
  EngineSession without = OpenLayers(off.get(), 1);
  EngineSession with = OpenLayers(on.get(), 1);
  Random random;
  for (int32_t step = 0; step < 40; ++step) {
    const StepKind kind = step % 13 == 5 ? StepKind::kPrefill : StepKind::kDecode;
    const TokenRows rows = RandomTokens(without.model(), kind == StepKind::kPrefill ? 100 : 1,
                                        ValueKind::kGaussian, &random);
    const auto expected = without.Run(kind, rows);
    const auto output = with.Run(kind, rows);
    ASSERT_TRUE(expected.ok() && output.ok());
    EXPECT_TRUE(IsSameBits(*output, *expected)) << "step " << step;
    ASSERT_TRUE(on->AdvanceRecall(200000).ok());
  }
  EXPECT_GT(on->recall_counts().measured, 5);
}

// A block whose tokens go while it waits, before its first slice or in the middle.
class RecallGone : public ::testing::TestWithParam<bool> {
 protected:
  RecallGone() : engine_(SamplingEngine()), session_(OpenLayers(engine_.get(), 2)) {
    for (const int32_t layer : {0, 1}) {
      session_.Run(StepKind::kDecode, Rows(session_.model(), 1), layer).IgnoreError();
    }
    if (GetParam()) {
      EXPECT_GT(engine_->AdvanceRecall(1)->products, 0);
    }
  }
  void ExpectGone() {
    const absl::StatusOr<RecallSlice> slice = engine_->AdvanceRecall(kWholeBlock);
    ASSERT_TRUE(slice.ok());
    EXPECT_EQ(slice->products, 0);
    EXPECT_EQ(engine_->recall_counts().dropped_gone, 1);
    EXPECT_EQ(engine_->recall_counts().measured, 0);
  }

  std::unique_ptr<Engine> engine_;
  EngineSession session_;
};

INSTANTIATE_TEST_SUITE_P(Begun, RecallGone, ::testing::Bool());

TEST_P(RecallGone, WhenItsSessionIsClosed) {
  ASSERT_TRUE(engine_->Close(session_.id()).ok());
  ExpectGone();
}

TEST_P(RecallGone, WhenItsRowIsTruncated) {
  ASSERT_TRUE(engine_->Truncate(session_.id(), kContext).ok());
  ExpectGone();
}

// The positions come back with other tokens in them.
TEST_P(RecallGone, WhenItsTokensAreReplaced) {
  ASSERT_TRUE(engine_->Truncate(session_.id(), 100).ok());
  session_.Append(Rows(session_.model(), 600, 3));
  ExpectGone();
}

TEST_P(RecallGone, NotWhenATruncationLeavesItsTokens) {
  session_.Decode(Rows(session_.model(), 1));
  ASSERT_TRUE(engine_->Truncate(session_.id(), kContext + 1).ok());
  EXPECT_TRUE(Measure(engine_.get()).has_value());
}

TEST_P(RecallGone, NotWhenAnotherSessionGoes) {
  EngineSession other = OpenLayers(engine_.get(), 1);
  ASSERT_TRUE(engine_->Truncate(other.id(), 10).ok());
  ASSERT_TRUE(engine_->Close(other.id()).ok());
  EXPECT_TRUE(Measure(engine_.get()).has_value());
}

TEST_P(RecallGone, NotWhenATruncationIsRefused) {
  EXPECT_FALSE(engine_->Truncate(session_.id(), kMaxTokens + 1).ok());
  EXPECT_TRUE(Measure(engine_.get()).has_value());
}

TEST(RecallSampling, TheNextBlockIsSampledAfterOneIsGone) {
  const auto engine = SamplingEngine();
  EngineSession gone = OpenLayers(engine.get(), 1);
  gone.Decode(Rows(gone.model(), 1));
  ASSERT_TRUE(engine->Close(gone.id()).ok());
  EngineSession next = OpenLayers(engine.get(), 1);
  next.Decode(Rows(next.model(), 1));
  EXPECT_EQ(Measure(engine.get()).value().labels.session_id, next.id());
}

}  // namespace
}  // namespace longshore
