// Stages, budgets, regions and rotary styles: which tokens are attended, and at which ids.

#include "tests/conformance/conformance_case.h"

namespace longshore {
namespace {

constexpr int64_t kTrained = 512;

ModelShape TrainedTo(int64_t trained_tokens) {
  ModelShape model = TestModel();
  model.rope_tables[0].trained_tokens = trained_tokens;
  return model;
}

AttentionPolicy WithStride(AttentionPolicy policy, int32_t query_stride) {
  policy.query_stride = query_stride;
  return policy;
}

AttentionPolicy DenseBelow(int64_t tokens) {
  AttentionPolicy policy = SmallStandard();
  policy.dense_below_tokens = tokens;
  return policy;
}

AttentionPolicy ExtendedFromStart(AttentionPolicy policy) {
  policy.extension = Extension::kFromStart;
  return policy;
}

AttentionPolicy ThreeStages() {
  AttentionPolicy policy = SmallStandard();
  LayerPolicy layers = policy.decode.rest;
  layers.stages[0].refresh_steps = 12;
  PruningStage middle = layers.stages[1];
  middle.chunk_tokens = 16;
  middle.keep_tokens = 96;
  middle.refresh_steps = 6;
  layers.stages.insert(layers.stages.begin() + 1, middle);
  layers.stages[2].chunk_tokens = 2;
  layers.stages[2].keep_tokens = 34;
  layers.stages[2].refresh_steps = 2;
  SetLayers(layers, &policy);
  return policy;
}

// No sink, and a window of one token: the smallest regions that there are.
AttentionPolicy SmallestRegions() {
  AttentionPolicy policy = OneStage(1, 1, 1);
  policy.sink_tokens = 0;
  LayerPolicy layers = policy.decode.rest;
  layers.window_tokens = 1;
  SetLayers(layers, &policy);
  return policy;
}

AttentionPolicy DensePrefillPrunedDecode() {
  AttentionPolicy policy = SmallStandard();
  policy.prefill = SmallDense().prefill;
  return policy;
}

AttentionPolicy OtherStagesInPrefill() {
  AttentionPolicy policy = SmallStandard();
  policy.prefill = OneStage(8, 128, 1).prefill;
  return policy;
}

AttentionPolicy OtherWindowInPrefill(int64_t window_tokens) {
  AttentionPolicy policy = SmallStandard();
  policy.prefill.rest.window_tokens = window_tokens;
  return policy;
}

AttentionPolicy WithPruningRope(RopeStyle within, RopeStyle beyond) {
  AttentionPolicy policy = SmallStandard();
  LayerPolicy layers = policy.decode.rest;
  for (PruningStage& stage : layers.stages) {
    stage.rope.within_trained = within;
    stage.rope.beyond_trained = beyond;
  }
  SetLayers(layers, &policy);
  return policy;
}

AttentionPolicy WithAttentionRope(RopeStyle within, RopeStyle beyond) {
  AttentionPolicy policy = SmallStandard();
  policy.attention_rope.within_trained = within;
  policy.attention_rope.beyond_trained = beyond;
  return policy;
}

std::vector<ConformanceCase> Stages() {
  return {
      {.name = "Standard"},
      {.name = "StandardScoresEveryRow", .policy = WithStride(SmallStandard(), 1)},
      {.name = "StandardScoresTheLastRow", .policy = WithStride(SmallStandard(), 64)},
      {.name = "StandardStrideThatDoesNotDivide", .policy = WithStride(SmallStandard(), 5)},
      {.name = "ChunksOf1", .policy = OneStage(1, 64, 4)},
      {.name = "ChunksOf2", .policy = OneStage(2, 64, 4)},
      {.name = "ChunksOf4", .policy = OneStage(4, 64, 8)},
      {.name = "ChunksOf64", .policy = OneStage(64, 128, 8)},
      {.name = "ThreeStages", .policy = ThreeStages()},
      {.name = "SmallestRegions",
       .policy = SmallestRegions(),
       .steps = {{StepKind::kPrefill, 130}, {StepKind::kDecode, 1, 3}}},
      {.name = "DensePrefillPrunedDecode", .policy = DensePrefillPrunedDecode()},
      {.name = "OtherStagesInPrefill", .policy = OtherStagesInPrefill()},
      {.name = "ANarrowerWindowInPrefill", .policy = OtherWindowInPrefill(16)},
      {.name = "AWiderWindowInPrefill", .policy = OtherWindowInPrefill(300)},
      {.name = "ManyCandidates",  // more than a thread's range, more than a tile
       .policy = OneStage(1, 64, 2),
       .steps = {{StepKind::kAppend, 2300}, {StepKind::kDecode, 1, 4}}},
      {.name = "ManySummaries", .steps = {{StepKind::kAppend, 4900}, {StepKind::kDecode, 1, 4}}},
      {.name = "Dense",
       .policy = SmallDense(),
       .steps = {{StepKind::kPrefill, 200},
                 {StepKind::kAppend, 900},
                 {StepKind::kPrefill, 30},
                 {StepKind::kDecode, 1, 3}},
       .prunes = false},
      {.name = "Streaming",
       .policy = SmallStreaming(),
       .steps = {{StepKind::kPrefill, 400}, {StepKind::kDecode, 1, 8}},
       .prunes = false},
  };
}

std::vector<ConformanceCase> Lengths() {
  const std::vector<CaseStep> across = {{StepKind::kAppend, 440},
                                        {StepKind::kPrefill, 54},
                                        {StepKind::kDecode, 1, 30},
                                        {StepKind::kPrefill, 70},
                                        {StepKind::kDecode, 1, 10}};
  return {
      {.name = "BeyondFromTheStart", .model = TrainedTo(1)},
      {.name = "AcrossTheTrainedLength", .model = TrainedTo(kTrained), .steps = across},
      {.name = "AcrossTheTrainedLengthOneStage",
       .model = TrainedTo(kTrained),
       .policy = OneStage(4, 64, 8),
       .steps = across},
      {.name = "AcrossTheTrainedLengthDense",
       .model = TrainedTo(kTrained),
       .policy = SmallDense(),
       .steps = across,
       .prunes = false},
      {.name = "AcrossTheTrainedLengthStreaming",
       .model = TrainedTo(kTrained),
       .policy = SmallStreaming(),
       .steps = across,
       .prunes = false},
      {.name = "AcrossInTheMiddleOfABlock", .model = TrainedTo(500), .steps = across},
      {.name = "AcrossInAMultiRowDecode",
       .model = TrainedTo(kTrained),
       .steps = {{StepKind::kAppend, 500}, {StepKind::kDecode, 5, 8}}},
      {.name = "AcrossDenseBelow", .policy = DenseBelow(520), .steps = across},
      {.name = "DenseBelowEndsAtTheTrainedLength",
       .model = TrainedTo(kTrained),
       .policy = DenseBelow(8192),
       .steps = across},
      {.name = "ExtendedFromStart",
       .model = TrainedTo(kTrained),
       .policy = ExtendedFromStart(DenseBelow(8192)),
       .steps = across},
      {.name = "ExtendedFromStartFromNothing",
       .model = TrainedTo(kTrained),
       .policy = ExtendedFromStart(SmallStandard()),
       .steps = {{StepKind::kDecode, 1, 3},
                 {StepKind::kPrefill, 190},
                 {StepKind::kPrefill, 300},
                 {StepKind::kDecode, 1, 30}}},
      {.name = "ExtendedFromStartButFits",
       .model = TrainedTo(604),
       .policy = ExtendedFromStart(DenseBelow(520)),
       .steps = across},
      {.name = "ExtendedFromStartStreaming",
       .model = TrainedTo(kTrained),
       .policy = ExtendedFromStart(SmallStreaming()),
       .steps = across,
       .prunes = false},
      {.name = "RelativeWithin",
       .policy = WithPruningRope(RopeStyle::kRelative, RopeStyle::kRelative)},
      {.name = "TruePositionsBeyond",
       .model = TrainedTo(kTrained),
       .policy = WithPruningRope(RopeStyle::kTruePositions, RopeStyle::kTruePositions),
       .steps = across},
      {.name = "RelativeWithinTruePositionsBeyond",
       .model = TrainedTo(kTrained),
       .policy = WithPruningRope(RopeStyle::kRelative, RopeStyle::kTruePositions),
       .steps = across},
      {.name = "StreamingWithinTruePositionsBeyond",
       .model = TrainedTo(kTrained),
       .policy = WithAttentionRope(RopeStyle::kStreaming, RopeStyle::kTruePositions),
       .steps = across},
  };
}

LONGSHORE_CONFORMANCE_CASES(Stages, Stages());
LONGSHORE_CONFORMANCE_CASES(Lengths, Lengths());
LONGSHORE_GUARDED_CASES(Stages, Stages());

}  // namespace
}  // namespace longshore
