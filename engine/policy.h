#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/status.h"

namespace longshore {

/// How a chunk of keys is scored for one query and head (design section 4).
enum class Selector : uint8_t { kBounds, kExact, kDescent, kProbes };

/// How the scores of all heads and rows of a query block become one ranking of chunks.
enum class Ranking : uint8_t { kProbability, kProbabilitySum, kProbabilityPower, kScoreMax };

/// Which rotary ids queries and keys get; the meaning is in algo/rope.h alone.
enum class RopeStyle : uint8_t {
  kTruePositions,
  kRelative,
  kChunkIndexed,
  kInfLlm,
  kDynamicExtend,
  kSelfExtend,
  kStreaming,
};

/// Where the styles for beyond the trained length begin, in a session that may grow past it.
enum class Extension : uint8_t {
  kAtTrainedLength,  ///< at the first query block that passes it
  kFromStart,  ///< at the first token, and no block is dense: one regime for the whole session
};

/// What happens between the sink and the window.
enum class Middle : uint8_t { kDense, kNone, kStages };

/// The style inside the trained length and the one past it.
struct RopeChoice {
  RopeStyle within_trained = RopeStyle::kTruePositions;
  RopeStyle beyond_trained = RopeStyle::kTruePositions;
  int32_t self_extend_group = 0;
  int64_t self_extend_neighbor_tokens = 0;

  RopeStyle At(bool beyond) const { return beyond ? beyond_trained : within_trained; }
  bool operator==(const RopeChoice&) const = default;
};

enum class DescentRepresentative : uint8_t { kFirst, kMiddle };
enum class DescentScore : uint8_t { kFinal, kRunningMaximum };

/// One pruning stage, as data.
struct PruningStage {
  Selector selector = Selector::kExact;
  int32_t chunk_tokens = 0;
  int32_t keep_tokens = 0;
  int32_t refresh_steps = 0;
  int32_t query_block = 0;  ///< rows that share its selection in prefill; 0: the policy's
  RopeChoice rope;
  DescentRepresentative representative = DescentRepresentative::kFirst;  ///< kDescent only
  DescentScore descent_score = DescentScore::kFinal;                     ///< kDescent only
  int32_t probes = 0;                                                    ///< kProbes only

  int32_t KeepChunks() const { return keep_tokens / chunk_tokens; }
  bool operator==(const PruningStage&) const = default;
};

/// Stages and window of some layers in one phase.
struct LayerPolicy {
  Middle middle = Middle::kDense;
  int64_t window_tokens = 0;         ///< W
  std::vector<PruningStage> stages;  ///< coarse to fine; empty unless kStages
  std::optional<RopeChoice> attention_rope = std::nullopt;  ///< else the policy's

  /// The granularity of the middle region: the first stage's chunk, 1 without stages.
  int32_t MiddleChunkTokens() const { return stages.empty() ? 1 : stages.front().chunk_tokens; }
  bool operator==(const LayerPolicy&) const = default;
};

/// Layers [0, first_layers) use `early`, the others `rest`.
struct PhasePolicy {
  LayerPolicy rest;
  int32_t first_layers = 0;
  LayerPolicy early;

  const LayerPolicy& Of(int32_t layer) const { return layer < first_layers ? early : rest; }
  bool operator==(const PhasePolicy&) const = default;
};

enum class Phase : uint8_t { kPrefill, kDecode };

/// Everything that decides which tokens a query attends to. Immutable once validated.
struct AttentionPolicy {
  int64_t sink_tokens = 0;  ///< S
  Ranking ranking = Ranking::kProbability;
  float probability_power = 1.0F;  ///< kProbabilityPower only
  int32_t query_block = 64;        ///< rows that are attended together
  int32_t query_stride = 1;  ///< every query_stride-th row of a block is scored, from the last
  int64_t dense_below_tokens = 0;  ///< shorter contexts are dense; 0 turns it off
  RopeChoice attention_rope;       ///< of layers that do not have their own
  Extension extension = Extension::kAtTrainedLength;
  PhasePolicy prefill;
  PhasePolicy decode;

  int32_t QueryBlockOf(const PruningStage& stage) const {
    return stage.query_block == 0 ? query_block : stage.query_block;
  }
  RopeChoice AttentionRopeOf(const LayerPolicy& layers) const {
    return layers.attention_rope.value_or(attention_rope);
  }
  const LayerPolicy& Of(Phase phase, int32_t layer) const {
    return (phase == Phase::kPrefill ? prefill : decode).Of(layer);
  }
  bool operator==(const AttentionPolicy&) const = default;
};

/// Names of the presets of design section 4 that this build serves, in the order to show them.
std::vector<std::string> PresetNames();

/// The preset of that name. NotFound lists the known names.
absl::StatusOr<AttentionPolicy> PresetPolicy(absl::string_view name);

/// OK, or InvalidArgument that names the field (as on the wire, for example
/// `decode.rest.stages[1].keep_tokens`) and the two numbers.
absl::Status ValidatePolicy(const AttentionPolicy& policy);

}  // namespace longshore
