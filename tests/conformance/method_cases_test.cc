// Selectors and rankings of the whole method: descent, probes, and what merges heads and rows.

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tests/conformance/conformance_case.h"

namespace longshore {
namespace {

constexpr int64_t kTrained = 512;

// Inside the trained length, then past it, in prefill and in decode.
const std::vector<CaseStep> kAcross = {{StepKind::kAppend, 440},
                                       {StepKind::kPrefill, 54},
                                       {StepKind::kDecode, 1, 24},
                                       {StepKind::kPrefill, 70},
                                       {StepKind::kDecode, 3, 5}};

ModelShape TwoKvHeads(int64_t trained_tokens = kTrained) {
  ModelShape model = TestModel(4, 2);
  model.rope_tables[0].trained_tokens = trained_tokens;
  return model;
}

// Integers, no turns and a scale that is a power of two: with score_max every score is exact,
// however many heads and rows there are, and so is every branch of a descent.
ConformanceCase Exact(const std::string& name, AttentionPolicy policy) {
  ModelShape model = TestModel(4, 2);
  model.softmax_scale = 0.125F;
  model.rope_tables = {IdentityRope(64, kTrained)};
  policy.ranking = Ranking::kScoreMax;
  return {.name = absl::StrCat("Exact", name),
          .model = model,
          .policy = std::move(policy),
          .steps = kAcross,
          .values = ValueKind::kIntegers,
          .logit_size = 7.0,
          .exact_selection = true};
}

PruningStage StageOf(Selector selector, int32_t chunk_tokens) {
  PruningStage stage;
  stage.selector = selector;
  stage.chunk_tokens = chunk_tokens;
  return stage;
}

// One stage that keeps a third of about 400 tokens. The sink is whole chunks, about a page.
AttentionPolicy OneStageOf(PruningStage stage) {
  stage.keep_tokens = std::max(128 / stage.chunk_tokens, 1) * stage.chunk_tokens;
  stage.refresh_steps = 8;
  stage.rope = {.within_trained = RopeStyle::kTruePositions,
                .beyond_trained = RopeStyle::kRelative};
  AttentionPolicy policy = OneStage(8, 64, 8);
  policy.sink_tokens = int64_t{std::max(64 / stage.chunk_tokens, 1)} * stage.chunk_tokens;
  LayerPolicy layers = policy.decode.rest;
  layers.stages = {stage};
  SetLayers(layers, &policy);
  return policy;
}

AttentionPolicy Descent(int32_t chunk_tokens,
                        DescentRepresentative representative = DescentRepresentative::kFirst,
                        DescentScore score = DescentScore::kFinal) {
  PruningStage stage = StageOf(Selector::kDescent, chunk_tokens);
  stage.representative = representative;
  stage.descent_score = score;
  return OneStageOf(stage);
}

AttentionPolicy Probes(int32_t chunk_tokens, int32_t probes) {
  PruningStage stage = StageOf(Selector::kProbes, chunk_tokens);
  stage.probes = probes;
  return OneStageOf(stage);
}

// Chunks of 96 and more need a longer context to have something to choose from.
std::vector<CaseStep> StepsOf(int32_t chunk_tokens) {
  if (chunk_tokens < 96) return kAcross;
  return {{StepKind::kAppend, 1050}, {StepKind::kPrefill, 70}, {StepKind::kDecode, 1, 18}};
}

std::vector<ConformanceCase> Descents() {
  std::vector<ConformanceCase> cases;
  const auto add = [&](const std::string& name, int32_t chunk, const AttentionPolicy& policy) {
    cases.push_back({.name = name, .model = TwoKvHeads(), .policy = policy});
    cases.push_back(Exact(name, policy));
    for (size_t last = cases.size() - 2; last < cases.size(); ++last) {
      cases[last].steps = StepsOf(chunk);
    }
  };
  for (const int32_t chunk : {1, 2, 3, 4, 8, 16, 24, 32, 64, 96, 256}) {
    add(absl::StrCat("ChunksOf", chunk), chunk, Descent(chunk));
  }
  for (const int32_t chunk : {2, 5, 8, 32, 256}) {
    using enum DescentRepresentative;
    using enum DescentScore;
    add(absl::StrCat("MiddleOfChunksOf", chunk), chunk, Descent(chunk, kMiddle));
    add(absl::StrCat("RunningMaximumOfChunksOf", chunk), chunk,
        Descent(chunk, kFirst, kRunningMaximum));
    add(absl::StrCat("MiddleAndRunningMaximumOfChunksOf", chunk), chunk,
        Descent(chunk, kMiddle, kRunningMaximum));
  }
  return cases;
}

std::vector<ConformanceCase> ProbesOfChunks() {
  std::vector<ConformanceCase> cases;
  for (const int32_t probes : {1, 2, 4, 8}) {
    for (const int32_t chunk : {8, 12, 16, 32, 64, 256}) {
      const std::string name = absl::StrCat(probes, "Of", chunk);
      cases.push_back({.name = name,
                       .model = TwoKvHeads(),
                       .policy = Probes(chunk, probes),
                       .steps = StepsOf(chunk)});
      if (chunk == 12 || chunk == 32) cases.push_back(Exact(name, Probes(chunk, probes)));
    }
  }
  for (const auto& [probes, chunk] : {std::pair{1, 1}, {2, 2}, {2, 3}, {64, 64}, {16, 96}}) {
    cases.push_back({.name = absl::StrCat(probes, "Of", chunk),
                     .model = TwoKvHeads(),
                     .policy = Probes(chunk, probes),
                     .steps = StepsOf(chunk)});
  }
  return cases;
}

// Scored rows, equal keys, and storage in 16 bits, where branches often are near ties.
std::vector<ConformanceCase> Rows() {
  std::vector<ConformanceCase> cases;
  for (const int32_t stride : {1, 5, 64}) {
    AttentionPolicy policy = Descent(32);
    policy.query_stride = stride;
    cases.push_back({.name = absl::StrCat("DescentOfEvery", stride),
                     .model = TwoKvHeads(),
                     .policy = policy,
                     .steps = kAcross});
    cases.push_back(Exact(absl::StrCat("DescentOfEvery", stride), policy));
  }
  for (const DType kv : {DType::kBf16, DType::kF16}) {
    for (const auto& [name, policy] :
         {std::pair{"Descent", Descent(32)}, {"Probes", Probes(16, 4)}}) {
      ModelShape model = TwoKvHeads();
      model.kv_dtype = kv;
      cases.push_back({.name = absl::StrCat(name, "In_", NameOf(kv)),
                       .model = model,
                       .policy = policy,
                       .steps = kAcross});
    }
  }
  for (const auto& [name, policy] :
       {std::pair{"Descent", Descent(16)}, {"Probes", Probes(16, 4)}}) {
    cases.push_back(Exact(absl::StrCat(name, "OfEqualKeys"), policy));
    cases.back().values = ValueKind::kEqualKeys;
  }
  ModelShape scaled = TwoKvHeads();
  scaled.rope_tables[0].attention_scaling = 1.3F;
  cases.push_back({.name = "DescentAttentionScaling",
                   .model = scaled,
                   .policy = Descent(32),
                   .steps = kAcross,
                   .logit_size = 1.7});
  ModelShape capped = TwoKvHeads();
  capped.logit_soft_cap = 2.0F;
  cases.push_back(
      {.name = "DescentSoftCap", .model = capped, .policy = Descent(32), .steps = kAcross});
  return cases;
}

struct NamedRanking {
  std::string name;
  Ranking ranking;
  float power = 1.0F;
};

std::vector<ConformanceCase> Rankings() {
  std::vector<ConformanceCase> cases;
  for (const NamedRanking& ranking : {NamedRanking{"ProbabilitySum", Ranking::kProbabilitySum},
                                      {"PowerOf1", Ranking::kProbabilityPower, 1.0F},
                                      {"PowerOf2", Ranking::kProbabilityPower, 2.0F},
                                      {"PowerOf4", Ranking::kProbabilityPower, 4.0F},
                                      {"PowerOf2AndAHalf", Ranking::kProbabilityPower, 2.5F},
                                      {"PowerOf300", Ranking::kProbabilityPower, 300.0F},
                                      {"ScoreMax", Ranking::kScoreMax}}) {
    for (const auto& [name, base] : {std::pair{"Standard", SmallStandard()},
                                     {"Tokens", OneStage(1, 64, 4)},
                                     {"Descent", Descent(32)}}) {
      AttentionPolicy policy = base;
      policy.ranking = ranking.ranking;
      policy.probability_power = ranking.power;
      cases.push_back({.name = absl::StrCat(name, ranking.name),
                       .model = TwoKvHeads(),
                       .policy = policy,
                       .steps = kAcross});
    }
  }
  ModelShape capped = TwoKvHeads();
  capped.logit_soft_cap = 2.0F;
  for (const Ranking ranking : {Ranking::kProbabilitySum, Ranking::kScoreMax}) {
    AttentionPolicy policy = SmallStandard();
    policy.ranking = ranking;
    const std::string name = ranking == Ranking::kScoreMax ? "ScoreMax" : "ProbabilitySum";
    cases.push_back({.name = absl::StrCat(name, "SoftCap"),
                     .model = capped,
                     .policy = policy,
                     .steps = kAcross});
    ConformanceCase& large = cases.emplace_back(cases.back());  // logits of hundreds
    large.name = absl::StrCat(name, "HugeScale");
    large.model = TwoKvHeads();
    large.model.softmax_scale = 16.0F;
    large.logit_size = 128.0;
  }
  cases.push_back(Exact("Standard", SmallStandard()));
  cases.push_back(Exact("Tokens", OneStage(1, 64, 4)));
  return cases;
}

PruningStage DescentStage(int32_t chunk_tokens,
                          int32_t keep_tokens,
                          int32_t refresh_steps,
                          RopeStyle style) {
  return {.selector = Selector::kDescent,
          .chunk_tokens = chunk_tokens,
          .keep_tokens = keep_tokens,
          .refresh_steps = refresh_steps,
          .rope = {.within_trained = style, .beyond_trained = style}};
}

LayerPolicy PaperLayers(int32_t keep_tokens, RopeStyle style) {
  return {.middle = Middle::kStages,
          .window_tokens = 64,
          .stages = {DescentStage(64, 256, 16, style), DescentStage(16, 128, 8, style),
                     DescentStage(4, keep_tokens, 4, style)}};
}

// `paper-3k` on a small scale: early layers differ in their budget and their rotary style.
AttentionPolicy Paper3k() {
  AttentionPolicy policy = OneStage(8, 64, 8);
  policy.ranking = Ranking::kScoreMax;
  policy.query_stride = 1;
  for (PhasePolicy* phase : {&policy.prefill, &policy.decode}) {
    phase->rest = PaperLayers(32, RopeStyle::kRelative);
    phase->first_layers = 2;
    phase->early = PaperLayers(64, RopeStyle::kChunkIndexed);
  }
  return policy;
}

// `paper-3k-5k`: decode keeps more than prefill, and has a wider window.
AttentionPolicy Paper3k5k() {
  AttentionPolicy policy = Paper3k();
  policy.decode.rest = PaperLayers(96, RopeStyle::kRelative);
  policy.decode.early.window_tokens = 128;
  return policy;
}

// `paper-16k`: one stage, and a wide window in early layers.
AttentionPolicy Paper16k() {
  AttentionPolicy policy = Paper3k();
  for (PhasePolicy* phase : {&policy.prefill, &policy.decode}) {
    phase->rest.stages = {DescentStage(32, 128, 8, RopeStyle::kRelative)};
    phase->early.stages = {DescentStage(32, 128, 8, RopeStyle::kChunkIndexed)};
    phase->early.window_tokens = 256;
  }
  return policy;
}

ModelShape ThreeLayers(ModelShape model) {
  model.num_layers = 3;
  model.layer_rope_table.assign(3, 0);
  model.layer_sliding_window.assign(3, 0);
  return model;
}

std::vector<ConformanceCase> Papers() {
  std::vector<ConformanceCase> cases;
  for (const auto& [name, policy] :
       {std::pair{"Paper3k", Paper3k()}, {"Paper3k5k", Paper3k5k()}, {"Paper16k", Paper16k()}}) {
    cases.push_back(
        {.name = name, .model = ThreeLayers(TwoKvHeads()), .policy = policy, .steps = kAcross});
    cases.push_back(Exact(name, policy));
    cases.back().model = ThreeLayers(cases.back().model);
  }
  return cases;
}

// Whole query blocks, all rows scored, and single rows, with every number of heads that share keys.
std::vector<ConformanceCase> WholeBlocks() {
  std::vector<ConformanceCase> cases;
  const auto add = [&](const std::string& name, ModelShape model, const AttentionPolicy& policy) {
    model.rope_tables[0].trained_tokens = kTrained;
    cases.push_back(
        {.name = name,
         .model = ThreeLayers(std::move(model)),
         .policy = policy,
         .steps = {
             {StepKind::kAppend, 440}, {StepKind::kPrefill, 140}, {StepKind::kDecode, 1, 2}}});
  };
  for (const int32_t heads : {1, 2, 3, 5, 8}) {
    add(absl::StrCat("HeadsOfOne", heads), TestModel(heads, 1), Paper3k());
  }
  add("HeadsOf128", TestModel(4, 1, 128), Paper3k());
  ModelShape interleaved = TestModel(4, 1);
  interleaved.rope_tables[0].pairing = RopePairing::kInterleaved;
  add("Interleaved", interleaved, Paper3k());
  for (const Ranking ranking : {Ranking::kProbability, Ranking::kProbabilitySum}) {
    AttentionPolicy policy = Paper3k();
    policy.ranking = ranking;
    add(ranking == Ranking::kProbability ? "Probability" : "ProbabilitySum", TwoKvHeads(), policy);
  }
  cases.push_back(Exact("HeadsOf128", Paper3k()));
  ModelShape exact = TestModel(4, 1, 128);
  exact.softmax_scale = 0.125F;
  exact.rope_tables = {IdentityRope(128, kTrained)};
  cases.back().model = ThreeLayers(exact);
  cases.back().steps = cases.front().steps;
  cases.back().logit_size = 14.0;
  return cases;
}

LONGSHORE_CONFORMANCE_CASES(Descents, Descents());
LONGSHORE_CONFORMANCE_CASES(WholeBlockDescents, WholeBlocks());
LONGSHORE_CONFORMANCE_CASES(Probes, ProbesOfChunks());
LONGSHORE_CONFORMANCE_CASES(MethodRows, Rows());
LONGSHORE_CONFORMANCE_CASES(Rankings, Rankings());
LONGSHORE_CONFORMANCE_CASES(Papers, Papers());

}  // namespace
}  // namespace longshore
