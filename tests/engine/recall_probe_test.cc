// What a measurement says, against the oracle's sum over every token.

#include "engine/recall_probe.h"

#include <algorithm>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "tests/engine/recall_test.h"
#include "tests/support/oracle_rules.h"

namespace longshore {
namespace {

constexpr int64_t kMaxTokens = 1024;

struct Case {
  std::string name;
  ModelShape model = TestModel(4, 2);
  AttentionPolicy policy = SmallStandard();
  double tolerance = 1e-5;
};

// Attention styles for beyond a trained length that every test passes.
AttentionPolicy Beyond(RopeStyle style) {
  AttentionPolicy policy = SmallStandard();
  policy.attention_rope.beyond_trained = style;
  policy.attention_rope.self_extend_group = style == RopeStyle::kSelfExtend ? 4 : 0;
  policy.attention_rope.self_extend_neighbor_tokens = style == RopeStyle::kSelfExtend ? 100 : 0;
  return policy;
}

Case Short(const std::string& name, RopeStyle style) {
  Case made{.name = name, .policy = Beyond(style)};
  made.model.rope_tables = {TestRope(64, 300)};
  return made;
}

std::vector<Case> Cases() {
  std::vector<Case> cases = {{.name = "standard"},
                             Short("beyond_streaming", RopeStyle::kStreaming),
                             Short("beyond_infllm", RopeStyle::kInfLlm),
                             Short("beyond_dynamic_extend", RopeStyle::kDynamicExtend),
                             Short("beyond_self_extend", RopeStyle::kSelfExtend)};
  cases.push_back({.name = "one_query_head_a_kv_head", .model = TestModel(2, 2)});
  cases.push_back({.name = "head_dim_96", .model = TestModel(3, 1, 96)});
  cases.push_back({.name = "soft_cap_scale_and_partial_rotary"});
  cases.back().model.logit_soft_cap = 2.0F;
  cases.back().model.softmax_scale = 0.5F;
  cases.back().model.rope_tables = {TestRope(32)};
  cases.push_back({.name = "bf16", .tolerance = 1e-4});
  cases.back().model.query_dtype = DType::kBf16;
  cases.back().model.kv_dtype = DType::kBf16;
  cases.push_back({.name = "no_rotary"});
  cases.back().model.rope_tables.clear();
  cases.back().model.layer_rope_table = {-1};
  cases.push_back({.name = "learned_sinks_are_left_out"});
  cases.back().model.sink_logits = {3.0F, -1.0F, 0.0F, 8.0F};
  // Regions and chunks that begin and end within pages.
  cases.push_back({.name = "descent_of_20_tokens", .policy = OneStage(20, 60, 4)});
  cases.back().policy.sink_tokens = 60;
  LayerPolicy descent = cases.back().policy.decode.rest;
  descent.stages[0].selector = Selector::kDescent;
  SetLayers(descent, &cases.back().policy);
  cases.push_back({.name = "single_tokens", .policy = OneStage(1, 24, 5)});
  cases.push_back({.name = "streaming_within"});
  cases.back().policy.attention_rope.within_trained = RopeStyle::kStreaming;
  cases.push_back({.name = "score_max", .policy = OneStage(32, 64, 4)});
  cases.back().policy.ranking = Ranking::kScoreMax;
  for (Case& made : cases) {
    made.model = *NormalizeModelShape(made.model);
  }
  return cases;
}

// One layer of a session beside all its rows, as the engine keeps them.
class Subject {
 public:
  Subject(Engine* engine, const Case& of, uint32_t salt)
      : case_(of),
        random_(salt),
        session_(engine, TestSpec(of.model, of.policy, kMaxTokens)) {}

  void Run(StepKind kind, int64_t rows) {
    TokenRows tokens = RandomTokens(case_.model, rows, ValueKind::kGaussian, &random_);
    Round(case_.model.query_dtype, &tokens.q);
    Round(case_.model.kv_dtype, &tokens.k);
    first_position_ = session_.Tokens();
    queries_ = tokens.q;
    keys_.insert(keys_.end(), tokens.k.begin(), tokens.k.end());
    ASSERT_TRUE(session_.Run(kind, tokens).ok());
  }

  // What the oracle says of the last call's rows, which are one block, at the sample's positions.
  RecallSample Expected(const RecallSample& sample) const {
    const oracle::Model model = OracleModel(case_.model, 0);
    const LayerSelection selection = session_.Selection();
    const std::vector<int32_t>& chosen = selection.stages.back();
    const oracle::Selection kept{.middle_end = selection.mask.middle_end,
                                 .chosen = {chosen.begin(), chosen.end()}};
    const int64_t width = int64_t{model.heads} * model.head_dim;
    const auto heads = static_cast<size_t>(model.heads);
    RecallSample expected;
    expected.mass_kept.resize(heads);
    expected.middle_kept.resize(heads);
    for (const int64_t position : sample.positions) {
      const std::span<const double> query = std::span<const double>(queries_).subspan(
          static_cast<size_t>((position - first_position_) * width), static_cast<size_t>(width));
      const oracle::KeptMass mass =
          oracle::MassKept(model, OraclePolicy(case_.policy, Phase::kDecode, 0), kept,
                           {.position = position,
                            .block_first = first_position_,
                            .beyond = oracle::IsBeyond(model, session_.Tokens() - 1),
                            .queries = query,
                            .keys = keys_});
      for (size_t head = 0; head < heads; ++head) {
        const auto rows = static_cast<double>(sample.positions.size());
        expected.mass_kept[head] += mass.all[head] / rows;
        expected.middle_kept[head] += mass.middle[head] / rows;
      }
    }
    return expected;
  }

