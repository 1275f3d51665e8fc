#include "tests/support/oracle_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "tests/support/oracle_math.h"

namespace longshore::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void Require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(std::string("oracle: ") + message);
}

bool IsPruningStyle(RopeStyle style) { return style != RopeStyle::kStreaming; }

bool IsAttentionStyle(RopeStyle style) {
  return style != RopeStyle::kRelative && style != RopeStyle::kChunkIndexed;
}

bool IsSelfExtend(const SelfExtend& self_extend) {
  return self_extend.group >= 1 && self_extend.neighbor_tokens >= 0;
}

void ValidateModel(const Model& model) {
  Require(model.kv_heads > 0 && model.heads % model.kv_heads == 0, "heads divide into KV heads");
  Require(model.scale > 0.0 && model.soft_cap >= 0.0, "scale > 0 and soft_cap >= 0");
  Require(model.sink_logits.empty() || std::ssize(model.sink_logits) == model.heads,
          "one sink logit a query head");
  const Rope& rope = model.rope;
  Require(rope.rotary_dim % 2 == 0 && rope.rotary_dim <= model.head_dim, "rotary_dim fits a head");
  Require(rope.cos_table.size() == rope.sin_table.size(), "as many cosines as sines");
  Require(!rope.cos_table.empty() || std::ssize(rope.inv_freq) == rope.rotary_dim / 2,
          "one inv_freq a pair");
}

void ValidateStage(const Policy& policy, size_t index) {
  const Stage& stage = policy.stages[index];
  Require(stage.chunk_tokens > 0 && stage.refresh_steps > 0, "chunk and refresh interval > 0");
  Require(stage.keep_tokens > 0 && stage.keep_tokens % stage.chunk_tokens == 0,
          "keep_tokens is a positive multiple of chunk_tokens");
  Require(IsPruningStyle(stage.rope_within) && IsPruningStyle(stage.rope_beyond),
          "this RoPE style is not known while pruning");
  Require(IsSelfExtend(stage.self_extend), "group >= 1 and neighbor_tokens >= 0");
  Require(stage.selector != Selector::kProbes ||
              (stage.probes >= 1 && stage.probes <= stage.chunk_tokens),
          "1 to chunk_tokens probes");
  if (index == 0) return;
  const Stage& coarser = policy.stages[index - 1];
  Require(coarser.chunk_tokens % stage.chunk_tokens == 0, "chunks divide into finer chunks");
  Require(coarser.refresh_steps % stage.refresh_steps == 0, "intervals divide into finer ones");
}

/// Scores of `logits`, each row and head of which is normalised by its like in `normalisers`.
std::vector<double> Merge(const Policy& policy,
                          const LogitTable& logits,
                          const LogitTable& normalisers) {
  const size_t chunks = logits.empty() ? 0 : logits[0].size();
  const bool power = policy.ranking == Ranking::kProbabilityPower;
  std::vector<double> log_normalisers(logits.size(), 0.0);
  if (policy.ranking != Ranking::kScoreMax) {
    std::transform(normalisers.begin(), normalisers.end(), log_normalisers.begin(), LogSumExp);
  }
  std::vector<double> scores(chunks);
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    std::vector<double> merged;
    for (size_t index = 0; index < logits.size(); ++index) {
      const double normalised = logits[index][chunk] - log_normalisers[index];
      merged.push_back(power ? policy.probability_power * normalised : normalised);
    }
    scores[chunk] = power || policy.ranking == Ranking::kProbabilitySum
                        ? LogSumExp(merged)
                        : *std::max_element(merged.begin(), merged.end());
  }
  return scores;
}

}  // namespace

void ValidatePolicy(const Model& model, const Policy& policy) {
  ValidateModel(model);
  Require((policy.middle == Middle::kStages) == !policy.stages.empty(),
          "stages exactly if kStages");
  Require(policy.sink_tokens >= 0 && policy.window_tokens >= 1, "S >= 0 and W >= 1");
  Require(policy.query_block_tokens > 0 && policy.query_stride > 0, "block and stride > 0");
  Require(IsAttentionStyle(policy.rope_within) && IsAttentionStyle(policy.rope_beyond),
          "this RoPE style is not known in attention");
  Require(IsSelfExtend(policy.self_extend), "group >= 1 and neighbor_tokens >= 0");
  Require(policy.probability_power > 0.0 && std::isfinite(policy.probability_power),
          "probability_power is a positive number");
  for (size_t index = 0; index < policy.stages.size(); ++index) ValidateStage(policy, index);
  Require(policy.stages.empty() || policy.sink_tokens % policy.stages[0].chunk_tokens == 0,
          "S is a multiple of the first stage's chunk");
}

int64_t BlockEnd(const Policy& policy, int64_t position, int64_t end) {
  const int64_t block = policy.query_block_tokens;
  return std::min(end, (position / block + 1) * block);
}

int64_t MiddleEnd(const Policy& policy, int64_t first_position) {
  const int64_t chunk = policy.stages.empty() ? 1 : policy.stages[0].chunk_tokens;
  const int64_t tokens = first_position + 1 - policy.window_tokens - policy.sink_tokens;
  return policy.sink_tokens + std::max<int64_t>(0, tokens) / chunk * chunk;
}

