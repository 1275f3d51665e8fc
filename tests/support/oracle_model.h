#pragma once

#include <cstdint>
#include <vector>

/// A slow and plain model of one layer's attention, against which the backends are judged.
///
/// Written from design sections 3 and 4 in double precision. It includes nothing of `engine/`: code
/// that both backends share can be wrong in both. This file holds what the oracle is told.
namespace longshore::oracle {

/// What keys and values are stored in; rotated queries and keys are rounded to it.
enum class Storage { kF32, kBf16, kF16 };

/// Which dimensions a rotation turns together: (i, i + rotary_dim / 2) or (2 i, 2 i + 1).
enum class Pairing { kHalf, kInterleaved };

/// Where queries and keys stand when they are rotated; the styles of the table in design section 4.
enum class RopeStyle {
  kTruePositions,
  kRelative,
  kStreaming,
  kChunkIndexed,
  kInfLlm,
  kDynamicExtend,
  kSelfExtend,
};

/// How a stage scores a chunk for one query and head.
enum class Selector { kBounds, kExact, kDescent, kProbes };

/// Which token of a branch stands for it on the way down.
enum class Representative { kFirst, kMiddle };

/// What a chunk scores after the way down: its final token, or the best of all followed.
enum class DescentScore { kFinal, kRunningMaximum };

/// How a chunk's scores are merged over heads and scored rows.
enum class Ranking { kProbability, kProbabilitySum, kProbabilityPower, kScoreMax };

/// What becomes of the tokens between sink and window.
enum class Middle { kDense, kNone, kStages };

/// One rotary table and how a model uses it.
struct Rope {
  int rotary_dim = 0;  ///< the first dimensions of a head, the rest pass through; 0 turns none
  Pairing pairing = Pairing::kHalf;
  std::vector<double> inv_freq =
      {};  ///< [rotary_dim / 2]; angle = id * inv_freq, both exact in double
  /// [ids, rotary_dim / 2] each; when given they replace inv_freq. For tests that need cosines of
  /// exactly 0 and 1. They do not include `attention_scaling`.
  std::vector<double> cos_table = {};
  std::vector<double> sin_table = {};
  double attention_scaling = 1.0;  ///< multiplies cosines and sines
  int64_t trained_tokens = 0;      ///< L; 0 = no limit
  bool beyond_from_start = false;  ///< the styles for beyond L hold from the first token on
};

/// The parameters of kSelfExtend.
struct SelfExtend {
  int64_t group = 1;
  int64_t neighbor_tokens = 0;
};

/// What the runner says about one layer at session open.
struct Model {
  int heads = 1;
  int kv_heads = 1;  ///< query head h reads KV head h / (heads / kv_heads)
  int head_dim = 1;
  double scale = 1.0;                    ///< softmax scale, positive
  double soft_cap = 0.0;                 ///< s -> cap tanh(s / cap), after the scale; 0 = none
  std::vector<double> sink_logits = {};  ///< [heads] learned sinks; empty = none
  Rope rope = {};
  int64_t sliding_window = 0;  ///< tokens a query sees, its own included; 0 = all of them
  Storage kv_dtype = Storage::kF32;
};

/// One pruning stage.
struct Stage {
  Selector selector = Selector::kExact;
  int64_t chunk_tokens = 1;
  int64_t keep_tokens = 1;    ///< a multiple of chunk_tokens
  int64_t refresh_steps = 1;  ///< a multiple of the next finer stage's
  /// In prefill: rows that choose together, from absolute multiples of it. A multiple of the next
  /// finer stage's, the last one's of the policy's; 0 = as many as the policy says.
  int64_t query_block_tokens = 0;
  RopeStyle rope_within = RopeStyle::kTruePositions;
  RopeStyle rope_beyond = RopeStyle::kRelative;
  SelfExtend self_extend = {};                             ///< with kSelfExtend only
  Representative representative = Representative::kFirst;  ///< with kDescent only
  DescentScore descent_score = DescentScore::kFinal;       ///< with kDescent only
  int64_t probes = 1;                                      ///< with kProbes only
};

/// How one layer is attended; prefill and decode alike. A layer that differs in prefill, or early
/// in the model, is another policy: two `Layer`s of the same tokens.
struct Policy {
  Middle middle = Middle::kDense;
  int64_t sink_tokens = 0;          ///< S, a multiple of the first stage's chunk_tokens
  int64_t window_tokens = 1;        ///< W, at least 1: a query's own token is always attended
  int64_t dense_below_tokens = 0;   ///< with stages only
  int64_t query_block_tokens = 64;  ///< blocks begin at absolute multiples of it
  int64_t query_stride = 1;         ///< counted back from the block's last row
  Ranking ranking = Ranking::kProbability;
  double probability_power = 1.0;                     ///< with kProbabilityPower only
  RopeStyle rope_within = RopeStyle::kTruePositions;  ///< in attention
  RopeStyle rope_beyond = RopeStyle::kStreaming;      ///< in attention
  SelfExtend self_extend = {};                        ///< in attention
  std::vector<Stage> stages = {};                     ///< coarsest first; only with kStages
};

}  // namespace longshore::oracle
