// Heads, sizes, dtypes, rotary tables and score rules: what a model may be.

#include <algorithm>
#include <numbers>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tests/conformance/conformance_case.h"

namespace longshore {
namespace {

constexpr int64_t kTrained = 512;

// Inside the trained length, then past it: every rotary style of SmallStandard.
const std::vector<CaseStep> kAcross = {{StepKind::kAppend, 460},
                                       {StepKind::kPrefill, 30},
                                       {StepKind::kDecode, 1, 36}};

ModelShape Heads(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim = 64) {
  ModelShape model = TestModel(num_heads, num_kv_heads, head_dim);
  model.rope_tables[0].trained_tokens = kTrained;
  return model;
}

ModelShape DTypes(DType query, DType kv) {
  ModelShape model = Heads(4, 2);
  model.query_dtype = query;
  model.kv_dtype = kv;
  return model;
}

ModelShape WithRope(const RopeSpec& rope) {
  ModelShape model = TestModel(4, 2);
  model.rope_tables = {rope};
  return model;
}

RopeSpec Turned(RopePairing pairing, int32_t rotary_dim, float attention_scaling = 1.0F) {
  RopeSpec rope = TestRope(rotary_dim, kTrained);
  rope.pairing = pairing;
  rope.attention_scaling = attention_scaling;
  return rope;
}

// Frequencies as models with extended contexts bring them: not a geometric series any more.
template <typename Factor>
ModelShape Scaled(Factor factor_of, float attention_scaling = 1.0F) {
  RopeSpec rope = Turned(RopePairing::kHalf, 64, attention_scaling);
  for (size_t pair = 0; pair < rope.inv_freq.size(); ++pair) {
    rope.inv_freq[pair] *= factor_of(rope.inv_freq[pair], static_cast<double>(pair));
  }
  return WithRope(rope);
}

// Llama 3: waves longer than 256 tokens are stretched 8 times, those under 64 not at all, in
// between a mixture.
double Llama3Factor(double inv_freq, double /*pair*/) {
  constexpr double kStretch = 8.0;
  const double waves = 256.0 * inv_freq / (2.0 * std::numbers::pi);  // in the original context
  const double kept = std::clamp((waves - 1.0) / (4.0 - 1.0), 0.0, 1.0);
  return (1.0 - kept) / kStretch + kept;
}

// YaRN: a ramp over pairs; the runner hands over 0.1 ln(stretch) + 1 as attention scaling.
double YarnFactor(double /*inv_freq*/, double pair) {
  const double interpolated = std::clamp((pair - 8.0) / 16.0, 0.0, 1.0);
  return interpolated / 4.0 + (1.0 - interpolated);
}

// LongRoPE: a searched factor for each pair.
double LongRopeFactor(double /*inv_freq*/, double pair) { return 1.0 / (1.0 + 0.37 * pair); }

ModelShape WithoutRope() {
  ModelShape model = TestModel(4, 2);
  model.rope_tables.clear();
  model.rope_tables.clear();
  model.layer_rope_table = {-1};
  return model;
}

ModelShape SoftCapped(float cap, float scale) {
  ModelShape model = Heads(4, 2);
  model.logit_soft_cap = cap;
  model.softmax_scale = scale;
  return model;
}

ModelShape WithSinks() {
  ModelShape model = Heads(4, 2);
  model.sink_logits = {6.0F, -2.0F, 0.0F, 9.0F};
  return model;
}

// Layers of other tables: trained lengths on both sides of the context, other sizes, none. Sinks
// that tell layers apart.
ModelShape FourLayers() {
  ModelShape model = TestModel(4, 2);
  model.num_layers = 4;
  model.rope_tables = {Turned(RopePairing::kHalf, 64), Turned(RopePairing::kInterleaved, 32, 1.2F)};
  model.rope_tables[1].trained_tokens = kNeverBeyond;
  model.layer_rope_table = {0, 1, -1, 0};
  model.layer_sliding_window.assign(4, 0);
  for (int32_t logit = 0; logit < 16; ++logit) {
    model.sink_logits.push_back(static_cast<float>(logit % 5) + 2.0F);
  }
  return model;
}

// Two layers with a policy of their own.
AttentionPolicy EarlyLayersDiffer() {
  AttentionPolicy policy = SmallStandard();
  for (PhasePolicy* phase : {&policy.prefill, &policy.decode}) {
    phase->first_layers = 2;
    phase->early = OneStage(4, 64, 8).decode.rest;
  }
  return policy;
}

// Each layer group with attention ids of its own.
AttentionPolicy EarlyLayersAttendAtOtherIds() {
  AttentionPolicy policy = EarlyLayersDiffer();
  const auto beyond = [](RopeStyle style) {
    return RopeChoice{.within_trained = RopeStyle::kTruePositions,
                      .beyond_trained = style,
                      .self_extend_group = 3,
                      .self_extend_neighbor_tokens = 100};
  };
  for (PhasePolicy* phase : {&policy.prefill, &policy.decode}) {
    phase->early.attention_rope = beyond(RopeStyle::kInfLlm);
    phase->rest.attention_rope = beyond(RopeStyle::kSelfExtend);
  }
  return policy;
}

std::vector<ConformanceCase> Sizes() {
  std::vector<ConformanceCase> cases;
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {3, 3}, {4, 2}, {4, 1}, {16, 1}}) {
    cases.push_back({.name = absl::StrCat("Heads", heads, "KvHeads", kv_heads),
                     .model = Heads(heads, kv_heads),
                     .steps = kAcross});
  }
  for (const int32_t head_dim : {80, 96, 128, 192, 256}) {
    cases.push_back({.name = absl::StrCat("HeadDim", head_dim),
                     .model = Heads(2, 1, head_dim),
                     .steps = kAcross});
  }
  for (const int32_t rows : {2, 3, 4, 5, 17, 33}) {
    cases.push_back({.name = absl::StrCat("DecodeOf", rows, "Rows"),
                     .model = Heads(4, 1),
                     .steps = {{StepKind::kAppend, 460}, {StepKind::kDecode, rows, 70 / rows}}});
  }
  for (const int32_t rows : {1, 2, 3, 17, 63}) {
    cases.push_back({.name = absl::StrCat("PrefillOf", rows, "Rows"),
                     .model = Heads(4, 1),
                     .steps = {{StepKind::kAppend, 460}, {StepKind::kPrefill, rows, 70 / rows}}});
  }
  return cases;
}