bool IsBeyond(const Model& model, int64_t last_position) {
  const Rope& rope = model.rope;
  if (rope.trained_tokens == 0) return false;
  return rope.beyond_from_start || last_position >= rope.trained_tokens;
}

bool IsDense(const Model& model, const Policy& policy, int64_t last_position) {
  if (model.sliding_window > 0) return true;
  if (policy.middle != Middle::kStages) return policy.middle == Middle::kDense;
  return last_position < policy.dense_below_tokens && !IsBeyond(model, last_position);
}

bool IsStale(int64_t interval, int layer_index, int64_t refreshed_at, int64_t last_position) {
  return (last_position + layer_index) / interval != (refreshed_at + layer_index) / interval;
}

std::vector<int64_t> StageCandidates(const Policy& policy,
                                     int stage,
                                     int64_t middle_end,
                                     std::span<const int64_t> coarser) {
  const int64_t chunk = policy.stages.at(stage).chunk_tokens;
  std::vector<int64_t> candidates;
  if (stage == 0) {
    for (int64_t first = policy.sink_tokens; first < middle_end; first += chunk) {
      candidates.push_back(first);
    }
    return candidates;
  }
  const int64_t coarse = policy.stages.at(stage - 1).chunk_tokens;
  for (const int64_t begin : coarser) {
    for (int64_t first = begin; first < begin + coarse; first += chunk) candidates.push_back(first);
  }
  return candidates;
}

int64_t KeepCount(const Stage& stage, int64_t candidates) {
  return std::min(stage.keep_tokens / stage.chunk_tokens, candidates);
}

int64_t ProbeOffset(const Stage& stage, int64_t probe) {
  return (2 * probe + 1) * stage.chunk_tokens / (2 * stage.probes);
}

std::vector<double> RankChunks(const Policy& policy, const LogitTable& logits) {
  return Merge(policy, logits, logits);
}

ScoreRanges RankRanges(const Policy& policy, const LogitRanges& logits) {
  // A larger normaliser is a smaller probability.
  return {.low = Merge(policy, logits.low, logits.high),
          .high = Merge(policy, logits.high, logits.low)};
}

std::vector<int64_t> KeepBest(std::span<const int64_t> candidates,
                              std::span<const double> scores,
                              int64_t keep) {
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Stable, and candidates ascend: of equal scores the lower token comes first.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t left, size_t right) { return scores[left] > scores[right]; });
  std::vector<int64_t> chosen;
  for (int64_t rank = 0; rank < keep; ++rank) chosen.push_back(candidates[order[rank]]);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::string SelectionError(std::span<const int64_t> candidates,
                           const ScoreRanges& scores,
                           int64_t keep,
                           std::span<const int64_t> chosen,
                           double tolerance) {
  if (std::ssize(chosen) != keep) {
    return "chose " + std::to_string(chosen.size()) + " chunks, not " + std::to_string(keep);
  }
  for (size_t index = 1; index < chosen.size(); ++index) {
    if (chosen[index - 1] >= chosen[index]) {
      return "chunk " + std::to_string(chosen[index]) + " is not in ascending order";
    }
  }
  for (const int64_t token : chosen) {
    if (!std::binary_search(candidates.begin(), candidates.end(), token)) {
      return "chunk " + std::to_string(token) + " is not a candidate";
    }
  }
  // The worst chosen one at its best, the best of the others at its worst.
  struct Extreme {
    int64_t token = 0;
    double score = 0.0;
  };
  Extreme worst_chosen{.score = kInfinity};
  Extreme best_other{.score = -kInfinity};
  for (size_t index = 0; index < candidates.size(); ++index) {
    const int64_t token = candidates[index];
    const bool is_chosen = std::binary_search(chosen.begin(), chosen.end(), token);
    if (is_chosen && scores.high.at(index) < worst_chosen.score) {
      worst_chosen = {token, scores.high[index]};
    }
    if (!is_chosen && scores.low.at(index) > best_other.score) {
      best_other = {token, scores.low[index]};
    }
  }
  if (best_other.score <= worst_chosen.score + tolerance) return "";
  return "chunk " + std::to_string(worst_chosen.token) + " scores " +
         std::to_string(worst_chosen.score) + " and is chosen, chunk " +
         std::to_string(best_other.token) + " scores " + std::to_string(best_other.score) +
         " and is left out";
}

std::vector<int64_t> AttendedTokens(const Policy& policy,
                                    int64_t position,
                                    int64_t middle_end,
                                    std::span<const int64_t> chosen) {
  std::vector<int64_t> tokens;
  for (int64_t token = 0; token < policy.sink_tokens && token <= position; ++token) {
    tokens.push_back(token);
  }
  const int64_t chunk = policy.stages.empty() ? 0 : policy.stages.back().chunk_tokens;
  for (const int64_t first : chosen) {
    for (int64_t token = first; token < first + chunk; ++token) tokens.push_back(token);
  }
  for (int64_t token = middle_end; token <= position; ++token) tokens.push_back(token);
  return tokens;
}

}  // namespace longshore::oracle
