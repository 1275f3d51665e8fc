#include "engine/policy.h"

#include <algorithm>

#include "engine/algo/rope.h"
#include "engine/core/error.h"
#include "engine/model_shape.h"
#include "engine/plan.h"

namespace longshore {
namespace {

constexpr int64_t kMaxRegionTokens = int64_t{1} << 24;  // ids and counts of regions stay in int32

enum class RopeUse : uint8_t { kPruning, kAttention };

const char* NameOf(RopeStyle style) {
  switch (style) {
    case RopeStyle::kTruePositions: return "true_positions";
    case RopeStyle::kRelative: return "relative";
    case RopeStyle::kChunkIndexed: return "chunk_indexed";
    case RopeStyle::kInfLlm: return "infllm";
    case RopeStyle::kDynamicExtend: return "dynamic_extend";
    case RopeStyle::kSelfExtend: return "self_extend";
    case RopeStyle::kStreaming: return "streaming";
  }
  return "?";
}

absl::Status CheckRope(absl::string_view field, RopeStyle style, RopeUse use) {
  const bool pruning = use == RopeUse::kPruning;
  switch (style) {
    case RopeStyle::kTruePositions:
    case RopeStyle::kInfLlm:
    case RopeStyle::kDynamicExtend:
    case RopeStyle::kSelfExtend: return absl::OkStatus();
    case RopeStyle::kRelative:
    case RopeStyle::kChunkIndexed:
      return pruning ? absl::OkStatus()
                     : InvalidField(field, NameOf(style), " is for pruning only");
    case RopeStyle::kStreaming:
      return pruning ? InvalidField(field, NameOf(style), " is for attention only")
                     : absl::OkStatus();
  }
  return InvalidField(field, "is not a rotary style");
}

absl::Status CheckRopeChoice(absl::string_view field, const RopeChoice& rope, RopeUse use) {
  RETURN_IF_ERROR(CheckRope(absl::StrCat(field, ".within_trained"), rope.within_trained, use));
  RETURN_IF_ERROR(CheckRope(absl::StrCat(field, ".beyond_trained"), rope.beyond_trained, use));
  if (rope.within_trained != RopeStyle::kSelfExtend &&
      rope.beyond_trained != RopeStyle::kSelfExtend) {
    return absl::OkStatus();
  }
  if (rope.self_extend_group < 1) {
    return InvalidField(absl::StrCat(field, ".self_extend_group"), rope.self_extend_group,
                        " is less than 1");
  }
  if (rope.self_extend_neighbor_tokens < 1 || rope.self_extend_neighbor_tokens > kMaxRegionTokens) {
    return InvalidField(absl::StrCat(field, ".self_extend_neighbor_tokens"),
                        rope.self_extend_neighbor_tokens, " is not in 1..", kMaxRegionTokens);
  }
  return absl::OkStatus();
}

// Summaries are made when a chunk fills, of keys as they are stored and at their true positions.
absl::Status CheckBoundsRope(absl::string_view field, RopeStyle style) {
  return style == RopeStyle::kTruePositions || PruneKeysAreUnrotated(style)
             ? absl::OkStatus()
             : InvalidField(field, NameOf(style),
                            " is not true_positions, relative or infllm, which bounds needs");
}

absl::Status CheckBounds(const PruningStage& stage) {
  if (stage.chunk_tokens != kBlockTokens) {
    return InvalidField("chunk_tokens", stage.chunk_tokens, " is not ", kBlockTokens,
                        ", the only size of bounds");
  }
  RETURN_IF_ERROR(CheckBoundsRope("rope.within_trained", stage.rope.within_trained));
  return CheckBoundsRope("rope.beyond_trained", stage.rope.beyond_trained);
}

absl::Status CheckProbes(const PruningStage& stage) {
  const int32_t most = std::min(stage.chunk_tokens, static_cast<int32_t>(kBlockTokens));
  const bool power_of_two = (stage.probes & (stage.probes - 1)) == 0;
  if (stage.probes < 1 || stage.probes > most || !power_of_two) {
    return InvalidField("probes.probes", stage.probes, " is not a power of two in 1..", most);
  }
  return absl::OkStatus();
}

absl::Status CheckSelector(const PruningStage& stage) {
  if (stage.chunk_tokens < 1 || stage.chunk_tokens > kMaxRegionTokens) {
    return InvalidField("chunk_tokens", stage.chunk_tokens, " is not in 1..", kMaxRegionTokens);
  }
  switch (stage.selector) {
    case Selector::kBounds: return CheckBounds(stage);
    case Selector::kExact:
      return kBlockTokens % stage.chunk_tokens == 0
                 ? absl::OkStatus()
                 : InvalidField("chunk_tokens", stage.chunk_tokens, " does not divide a page of ",
                                kBlockTokens, " tokens");
    case Selector::kDescent: return absl::OkStatus();
    case Selector::kProbes: return CheckProbes(stage);
  }
  return InvalidField("selector", "is not a selector");
}

// Budgets of one stage alone.
absl::Status CheckStage(const PruningStage& stage) {
  RETURN_IF_ERROR(CheckSelector(stage));
  if (stage.keep_tokens < stage.chunk_tokens) {
    return InvalidField("keep_tokens", stage.keep_tokens, " is less than chunk_tokens ",
                        stage.chunk_tokens);
  }
  if (stage.keep_tokens % stage.chunk_tokens != 0) {
    return InvalidField("keep_tokens", stage.keep_tokens, " is not a multiple of chunk_tokens ",
                        stage.chunk_tokens);
  }
  if (stage.keep_tokens > kMaxRegionTokens) {
    return InvalidField("keep_tokens", stage.keep_tokens, " is more than ", kMaxRegionTokens);
  }
  if (stage.refresh_steps < 1) {
    return InvalidField("refresh_steps", stage.refresh_steps, " is less than 1");
  }
  return CheckRopeChoice("rope", stage.rope, RopeUse::kPruning);
}

// Query blocks of a stage hold whole ones of the next stage, and of what is attended together.
absl::Status CheckQueryBlock(const LayerPolicy& layers,
                             size_t stage,
                             const AttentionPolicy& policy) {
  constexpr int32_t kMaxQueryBlock = 1024;
  const int32_t query_block = policy.QueryBlockOf(layers.stages[stage]);
  if (query_block < 1 || query_block > kMaxQueryBlock) {
    return InvalidField("query_block", query_block, " is not in 0..", kMaxQueryBlock);
  }
  if (query_block % policy.query_block != 0) {
    return InvalidField("query_block", query_block, " is not a multiple of the policy's ",
                        policy.query_block);
  }
  const int32_t previous = stage == 0 ? query_block : policy.QueryBlockOf(layers.stages[stage - 1]);
  return previous % query_block == 0
             ? absl::OkStatus()
             : InvalidField("query_block", query_block, " does not divide the previous stage's ",
                            previous);
}

// What a stage must be to follow another.
absl::Status CheckFollows(const PruningStage& stage, const PruningStage& previous) {
  if (previous.chunk_tokens % stage.chunk_tokens != 0) {
    return InvalidField("chunk_tokens", stage.chunk_tokens,
                        " does not divide the previous stage's ", previous.chunk_tokens);
  }
  if (stage.keep_tokens > previous.keep_tokens) {
    return InvalidField("keep_tokens", stage.keep_tokens, " is more than the previous stage's ",
                        previous.keep_tokens);
  }
  if (previous.refresh_steps % stage.refresh_steps != 0) {
    return InvalidField("refresh_steps", stage.refresh_steps,
                        " does not divide the previous stage's ", previous.refresh_steps);
  }
  return absl::OkStatus();
}

absl::Status CheckStages(const LayerPolicy& layers, const AttentionPolicy& policy) {
  if (layers.stages.empty() || layers.stages.size() > kMaxStages) {
    return InvalidField("stages", "has ", layers.stages.size(), " entries, not 1..", kMaxStages);
  }
  for (size_t stage = 0; stage < layers.stages.size(); ++stage) {
    absl::Status status = CheckStage(layers.stages[stage]);
    if (status.ok() && stage > 0) {
      status = CheckFollows(layers.stages[stage], layers.stages[stage - 1]);
    }
    if (status.ok() && stage == 0 && policy.sink_tokens % layers.stages[0].chunk_tokens != 0) {
      status = InvalidField("chunk_tokens", layers.stages[0].chunk_tokens,
                            " does not divide sink_tokens ", policy.sink_tokens);
    }
    if (status.ok()) {
      status = CheckQueryBlock(layers, stage, policy);
    }
    if (!status.ok()) {
      return PrefixField(absl::StrCat("stages[", stage, "]."), status);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLayers(const LayerPolicy& layers, const AttentionPolicy& policy) {
  if (layers.window_tokens < 1 || layers.window_tokens > kMaxRegionTokens) {
    return InvalidField("window_tokens", layers.window_tokens, " is not in 1..", kMaxRegionTokens);
  }
  if (layers.attention_rope.has_value()) {
    RETURN_IF_ERROR(CheckRopeChoice("attention_rope", *layers.attention_rope, RopeUse::kAttention));
  }
  if (layers.middle == Middle::kStages) {
    return CheckStages(layers, policy);
  }
  if (!layers.stages.empty()) {
    return InvalidField("stages", "has ", layers.stages.size(),
                        " entries, middle says that there are 0");
  }
  return absl::OkStatus();
}

absl::Status CheckPhase(const PhasePolicy& phase, const AttentionPolicy& policy) {
  if (phase.first_layers < 0) {
    return InvalidField("first_layers", phase.first_layers, " is less than 0");
  }
  if (absl::Status status = CheckLayers(phase.rest, policy); !status.ok()) {
    return PrefixField("rest.", status);
  }
  if (phase.first_layers > 0) {
    if (absl::Status status = CheckLayers(phase.early, policy); !status.ok()) {
      return PrefixField("early.", status);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRanking(const AttentionPolicy& policy) {
  constexpr float kMaxPower = 1024.0F;
  if (policy.ranking == Ranking::kProbabilityPower &&
      !(policy.probability_power >= 1.0F && policy.probability_power <= kMaxPower)) {
    return InvalidField("probability_power", policy.probability_power, " is not in 1..", kMaxPower);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidatePolicy(const AttentionPolicy& policy) {
  if (policy.sink_tokens < 0 || policy.sink_tokens > kMaxRegionTokens) {
    return InvalidField("sink_tokens", policy.sink_tokens, " is not in 0..", kMaxRegionTokens);
  }
  RETURN_IF_ERROR(CheckRanking(policy));
  if (policy.query_block != 16 && policy.query_block != 32 && policy.query_block != 64) {
    return InvalidField("query_block", policy.query_block, " is not 16, 32 or 64");
  }
  if (policy.query_stride < 1 || policy.query_stride > policy.query_block) {
    return InvalidField("query_stride", policy.query_stride, " is not in 1..query_block ",
                        policy.query_block);
  }
  if (policy.dense_below_tokens < 0) {
    return InvalidField("dense_below_tokens", policy.dense_below_tokens, " is less than 0");
  }
  RETURN_IF_ERROR(CheckRopeChoice("attention_rope", policy.attention_rope, RopeUse::kAttention));
  if (absl::Status status = CheckPhase(policy.prefill, policy); !status.ok()) {
    return PrefixField("prefill.", status);
  }
  if (absl::Status status = CheckPhase(policy.decode, policy); !status.ok()) {
    return PrefixField("decode.", status);
  }
  return absl::OkStatus();
}

}  // namespace longshore
