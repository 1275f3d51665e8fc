#include "engine/policy.h"

#include "engine/core/error.h"
#include "engine/model_shape.h"
#include "engine/plan.h"

namespace longshore {
namespace {

constexpr int64_t kMaxRegionTokens = int64_t{1} << 24;  // ids and counts of regions stay in int32

enum class RopeUse : uint8_t { kPruning, kAttention };

absl::Status CheckRope(absl::string_view field, RopeStyle style, RopeUse use) {
  switch (style) {
    case RopeStyle::kTruePositions: return absl::OkStatus();
    case RopeStyle::kRelative:
      return use == RopeUse::kPruning ? absl::OkStatus()
                                      : InvalidField(field, "relative is for pruning only");
    case RopeStyle::kStreaming:
      return use == RopeUse::kAttention ? absl::OkStatus()
                                        : InvalidField(field, "streaming is for attention only");
    case RopeStyle::kChunkIndexed:
      return use == RopeUse::kPruning ? NotImplemented(field, "chunk_indexed is not served yet")
                                      : InvalidField(field, "chunk_indexed is for pruning only");
    case RopeStyle::kInfLlm: return NotImplemented(field, "infllm is not served yet");
    case RopeStyle::kDynamicExtend:
      return NotImplemented(field, "dynamic_extend is not served yet");
    case RopeStyle::kSelfExtend: return NotImplemented(field, "self_extend is not served yet");
  }
  return InvalidField(field, "is not a rotary style");
}

absl::Status CheckRopeChoice(absl::string_view field, const RopeChoice& rope, RopeUse use) {
  RETURN_IF_ERROR(CheckRope(absl::StrCat(field, ".within_trained"), rope.within_trained, use));
  return CheckRope(absl::StrCat(field, ".beyond_trained"), rope.beyond_trained, use);
}

absl::Status CheckSelector(const PruningStage& stage) {
  switch (stage.selector) {
    case Selector::kBounds:
      if (stage.chunk_tokens != kBlockTokens) {
        return InvalidField("chunk_tokens", stage.chunk_tokens, " is not ", kBlockTokens,
                            ", the only size of bounds");
      }
      return absl::OkStatus();
    case Selector::kExact:
      if (stage.chunk_tokens < 1 || kBlockTokens % stage.chunk_tokens != 0) {
        return InvalidField("chunk_tokens", stage.chunk_tokens, " does not divide a page of ",
                            kBlockTokens, " tokens");
      }
      return absl::OkStatus();
    case Selector::kDescent: return NotImplemented("selector", "descent is not served yet");
    case Selector::kProbes: return NotImplemented("selector", "probes is not served yet");
  }
  return InvalidField("selector", "is not a selector");
}

// Budgets of one stage alone.
absl::Status CheckStage(const PruningStage& stage) {
  RETURN_IF_ERROR(CheckSelector(stage));
  if (stage.keep_tokens < stage.chunk_tokens || stage.keep_tokens % stage.chunk_tokens != 0) {
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

absl::Status CheckStages(const LayerPolicy& layers, int64_t sink_tokens) {
  if (layers.stages.empty() || layers.stages.size() > kMaxStages) {
    return InvalidField("stages", "has ", layers.stages.size(), " entries, not 1..", kMaxStages);
  }
  for (size_t stage = 0; stage < layers.stages.size(); ++stage) {
    absl::Status status = CheckStage(layers.stages[stage]);
    if (status.ok() && stage > 0) {
      status = CheckFollows(layers.stages[stage], layers.stages[stage - 1]);
    }
    if (status.ok() && stage == 0 && sink_tokens % layers.stages[0].chunk_tokens != 0) {
      status = InvalidField("chunk_tokens", layers.stages[0].chunk_tokens,
                            " does not divide sink_tokens ", sink_tokens);
    }
    if (!status.ok()) {
      return PrefixField(absl::StrCat("stages[", stage, "]."), status);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLayers(const LayerPolicy& layers, int64_t sink_tokens) {
  if (layers.window_tokens < 1 || layers.window_tokens > kMaxRegionTokens) {
    return InvalidField("window_tokens", layers.window_tokens, " is not in 1..", kMaxRegionTokens);
  }
  if (layers.middle == Middle::kStages) {
    return CheckStages(layers, sink_tokens);
  }
  if (!layers.stages.empty()) {
    return InvalidField("stages", "has ", layers.stages.size(),
                        " entries, middle says that there are 0");
  }
  return absl::OkStatus();
}

absl::Status CheckPhase(const PhasePolicy& phase, int64_t sink_tokens) {
  if (phase.first_layers < 0) {
    return InvalidField("first_layers", phase.first_layers, " is less than 0");
  }
  if (absl::Status status = CheckLayers(phase.rest, sink_tokens); !status.ok()) {
    return PrefixField("rest.", status);
  }
  if (phase.first_layers > 0) {
    if (absl::Status status = CheckLayers(phase.early, sink_tokens); !status.ok()) {
      return PrefixField("early.", status);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRanking(const AttentionPolicy& policy) {
  switch (policy.ranking) {
    case Ranking::kProbability: return absl::OkStatus();
    case Ranking::kProbabilitySum:
      return NotImplemented("ranking", "probability_sum is not served yet");
    case Ranking::kProbabilityPower:
      return NotImplemented("ranking", "probability_power is not served yet");
    case Ranking::kScoreMax: return NotImplemented("ranking", "score_max is not served yet");
  }
  return InvalidField("ranking", "is not a ranking");
}

}  // namespace

absl::Status ValidatePolicy(const AttentionPolicy& policy) {
  if (policy.sink_tokens < 0 || policy.sink_tokens > kMaxRegionTokens) {
    return InvalidField("sink_tokens", policy.sink_tokens, " is not in 0..", kMaxRegionTokens);
  }
  RETURN_IF_ERROR(CheckRanking(policy));
  if (policy.query_block != kBlockTokens) {
    return InvalidField("query_block", policy.query_block, " is not ", kBlockTokens);
  }
  if (policy.query_stride < 1 || policy.query_stride > policy.query_block) {
    return InvalidField("query_stride", policy.query_stride, " is not in 1..query_block ",
                        policy.query_block);
  }
  if (policy.dense_below_tokens < 0) {
    return InvalidField("dense_below_tokens", policy.dense_below_tokens, " is less than 0");
  }
  RETURN_IF_ERROR(CheckRopeChoice("attention_rope", policy.attention_rope, RopeUse::kAttention));
  if (absl::Status status = CheckPhase(policy.prefill, policy.sink_tokens); !status.ok()) {
    return PrefixField("prefill.", status);
  }
  if (absl::Status status = CheckPhase(policy.decode, policy.sink_tokens); !status.ok()) {
    return PrefixField("decode.", status);
  }
  return absl::OkStatus();
}

}  // namespace longshore