  EngineSession& session() { return session_; }

 private:
  void Round(DType dtype, std::vector<double>* values) const {
    for (double& value : *values) {
      value = oracle::RoundTo(OracleStorage(dtype), value);
    }
  }

  const Case& case_;
  Random random_;
  EngineSession session_;
  int64_t first_position_ = 0;   // of the last call
  std::vector<double> queries_;  // of the last call
  std::vector<double> keys_;     // of all
};

void ExpectNear(const std::vector<double>& actual,
                const std::vector<double>& expected,
                double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t head = 0; head < actual.size(); ++head) {
    EXPECT_NEAR(actual[head], expected[head], tolerance)
        << "head " << head << ", seed " << TestSeed();
  }
}

class RecallProbeTest : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Methods,
                         RecallProbeTest,
                         ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(RecallProbeTest, AgreesWithTheOracle) {
  const auto engine = SamplingEngine();
  Subject subject(engine.get(), GetParam(), 1);
  subject.Run(StepKind::kAppend, 448);
  int32_t measured = 0;
  for (int32_t call = 0; call < 12; ++call) {
    // A block of a prefill, and steps of one row and of several.
    subject.Run(call == 0 ? StepKind::kPrefill : StepKind::kDecode, call == 0   ? 64
                                                                    : call == 6 ? 3
                                                                                : 1);
    const std::optional<RecallSample> sample = Measure(engine.get());
    ASSERT_TRUE(sample.has_value());
    ASSERT_EQ(std::ssize(sample->positions), call == 0 ? 64 : call == 6 ? 3 : 1);
    const RecallSample expected = subject.Expected(*sample);
    ExpectNear(sample->mass_kept, expected.mass_kept, GetParam().tolerance);
    ExpectNear(sample->middle_kept, expected.middle_kept, GetParam().tolerance);
    EXPECT_LT(*std::max_element(sample->middle_kept.begin(), sample->middle_kept.end()), 1.0);
    measured += 1;
  }
  EXPECT_EQ(engine->recall_counts().measured, measured);
}

TEST(RecallProbe, SaysTheSameInSlicesOfAnySize) {
  const Case of = Cases()[1];  // every run has its own ids
  std::vector<RecallSample> samples;
  for (const int64_t products : {int64_t{1}, int64_t{5000}, int64_t{40000}, kWholeBlock}) {
    const auto engine = SamplingEngine();
    Subject subject(engine.get(), of, 1);
    subject.Run(StepKind::kAppend, 470);
    subject.Run(StepKind::kDecode, 3);
    samples.push_back(Measure(engine.get(), products).value());
  }
  for (const RecallSample& sample : samples) {
    EXPECT_EQ(sample.positions, samples[0].positions);
    ExpectNear(sample.mass_kept, samples[0].mass_kept, 1e-6);
    ExpectNear(sample.middle_kept, samples[0].middle_kept, 1e-6);
  }
}

TEST(RecallProbe, ASliceIsNoLargerThanAsked) {
  const Case of = Cases()[0];
  const auto engine = SamplingEngine();
  Subject subject(engine.get(), of, 1);
  subject.Run(StepKind::kAppend, 900);
  subject.Run(StepKind::kDecode, 1);
  const int64_t token = int64_t{4} * 64;
  int64_t slices = 0;
  int64_t products = 0;
  for (absl::StatusOr<RecallSlice> slice = RecallSlice{.products = 1}; slice->products > 0;
       ++slices) {
    slice = engine->AdvanceRecall(100 * token);
    ASSERT_TRUE(slice.ok());
    EXPECT_LT(slice->products, 164 * token);  // what was begun is ended: at most a page more
    products += slice->products;
  }
  // Sink and window, what is selected, and the middle: all of the context and the selection.
  EXPECT_EQ(products, (901 + 64) * token);
  EXPECT_GT(slices, 7);
}

TEST(RecallProbe, ANeedleThatIsMissedShowsInTheHeadThatWantsIt) {
  ModelShape model = TestModel(2, 2);
  model.rope_tables = {IdentityRope(64)};
  Case of{.name = "needle", .model = model, .policy = OneStage(8, 8, 1)};
  of.policy.ranking = Ranking::kScoreMax;
  const auto engine = SamplingEngine();
  EngineSession session(engine.get(), TestSpec(model, of.policy, kMaxTokens));
  // Head 0 wants token 100 with a larger logit than head 1 wants token 200.
  TokenRows rows = {.tokens = 500,
                    .q = std::vector<double>(500 * 128),
                    .k = std::vector<double>(500 * 128),
                    .v = std::vector<double>(500 * 128)};
  rows.k[100 * 128] = 30.0;
  rows.k[200 * 128 + 64] = 15.0;
  session.Append(rows);
  TokenRows query = Slice(model, rows, 0, 1);
  query.q[0] = 8.0;
  query.q[64] = 8.0;
  session.Decode(query);
  const RecallSample sample = Measure(engine.get()).value();
  EXPECT_GT(sample.mass_kept[0], 0.999999);
  EXPECT_NEAR(sample.mass_kept[1], 0.0, 1e-3);
  EXPECT_GT(sample.middle_kept[0], 0.999999);
  EXPECT_NEAR(sample.middle_kept[1], 8.0 / std::exp(15.0), 1e-7);
}

}  // namespace
}  // namespace longshore
