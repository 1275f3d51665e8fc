// Rotary styles of the whole method, while pruning and in attention, inside the trained length and
// past it.

#include <utility>

#include <absl/strings/str_cat.h>

#include "tests/conformance/conformance_case.h"

namespace longshore {
namespace {

constexpr int64_t kTrained = 512;

// Inside the trained length, then past it, in prefill and in decode; blocks that are cut.
const std::vector<CaseStep> kAcross = {{StepKind::kAppend, 440},   {StepKind::kPrefill, 54},
                                       {StepKind::kDecode, 1, 24}, {StepKind::kPrefill, 100},
                                       {StepKind::kDecode, 3, 5},  {StepKind::kDecode, 1, 6}};

ModelShape TrainedTo(int64_t trained_tokens) {
  ModelShape model = TestModel();
  model.rope_tables[0].trained_tokens = trained_tokens;
  return model;
}

struct NamedStyle {
  std::string name;
  RopeStyle style;
};

RopeChoice Choice(RopeStyle within, RopeStyle beyond) {
  return {.within_trained = within,
          .beyond_trained = beyond,
          .self_extend_group = 3,
          .self_extend_neighbor_tokens = 50};
}

PruningStage Stage(Selector selector,
                   int32_t chunk_tokens,
                   int32_t keep_tokens,
                   int32_t refresh_steps) {
  return {.selector = selector,
          .chunk_tokens = chunk_tokens,
          .keep_tokens = keep_tokens,
          .refresh_steps = refresh_steps,
          .rope = {},
          .probes = selector == Selector::kProbes ? 4 : 0};
}

AttentionPolicy WithStages(std::vector<PruningStage> stages, const RopeChoice& rope) {
  AttentionPolicy policy = OneStage(8, 64, 8);
  LayerPolicy layers = policy.decode.rest;
  layers.stages = std::move(stages);
  for (PruningStage& stage : layers.stages) stage.rope = rope;
  SetLayers(layers, &policy);
  return policy;
}

AttentionPolicy DescentThenExact(const RopeChoice& rope) {
  return WithStages({Stage(Selector::kDescent, 32, 192, 8), Stage(Selector::kExact, 8, 64, 4)},
                    rope);
}

const std::vector<NamedStyle> kPruningStyles = {
    {"TruePositions", RopeStyle::kTruePositions}, {"Relative", RopeStyle::kRelative},
    {"ChunkIndexed", RopeStyle::kChunkIndexed},   {"InfLlm", RopeStyle::kInfLlm},
    {"DynamicExtend", RopeStyle::kDynamicExtend}, {"SelfExtend", RopeStyle::kSelfExtend}};

std::vector<ConformanceCase> Pruning() {
  std::vector<ConformanceCase> cases;
  const auto add = [&](const std::string& name, const AttentionPolicy& policy, int64_t trained) {
    cases.push_back(
        {.name = name, .model = TrainedTo(trained), .policy = policy, .steps = kAcross});
  };
  for (const auto& [name, style] : kPruningStyles) {
    const RopeChoice rope = Choice(style, style);
    // In its own way on both sides of the trained length, coarse to fine.
    add(absl::StrCat("DescentAndExact", name), DescentThenExact(rope), kTrained);
    add(absl::StrCat("DescentTwice", name),
        WithStages({Stage(Selector::kDescent, 64, 256, 8), Stage(Selector::kDescent, 4, 64, 4)},
                   rope),
        kTrained);
    add(absl::StrCat("ProbesAndTokens", name),
        WithStages({Stage(Selector::kProbes, 16, 192, 8), Stage(Selector::kExact, 1, 32, 4)}, rope),
        kTrained);
    // Far past it, and the other way round.
    add(absl::StrCat("FarBeyond", name), DescentThenExact(Choice(RopeStyle::kTruePositions, style)),
        100);
    add(absl::StrCat("Within", name, "ElseTruePositions"),
        WithStages({Stage(Selector::kExact, 8, 64, 4)}, Choice(style, RopeStyle::kTruePositions)),
        kTrained);
  }
  for (const RopeStyle style : {RopeStyle::kRelative, RopeStyle::kInfLlm}) {
    add(absl::StrCat("Bounds", style == RopeStyle::kRelative ? "Relative" : "InfLlm"),
        WithStages({Stage(Selector::kBounds, 64, 192, 8), Stage(Selector::kExact, 8, 64, 4)},
                   Choice(style, style)),
        kTrained);
  }
  AttentionPolicy mixed =
      WithStages({Stage(Selector::kBounds, 64, 256, 16), Stage(Selector::kDescent, 16, 128, 8),
                  Stage(Selector::kExact, 4, 64, 4)},
                 {});
  LayerPolicy layers = mixed.decode.rest;
  layers.stages[0].rope = Choice(RopeStyle::kTruePositions, RopeStyle::kRelative);
  layers.stages[1].rope = Choice(RopeStyle::kSelfExtend, RopeStyle::kChunkIndexed);
  layers.stages[2].rope = Choice(RopeStyle::kInfLlm, RopeStyle::kDynamicExtend);
  SetLayers(layers, &mixed);
  add("EveryStageItsOwn", mixed, kTrained);
  return cases;
}

const std::vector<NamedStyle> kAttentionStyles = {{"TruePositions", RopeStyle::kTruePositions},
                                                  {"Streaming", RopeStyle::kStreaming},
                                                  {"InfLlm", RopeStyle::kInfLlm},
                                                  {"DynamicExtend", RopeStyle::kDynamicExtend},
                                                  {"SelfExtend", RopeStyle::kSelfExtend}};

AttentionPolicy Attending(AttentionPolicy policy, const RopeChoice& rope) {
  policy.attention_rope = rope;
  return policy;
}

AttentionPolicy FromStart(AttentionPolicy policy) {
  policy.extension = Extension::kFromStart;
  return policy;
}

std::vector<ConformanceCase> Attention() {
  std::vector<ConformanceCase> cases;
  const auto add = [&](const std::string& name, const AttentionPolicy& policy, int64_t trained) {
    cases.push_back(
        {.name = name, .model = TrainedTo(trained), .policy = policy, .steps = kAcross});
  };
  for (const auto& [name, style] : kAttentionStyles) {
    add(absl::StrCat(name, "OnBothSides"), Attending(OneStage(8, 64, 8), Choice(style, style)),
        kTrained);
    add(absl::StrCat(name, "FarBeyond"),
        Attending(SmallStandard(), Choice(RopeStyle::kTruePositions, style)), 100);
    add(absl::StrCat(name, "WithinElseTruePositions"),
        Attending(OneStage(1, 32, 4), Choice(style, RopeStyle::kTruePositions)), kTrained);
    add(absl::StrCat(name, "SinkAndWindow"), Attending(SmallStreaming(), Choice(style, style)),
        300);
    cases.back().prunes = false;
    // From the first token on: queries in the sink, no middle, then a window that is full.
    add(absl::StrCat(name, "FromTheStart"),
        FromStart(Attending(OneStage(8, 64, 8), Choice(RopeStyle::kTruePositions, style))),
        kTrained);
    cases.back().steps = {{StepKind::kDecode, 1, 3},
                          {StepKind::kPrefill, 197},
                          {StepKind::kPrefill, 330},
                          {StepKind::kDecode, 1, 10}};
    ConformanceCase& scaled = cases.emplace_back(cases.back());
    scaled.name = absl::StrCat(name, "AttentionScaling");
    scaled.model.rope_tables[0].attention_scaling = 1.3F;
    scaled.logit_size = 1.7;
    ConformanceCase& stored = cases.emplace_back(cases.back());
    stored.name = absl::StrCat(name, "In_bf16");
    stored.model = TrainedTo(kTrained);
    stored.model.kv_dtype = DType::kBf16;
  }
  return cases;
}

// Groups and neighborhoods of other sizes: none to group, one neighbor, more than there are tokens.
std::vector<ConformanceCase> SelfExtend() {
  std::vector<ConformanceCase> cases;
  for (const auto& [group, neighbors] :
       {std::pair{1, 64}, {2, 1}, {7, 200}, {64, 16}, {5000, 64}, {4, 100000}}) {
    RopeChoice rope = Choice(RopeStyle::kSelfExtend, RopeStyle::kSelfExtend);
    rope.self_extend_group = group;
    rope.self_extend_neighbor_tokens = neighbors;
    cases.push_back({.name = absl::StrCat("Group", group, "Neighbors", neighbors),
                     .model = TrainedTo(kTrained),
                     .policy = Attending(DescentThenExact(rope), rope),
                     .steps = kAcross});
  }
  return cases;
}

// Trained lengths whose quarter is no whole number, and ones that end within the window.
std::vector<ConformanceCase> DynamicExtend() {
  std::vector<ConformanceCase> cases;
  for (const int64_t trained : {200, 255, 301, 510, 600}) {
    const RopeChoice rope = Choice(RopeStyle::kDynamicExtend, RopeStyle::kDynamicExtend);
    cases.push_back({.name = absl::StrCat("TrainedTo", trained),
                     .model = TrainedTo(trained),
                     .policy = Attending(DescentThenExact(rope), rope),
                     .steps = kAcross});
  }
  return cases;
}

LONGSHORE_CONFORMANCE_CASES(PruningStyles, Pruning());
LONGSHORE_CONFORMANCE_CASES(AttentionStyles, Attention());
LONGSHORE_CONFORMANCE_CASES(SelfExtend, SelfExtend());
LONGSHORE_CONFORMANCE_CASES(DynamicExtend, DynamicExtend());

}  // namespace
}  // namespace longshore