std::vector<ConformanceCase> Storage() {
  std::vector<ConformanceCase> cases;
  for (const DType query : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const DType kv : {DType::kF32, DType::kBf16, DType::kF16}) {
      cases.push_back({.name = absl::StrCat("Query_", NameOf(query), "_Kv_", NameOf(kv)),
                       .model = DTypes(query, kv),
                       .steps = kAcross});
    }
  }
  for (const auto& [query, kv] : {std::pair{DType::kF32, DType::kBf16},
                                  {DType::kBf16, DType::kF16},
                                  {DType::kF16, DType::kF32}}) {
    cases.push_back({.name = absl::StrCat("Converts_", NameOf(query), "_To_", NameOf(kv)),
                     .model = DTypes(query, kv),
                     .steps = kAcross,
                     .options = {.kv_in_query_dtype = true}});
  }
  return cases;
}

std::vector<ConformanceCase> Rotations() {
  return {
      {.name = "Interleaved",
       .model = WithRope(Turned(RopePairing::kInterleaved, 64)),
       .steps = kAcross},
      {.name = "Partial", .model = WithRope(Turned(RopePairing::kHalf, 32)), .steps = kAcross},
      {.name = "PartialInterleaved",
       .model = WithRope(Turned(RopePairing::kInterleaved, 16)),
       .steps = kAcross},
      {.name = "PartialOfAnOddNumberOfPairs",
       .model = WithRope(Turned(RopePairing::kHalf, 22)),
       .steps = kAcross},
      {.name = "OnePair",
       .model = WithRope(Turned(RopePairing::kInterleaved, 2)),
       .steps = kAcross},
      {.name = "AttentionScaling",
       .model = WithRope(Turned(RopePairing::kHalf, 64, 1.3F)),
       .steps = kAcross,
       .logit_size = 1.7},
      {.name = "AttentionScalingOfAPart",
       .model = WithRope(Turned(RopePairing::kInterleaved, 48, 0.8F)),
       .steps = kAcross},
      {.name = "Llama3", .model = Scaled(Llama3Factor), .steps = kAcross},
      {.name = "Yarn", .model = Scaled(YarnFactor, 1.1386F), .steps = kAcross, .logit_size = 1.3},
      {.name = "LongRope",
       .model = Scaled(LongRopeFactor, 1.19F),
       .steps = kAcross,
       .logit_size = 1.5},
      {.name = "WithoutRope", .model = WithoutRope(), .steps = kAcross},
  };
}

