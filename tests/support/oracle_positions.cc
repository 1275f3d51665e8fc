#include "tests/support/oracle_positions.h"

#include <algorithm>
#include <stdexcept>

namespace longshore::oracle {
namespace {

/// Rounds towards minus infinity; `divisor` > 0.
int64_t FloorDiv(int64_t dividend, int64_t divisor) {
  const int64_t quotient = dividend / divisor;
  return dividend % divisor < 0 ? quotient - 1 : quotient;
}

}  // namespace

int64_t DynamicExtendId(int64_t trained_tokens, const Pair& pair) {
  const bool fits = trained_tokens == 0 || pair.query_position < trained_tokens;
  const int64_t kept = trained_tokens / 4;               // w
  const int64_t kept_begin = pair.block_first - kept;    // f - w
  const int64_t ahead = pair.key_position - kept_begin;  // i - f + w
  if (fits || ahead >= 0) return pair.key_position;
  const int64_t squeezed = FloorDiv(ahead * (trained_tokens - kept), kept_begin);
  return std::max(kept_begin + squeezed, pair.query_position - trained_tokens + 1);
}

int64_t SelfExtendId(const SelfExtend& self_extend, const Pair& pair) {
  const int64_t distance = pair.query_position - pair.key_position;
  const int64_t neighbors = self_extend.neighbor_tokens;
  if (distance < neighbors) return pair.key_position;
  return pair.query_position - (neighbors + (distance - neighbors) / self_extend.group);
}

PairPlaces PlaceScored(const Model& model,
                       const Policy& policy,
                       const Stage& stage,
                       const ScoredPair& scored) {
  const double scaling = model.rope.attention_scaling;
  const Pair& pair = scored.pair;
  const auto at = [&](int64_t query_id, int64_t key_id) {
    return PairPlaces{{query_id, scaling}, {key_id, scaling}};
  };
  switch (pair.beyond ? stage.rope_beyond : stage.rope_within) {
    case RopeStyle::kTruePositions: return at(pair.query_position, pair.key_position);
    case RopeStyle::kRelative:
      if (scored.role == KeyRole::kScored) {
        return {{policy.window_tokens, scaling * scaling}, {0, 1.0}};
      }
      return at(policy.window_tokens + 1, scored.role == KeyRole::kLeftBranch ? 0 : 1);
    case RopeStyle::kChunkIndexed:
      return at(std::min(pair.query_position, scored.num_chunks + policy.window_tokens),
                scored.chunk_ordinal);
    case RopeStyle::kInfLlm: return at(policy.window_tokens, 0);
    case RopeStyle::kDynamicExtend:
      return at(pair.query_position, DynamicExtendId(model.rope.trained_tokens, pair));
    case RopeStyle::kSelfExtend:
      return at(pair.query_position, SelfExtendId(stage.self_extend, pair));
    default: throw std::invalid_argument("oracle: RoPE style without a case while pruning");
  }
}

PairPlaces PlaceAttended(const Model& model, const Policy& policy, const AttendedPair& attended) {
  const double scaling = model.rope.attention_scaling;
  const Pair& pair = attended.pair;
  const auto at = [&](int64_t query_id, int64_t key_id) {
    return PairPlaces{{query_id, scaling}, {key_id, scaling}};
  };
  switch (pair.beyond ? policy.rope_beyond : policy.rope_within) {
    case RopeStyle::kTruePositions: return at(pair.query_position, pair.key_position);
    case RopeStyle::kStreaming: return at(attended.query_rank, attended.key_rank);
    case RopeStyle::kInfLlm: {
      const int64_t behind = std::max<int64_t>(0, pair.query_position - policy.window_tokens);
      return at(pair.query_position, attended.key_in_window ? pair.key_position : behind);
    }
    case RopeStyle::kDynamicExtend:
      return at(pair.query_position, DynamicExtendId(model.rope.trained_tokens, pair));
    case RopeStyle::kSelfExtend:
      return at(pair.query_position, SelfExtendId(policy.self_extend, pair));
    default: throw std::invalid_argument("oracle: RoPE style without a case in attention");
  }
}

}  // namespace longshore::oracle
