#include "service/convert_policy.h"

#include <array>
#include <string>
#include <utility>

#include <absl/strings/escaping.h>
#include <absl/strings/str_join.h>

#include "engine/core/error.h"

namespace longshore {
namespace {

// One table an enum: wire value, engine value. Both directions read it.
template <typename Wire, typename Ours, size_t N>
using EnumTable = std::array<std::pair<Wire, Ours>, N>;

constexpr EnumTable<v1::Selector, Selector, 4> kSelectors = {{
    {v1::SELECTOR_BOUNDS, Selector::kBounds},
    {v1::SELECTOR_EXACT, Selector::kExact},
    {v1::SELECTOR_DESCENT, Selector::kDescent},
    {v1::SELECTOR_PROBES, Selector::kProbes},
}};
constexpr EnumTable<v1::Ranking, Ranking, 4> kRankings = {{
    {v1::RANKING_PROBABILITY, Ranking::kProbability},
    {v1::RANKING_PROBABILITY_SUM, Ranking::kProbabilitySum},
    {v1::RANKING_PROBABILITY_POWER, Ranking::kProbabilityPower},
    {v1::RANKING_SCORE_MAX, Ranking::kScoreMax},
}};
constexpr EnumTable<v1::Extension, Extension, 2> kExtensions = {{
    {v1::EXTENSION_AT_TRAINED_LENGTH, Extension::kAtTrainedLength},
    {v1::EXTENSION_FROM_START, Extension::kFromStart},
}};
constexpr EnumTable<v1::RopeStyle, RopeStyle, 7> kRopeStyles = {{
    {v1::ROPE_STYLE_TRUE_POSITIONS, RopeStyle::kTruePositions},
    {v1::ROPE_STYLE_RELATIVE, RopeStyle::kRelative},
    {v1::ROPE_STYLE_CHUNK_INDEXED, RopeStyle::kChunkIndexed},
    {v1::ROPE_STYLE_INFLLM, RopeStyle::kInfLlm},
    {v1::ROPE_STYLE_DYNAMIC_EXTEND, RopeStyle::kDynamicExtend},
    {v1::ROPE_STYLE_SELF_EXTEND, RopeStyle::kSelfExtend},
    {v1::ROPE_STYLE_STREAMING, RopeStyle::kStreaming},
}};
constexpr EnumTable<v1::Middle, Middle, 3> kMiddles = {{
    {v1::MIDDLE_DENSE, Middle::kDense},
    {v1::MIDDLE_NONE, Middle::kNone},
    {v1::MIDDLE_STAGES, Middle::kStages},
}};
constexpr EnumTable<v1::DescentParams::Representative, DescentRepresentative, 2> kRepresentatives =
    {{
        {v1::DescentParams::REPRESENTATIVE_FIRST, DescentRepresentative::kFirst},
        {v1::DescentParams::REPRESENTATIVE_MIDDLE, DescentRepresentative::kMiddle},
    }};
constexpr EnumTable<v1::DescentParams::Score, DescentScore, 2> kDescentScores = {{
    {v1::DescentParams::SCORE_FINAL, DescentScore::kFinal},
    {v1::DescentParams::SCORE_RUNNING_MAXIMUM, DescentScore::kRunningMaximum},
}};

template <typename Wire, typename Ours, size_t N>
absl::StatusOr<Ours> FromWire(const EnumTable<Wire, Ours, N>& table,
                              Wire value,
                              absl::string_view field) {
  for (const auto& [wire, ours] : table) {
    if (wire == value) {
      return ours;
    }
  }
  if (static_cast<int>(value) == 0) {
    return InvalidField(field, "is not set");
  }
  return InvalidField(field, static_cast<int>(value), " is not one of its values");
}

template <typename Wire, typename Ours, size_t N>
Wire ToWire(const EnumTable<Wire, Ours, N>& table, Ours value) {
  for (const auto& [wire, ours] : table) {
    if (ours == value) {
      return wire;
    }
  }
  return static_cast<Wire>(0);
}

absl::StatusOr<RopeChoice> RopeFromWire(const v1::RopeChoice& wire, absl::string_view field) {
  RopeChoice rope;
  ASSIGN_OR_RETURN(rope.within_trained, FromWire(kRopeStyles, wire.within_trained(),
                                                 absl::StrCat(field, ".within_trained")));
  ASSIGN_OR_RETURN(rope.beyond_trained, FromWire(kRopeStyles, wire.beyond_trained(),
                                                 absl::StrCat(field, ".beyond_trained")));
  rope.self_extend_group = wire.self_extend_group();
  rope.self_extend_neighbor_tokens = wire.self_extend_neighbor_tokens();
  return rope;
}

// Parameters of another selector than the stage's are refused, not ignored.
absl::Status SelectorParamsFromWire(const v1::Stage& wire,
                                    absl::string_view field,
                                    PruningStage* stage) {
  if (wire.has_descent()) {
    const std::string descent = absl::StrCat(field, ".descent");
    if (stage->selector != Selector::kDescent) {
      return InvalidField(descent, "is set, and selector is ", v1::Selector_Name(wire.selector()),
                          ", not SELECTOR_DESCENT");
    }
    ASSIGN_OR_RETURN(stage->representative,
                     FromWire(kRepresentatives, wire.descent().representative(),
                              absl::StrCat(descent, ".representative")));
    ASSIGN_OR_RETURN(stage->descent_score, FromWire(kDescentScores, wire.descent().score(),
                                                    absl::StrCat(descent, ".score")));
  }
  if (wire.has_probes()) {
    if (stage->selector != Selector::kProbes) {
      return InvalidField(absl::StrCat(field, ".probes"), "is set, and selector is ",
                          v1::Selector_Name(wire.selector()), ", not SELECTOR_PROBES");
    }
    stage->probes = wire.probes().probes();
  }
  return absl::OkStatus();
}

absl::StatusOr<PruningStage> StageFromWire(const v1::Stage& wire, absl::string_view field) {
  PruningStage stage;
  ASSIGN_OR_RETURN(stage.selector,
                   FromWire(kSelectors, wire.selector(), absl::StrCat(field, ".selector")));
  stage.chunk_tokens = wire.chunk_tokens();
  stage.keep_tokens = wire.keep_tokens();
  stage.refresh_steps = wire.refresh_steps();
  stage.query_block = wire.query_block();
  ASSIGN_OR_RETURN(stage.rope, RopeFromWire(wire.rope(), absl::StrCat(field, ".rope")));
  RETURN_IF_ERROR(SelectorParamsFromWire(wire, field, &stage));
  return stage;
}

absl::StatusOr<LayerPolicy> LayerFromWire(const v1::LayerPolicy& wire, absl::string_view field) {
  LayerPolicy layer;
  ASSIGN_OR_RETURN(layer.middle, FromWire(kMiddles, wire.middle(), absl::StrCat(field, ".middle")));
  layer.window_tokens = wire.window_tokens();
  for (int index = 0; index < wire.stages_size(); ++index) {
    ASSIGN_OR_RETURN(
        PruningStage stage,
        StageFromWire(wire.stages(index), absl::StrCat(field, ".stages[", index, "]")));
    layer.stages.push_back(stage);
  }
  if (wire.has_attention_rope()) {
    ASSIGN_OR_RETURN(layer.attention_rope,
                     RopeFromWire(wire.attention_rope(), absl::StrCat(field, ".attention_rope")));
  }
  return layer;
}

absl::StatusOr<PhasePolicy> PhaseFromWire(const v1::PhasePolicy& wire, absl::string_view field) {
  PhasePolicy phase;
  ASSIGN_OR_RETURN(phase.rest, LayerFromWire(wire.rest(), absl::StrCat(field, ".rest")));
  phase.first_layers = wire.first_layers();
  if (phase.first_layers > 0) {
    ASSIGN_OR_RETURN(phase.early, LayerFromWire(wire.early(), absl::StrCat(field, ".early")));
  } else if (wire.has_early()) {
    return InvalidField(absl::StrCat(field, ".early"), "is set, and first_layers is ",
                        wire.first_layers());
  }
  return phase;
}

absl::StatusOr<AttentionPolicy> FullPolicyFromWire(const v1::AttentionPolicy& wire) {
  AttentionPolicy policy;
  policy.sink_tokens = wire.sink_tokens();
  ASSIGN_OR_RETURN(policy.ranking, FromWire(kRankings, wire.ranking(), "ranking"));
  if (policy.ranking == Ranking::kProbabilityPower) {
    policy.probability_power = wire.probability_power();
  }
  policy.query_block = wire.query_block();
  policy.query_stride = wire.query_stride();
  policy.dense_below_tokens = wire.dense_below_tokens();
  ASSIGN_OR_RETURN(policy.attention_rope, RopeFromWire(wire.attention_rope(), "attention_rope"));
  ASSIGN_OR_RETURN(policy.extension, FromWire(kExtensions, wire.extension(), "extension"));
  ASSIGN_OR_RETURN(policy.prefill, PhaseFromWire(wire.prefill(), "prefill"));
  ASSIGN_OR_RETURN(policy.decode, PhaseFromWire(wire.decode(), "decode"));
  return policy;
}

absl::StatusOr<AttentionPolicy> PresetFromWire(const v1::PolicySpec& spec) {
  absl::StatusOr<AttentionPolicy> policy = PresetPolicy(spec.preset());
  if (!policy.ok()) {
    return InvalidField("preset", "\"", absl::CHexEscape(spec.preset().substr(0, 64)),
                        "\" is not one of ", absl::StrJoin(PresetNames(), ", "));
  }
  if (spec.has_dense_below_tokens()) {
    policy->dense_below_tokens = spec.dense_below_tokens();
  }
  return policy;
}

absl::StatusOr<AttentionPolicy> SpecFromWire(const v1::PolicySpec& spec) {
  switch (spec.spec_case()) {
    case v1::PolicySpec::kPreset: {
      ASSIGN_OR_RETURN(AttentionPolicy policy, PresetFromWire(spec));
      RETURN_IF_ERROR(ValidatePolicy(policy));
      return policy;
    }
    case v1::PolicySpec::kPolicy: {
      if (spec.has_dense_below_tokens()) {
        return InvalidField("dense_below_tokens", "goes with a preset: set it in policy");
      }
      absl::StatusOr<AttentionPolicy> policy = FullPolicyFromWire(spec.policy());
      const absl::Status status = policy.ok() ? ValidatePolicy(*policy) : policy.status();
      if (!status.ok()) {
        return PrefixField("policy.", status);
      }
      return policy;
    }
    case v1::PolicySpec::SPEC_NOT_SET: break;
  }
  return InvalidField("preset", "is missing: set preset or policy");
}

v1::RopeChoice RopeToWire(const RopeChoice& rope) {
  v1::RopeChoice wire;
  wire.set_within_trained(ToWire(kRopeStyles, rope.within_trained));
  wire.set_beyond_trained(ToWire(kRopeStyles, rope.beyond_trained));
  wire.set_self_extend_group(rope.self_extend_group);
  wire.set_self_extend_neighbor_tokens(rope.self_extend_neighbor_tokens);
  return wire;
}

v1::Stage StageToWire(const PruningStage& stage) {
  v1::Stage wire;
  wire.set_selector(ToWire(kSelectors, stage.selector));
  wire.set_chunk_tokens(stage.chunk_tokens);
  wire.set_keep_tokens(stage.keep_tokens);
  wire.set_refresh_steps(stage.refresh_steps);
  wire.set_query_block(stage.query_block);
  *wire.mutable_rope() = RopeToWire(stage.rope);
  if (stage.selector == Selector::kDescent) {
    wire.mutable_descent()->set_representative(ToWire(kRepresentatives, stage.representative));
    wire.mutable_descent()->set_score(ToWire(kDescentScores, stage.descent_score));
  }
  if (stage.selector == Selector::kProbes) {
    wire.mutable_probes()->set_probes(stage.probes);
  }
  return wire;
}

v1::LayerPolicy LayerToWire(const LayerPolicy& layer) {
  v1::LayerPolicy wire;
  wire.set_middle(ToWire(kMiddles, layer.middle));
  wire.set_window_tokens(layer.window_tokens);
  for (const PruningStage& stage : layer.stages) {
    *wire.add_stages() = StageToWire(stage);
  }
  if (layer.attention_rope.has_value()) {
    *wire.mutable_attention_rope() = RopeToWire(*layer.attention_rope);
  }
  return wire;
}

v1::PhasePolicy PhaseToWire(const PhasePolicy& phase) {
  v1::PhasePolicy wire;
  *wire.mutable_rest() = LayerToWire(phase.rest);
  wire.set_first_layers(phase.first_layers);
  if (phase.first_layers > 0) {
    *wire.mutable_early() = LayerToWire(phase.early);
  }
  return wire;
}

}  // namespace

absl::StatusOr<AttentionPolicy> PolicyFromWire(const v1::PolicySpec& spec,
                                               absl::string_view field) {
  absl::StatusOr<AttentionPolicy> policy = SpecFromWire(spec);
  if (!policy.ok()) {
    return PrefixField(absl::StrCat(field, "."), policy.status());
  }
  return policy;
}

v1::AttentionPolicy PolicyToWire(const AttentionPolicy& policy) {
  v1::AttentionPolicy wire;
  wire.set_sink_tokens(policy.sink_tokens);
  wire.set_ranking(ToWire(kRankings, policy.ranking));
  if (policy.ranking == Ranking::kProbabilityPower) {
    wire.set_probability_power(policy.probability_power);
  }
  wire.set_query_block(policy.query_block);
  wire.set_query_stride(policy.query_stride);
  wire.set_dense_below_tokens(policy.dense_below_tokens);
  *wire.mutable_attention_rope() = RopeToWire(policy.attention_rope);
  wire.set_extension(ToWire(kExtensions, policy.extension));
  *wire.mutable_prefill() = PhaseToWire(policy.prefill);
  *wire.mutable_decode() = PhaseToWire(policy.decode);
  return wire;
}

}  // namespace longshore