std::vector<ConformanceCase> Scores() {
  return {
      {.name = "SoftCap", .model = SoftCapped(2.0F, 0.125F), .steps = kAcross},
      {.name = "SoftCapOfLargeLogits",
       .model = SoftCapped(30.0F, 2.0F),
       .steps = kAcross,
       .logit_size = 16.0},
      {.name = "SmallScale", .model = SoftCapped(0.0F, 0.01F), .steps = kAcross},
      {.name = "LargeScale", .model = SoftCapped(0.0F, 1.0F), .steps = kAcross, .logit_size = 8.0},
      {.name = "HugeScale",  // logits of hundreds: nothing may overflow
       .model = SoftCapped(0.0F, 16.0F),
       .steps = kAcross,
       .logit_size = 128.0},
      {.name = "LearnedSinks", .model = WithSinks(), .steps = kAcross},
      {.name = "LearnedSinksLeftOut",
       .model = WithSinks(),
       .steps = kAcross,
       .options = {.exclude_sink_logits = true}},
      {.name = "LearnedSinksDense",
       .model = WithSinks(),
       .policy = SmallDense(),
       .steps = {{StepKind::kPrefill, 70}, {StepKind::kDecode, 1, 3}},
       .prunes = false},
      {.name = "WithoutLogSumExp", .options = {.log_sum_exp = false}},
  };
}

std::vector<ConformanceCase> Layers() {
  return {{.name = "FourLayers", .model = FourLayers(), .steps = kAcross},
          {.name = "EarlyLayersAttendAtOtherIds",
           .model = FourLayers(),
           .policy = EarlyLayersAttendAtOtherIds(),
           .steps = kAcross},
          {.name = "EarlyLayersDiffer",
           .model = FourLayers(),
           .policy = EarlyLayersDiffer(),
           .steps = kAcross}};
}

// As Gemma and gpt-oss mix them: layers with a window between layers without. Windows that end
// within a page, at its end, in one token, past the context.
ModelShape Sliding() {
  ModelShape model = FourLayers();
  model.layer_sliding_window = {100, 0, 128, 1};
  return model;
}

ModelShape SlidingAll(int64_t window, int32_t num_heads, int32_t num_kv_heads) {
  ModelShape model = Heads(num_heads, num_kv_heads);
  model.layer_sliding_window = {window};
  return model;
}

std::vector<ConformanceCase> SlidingWindows() {
  std::vector<ConformanceCase> cases = {
      {.name = "SlidingBetweenStaged", .model = Sliding(), .steps = kAcross},
      {.name = "SlidingBetweenDense",
       .model = Sliding(),
       .policy = SmallDense(),
       .steps = {{StepKind::kPrefill, 200}, {StepKind::kDecode, 1, 3}, {StepKind::kDecode, 5}},
       .prunes = false},
      {.name = "SlidingBetweenStreaming",
       .model = Sliding(),
       .policy = SmallStreaming(),
       .steps = {{StepKind::kPrefill, 300}, {StepKind::kDecode, 3, 3}},
       .prunes = false},
  };
  // Rows that see some keys of a tile, all, and none: of few rows (read from their pages) and many.
  for (const int64_t window : {1, 7, 63, 64, 65, 150, 1000}) {
    cases.push_back({.name = absl::StrCat("SlidingWindow", window),
                     .model = SlidingAll(window, 4, 2),
                     .steps = {{StepKind::kPrefill, 130},
                               {StepKind::kDecode, 1, 2},
                               {StepKind::kDecode, 7, 3},
                               {StepKind::kAppend, 90},
                               {StepKind::kPrefill, 40, 2}},
                     .prunes = false});
  }
  return cases;
}

LONGSHORE_CONFORMANCE_CASES(Sizes, Sizes());
LONGSHORE_CONFORMANCE_CASES(Storage, Storage());
LONGSHORE_CONFORMANCE_CASES(Rotations, Rotations());
LONGSHORE_CONFORMANCE_CASES(Scores, Scores());
LONGSHORE_CONFORMANCE_CASES(Layers, Layers());
LONGSHORE_CONFORMANCE_CASES(SlidingWindows, SlidingWindows());
LONGSHORE_GUARDED_CASES(Scores, Scores());
LONGSHORE_GUARDED_CASES(Layers, Layers());
LONGSHORE_GUARDED_CASES(SlidingWindows, SlidingWindows());

}  // namespace
}  // namespace longshore
