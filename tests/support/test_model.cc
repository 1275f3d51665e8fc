#include "tests/support/test_model.h"

#include <cmath>

#include "engine/core/math.h"

namespace longshore {
namespace {

constexpr RopeChoice kPruningRope = {.within_trained = RopeStyle::kTruePositions,
                                     .beyond_trained = RopeStyle::kRelative};
constexpr RopeChoice kAttentionRope = {.within_trained = RopeStyle::kTruePositions,
                                       .beyond_trained = RopeStyle::kStreaming};

AttentionPolicy MakePolicy(int64_t sink_tokens, const LayerPolicy& layers) {
  AttentionPolicy policy;
  policy.sink_tokens = sink_tokens;
  policy.query_stride = 4;
  policy.attention_rope = kAttentionRope;
  SetLayers(layers, &policy);
  return policy;
}

oracle::RopeStyle OracleStyle(RopeStyle style) {
  switch (style) {
    case RopeStyle::kTruePositions: return oracle::RopeStyle::kTruePositions;
    case RopeStyle::kRelative: return oracle::RopeStyle::kRelative;
    case RopeStyle::kChunkIndexed: return oracle::RopeStyle::kChunkIndexed;
    case RopeStyle::kInfLlm: return oracle::RopeStyle::kInfLlm;
    case RopeStyle::kDynamicExtend: return oracle::RopeStyle::kDynamicExtend;
    case RopeStyle::kSelfExtend: return oracle::RopeStyle::kSelfExtend;
    case RopeStyle::kStreaming: return oracle::RopeStyle::kStreaming;
  }
  LONGSHORE_CHECK(false);
}

oracle::Middle OracleMiddle(Middle middle) {
  switch (middle) {
    case Middle::kDense: return oracle::Middle::kDense;
    case Middle::kNone: return oracle::Middle::kNone;
    case Middle::kStages: return oracle::Middle::kStages;
  }
  LONGSHORE_CHECK(false);
}

oracle::Selector OracleSelector(Selector selector) {
  switch (selector) {
    case Selector::kBounds: return oracle::Selector::kBounds;
    case Selector::kExact: return oracle::Selector::kExact;
    case Selector::kDescent: return oracle::Selector::kDescent;
    case Selector::kProbes: return oracle::Selector::kProbes;
  }
  LONGSHORE_CHECK(false);
}

oracle::Ranking OracleRanking(Ranking ranking) {
  switch (ranking) {
    case Ranking::kProbability: return oracle::Ranking::kProbability;
    case Ranking::kProbabilitySum: return oracle::Ranking::kProbabilitySum;
    case Ranking::kProbabilityPower: return oracle::Ranking::kProbabilityPower;
    case Ranking::kScoreMax: return oracle::Ranking::kScoreMax;
  }
  LONGSHORE_CHECK(false);
}

// Zeros, where the style is not chosen, mean nothing.
oracle::SelfExtend OracleSelfExtend(const RopeChoice& rope) {
  return {.group = Max(1, rope.self_extend_group),
          .neighbor_tokens = rope.self_extend_neighbor_tokens};
}

oracle::Stage OracleStage(const PruningStage& stage) {
  return {.selector = OracleSelector(stage.selector),
          .chunk_tokens = stage.chunk_tokens,
          .keep_tokens = stage.keep_tokens,
          .refresh_steps = stage.refresh_steps,
          .query_block_tokens = stage.query_block,
          .rope_within = OracleStyle(stage.rope.within_trained),
          .rope_beyond = OracleStyle(stage.rope.beyond_trained),
          .self_extend = OracleSelfExtend(stage.rope),
          .representative = stage.representative == DescentRepresentative::kFirst
                                ? oracle::Representative::kFirst
                                : oracle::Representative::kMiddle,
          .descent_score = stage.descent_score == DescentScore::kFinal
                               ? oracle::DescentScore::kFinal
                               : oracle::DescentScore::kRunningMaximum,
          .probes = Max(1, stage.probes)};
}

}  // namespace

RopeSpec TestRope(int32_t rotary_dim, int64_t trained_tokens) {
  RopeSpec rope;
  for (int32_t dim = 0; dim < rotary_dim; dim += 2) {
    rope.inv_freq.push_back(std::pow(10000.0, -1.0 * dim / rotary_dim));
  }
  rope.trained_tokens = trained_tokens;
  return rope;
}

RopeSpec IdentityRope(int32_t rotary_dim, int64_t trained_tokens) {
  RopeSpec rope;
  rope.inv_freq.assign(static_cast<size_t>(rotary_dim) / 2, 0.0);
  rope.trained_tokens = trained_tokens;
  return rope;
}

ModelShape TestModel(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim) {
  ModelShape model;
  model.num_layers = 1;
  model.num_heads = num_heads;
  model.num_kv_heads = num_kv_heads;
  model.head_dim = head_dim;
  model.rope_tables = {TestRope(head_dim)};
  return *NormalizeModelShape(model);
}

AttentionPolicy SmallStandard() {
  return MakePolicy(64, {.middle = Middle::kStages,
                         .window_tokens = 128,
                         .stages = {{.selector = Selector::kBounds,
                                     .chunk_tokens = 64,
                                     .keep_tokens = 256,
                                     .refresh_steps = 16,
                                     .rope = kPruningRope},
                                    {.selector = Selector::kExact,
                                     .chunk_tokens = 8,
                                     .keep_tokens = 64,
                                     .refresh_steps = 4,
                                     .rope = kPruningRope}}});
}

AttentionPolicy OneStage(int32_t chunk_tokens, int32_t keep_tokens, int32_t refresh_steps) {
  return MakePolicy(64, {.middle = Middle::kStages,
                         .window_tokens = 64,
                         .stages = {{.selector = Selector::kExact,
                                     .chunk_tokens = chunk_tokens,
                                     .keep_tokens = keep_tokens,
                                     .refresh_steps = refresh_steps,
                                     .rope = kPruningRope}}});
}

AttentionPolicy SmallDense() {
  return MakePolicy(64, {.middle = Middle::kDense, .window_tokens = 128, .stages = {}});
}

AttentionPolicy SmallStreaming() {
  return MakePolicy(64, {.middle = Middle::kNone, .window_tokens = 128, .stages = {}});
}

void SetLayers(const LayerPolicy& layers, AttentionPolicy* policy) {
  policy->prefill.rest = layers;
  policy->decode.rest = layers;
}

oracle::Storage OracleStorage(DType dtype) {
  switch (dtype) {
    case DType::kF32: return oracle::Storage::kF32;
    case DType::kBf16: return oracle::Storage::kBf16;
    case DType::kF16: return oracle::Storage::kF16;
    case DType::kF8E4M3: break;
  }
  LONGSHORE_CHECK(false);
}

oracle::Model OracleModel(const ModelShape& model, int32_t layer) {
  oracle::Model told = {.heads = model.num_heads,
                        .kv_heads = model.num_kv_heads,
                        .head_dim = model.head_dim,
                        .scale = double{model.softmax_scale},
                        .soft_cap = double{model.logit_soft_cap},
                        .sliding_window = model.SlidingWindow(layer),
                        .kv_dtype = OracleStorage(model.kv_dtype)};
  if (!model.sink_logits.empty()) {
    const auto first = model.sink_logits.begin() + int64_t{layer} * model.num_heads;
    told.sink_logits.assign(first, first + model.num_heads);
  }
  if (const RopeSpec* rope = model.RopeOf(layer); rope != nullptr) {
    told.rope.rotary_dim = static_cast<int>(rope->inv_freq.size() * 2);
    told.rope.pairing = rope->pairing == RopePairing::kHalf ? oracle::Pairing::kHalf
                                                            : oracle::Pairing::kInterleaved;
    told.rope.inv_freq = rope->inv_freq;
    told.rope.attention_scaling = double{rope->attention_scaling};
    told.rope.trained_tokens = rope->trained_tokens;
  }
  return told;
}

oracle::Policy OraclePolicy(const AttentionPolicy& policy, Phase phase, int32_t layer) {
  const LayerPolicy& layers = policy.Of(phase, layer);
  const RopeChoice attention = policy.AttentionRopeOf(layers);
  oracle::Policy told = {.middle = OracleMiddle(layers.middle),
                         .sink_tokens = policy.sink_tokens,
                         .window_tokens = layers.window_tokens,
                         .dense_below_tokens = policy.dense_below_tokens,
                         .query_block_tokens = policy.query_block,
                         .query_stride = policy.query_stride,
                         .ranking = OracleRanking(policy.ranking),
                         .probability_power = double{policy.probability_power},
                         .rope_within = OracleStyle(attention.within_trained),
                         .rope_beyond = OracleStyle(attention.beyond_trained),
                         .self_extend = OracleSelfExtend(attention)};
  for (const PruningStage& stage : layers.stages) {
    told.stages.push_back(OracleStage(stage));
  }
  return told;
}

}  // namespace longshore
