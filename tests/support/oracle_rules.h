#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/support/oracle_model.h"

/// The oracle's decisions: regions, the refresh clock, candidates, ranking. No state.
namespace longshore::oracle {

/// Throws std::invalid_argument that says what the oracle cannot compute.
void ValidatePolicy(const Model& model, const Policy& policy);

/// One past a block's last row if its rows run from `position` to before `end`: the next absolute
/// multiple of the block size, or `end`.
int64_t BlockEnd(const Policy& policy, int64_t position, int64_t end);

/// M = S + max(0, floor((p0 + 1 - W - S) / c)) c for a block that begins at p0 = `first_position`.
/// c is the first stage's chunk size, 1 without stages.
int64_t MiddleEnd(const Policy& policy, int64_t first_position);

/// Whether a block that ends at `last_position` reaches past the trained length.
bool IsBeyond(const Model& model, int64_t last_position);

/// Whether a block that ends at `last_position` attends every key that the model lets it see, at
/// true positions. Always behind a sliding window, whatever the policy.
bool IsDense(const Model& model, const Policy& policy, int64_t last_position);

/// Whether a mask made at `refreshed_at` is stale for a block that ends at `last_position`:
/// floor((p + layer) / interval) differs.
bool IsStale(int64_t interval, int layer_index, int64_t refreshed_at, int64_t last_position);

/// First tokens of a stage's candidate chunks, ascending. Stage 0: the chunks of [S, middle_end); a
/// later stage: the chunks in `coarser`, what the stage before it chose.
std::vector<int64_t> StageCandidates(const Policy& policy,
                                     int stage,
                                     int64_t middle_end,
                                     std::span<const int64_t> coarser);

/// How many chunks the stage keeps of `candidates`.
int64_t KeepCount(const Stage& stage, int64_t candidates);

/// Token of the `probe`-th look of kProbes, from the chunk's first: floor((probe + 1/2) chunk / n).
int64_t ProbeOffset(const Stage& stage, int64_t probe);

/// Logits of chunks, [scored rows * heads][chunks].
using LogitTable = std::vector<std::vector<double>>;

/// Logits that may be anything in [low, high], each by itself.
struct LogitRanges {
  LogitTable low;
  LogitTable high;
};

/// Ranking scores of chunks that may be anything in [low, high], each by itself. Both are [chunks].
struct ScoreRanges {
  std::vector<double> low;
  std::vector<double> high;
};

/// Merges logits over heads and rows into one score a chunk, by the policy's ranking.
///
///   kProbability       max over (row, head) of  logit - lse;  lse over the chunks
///   kProbabilityPower  log sum over (row, head) of  exp(a (logit - lse))
///   kProbabilitySum    the same with a = 1
///   kScoreMax          max over (row, head) of  logit
std::vector<double> RankChunks(const Policy& policy, const LogitTable& logits);

/// The same of logits that are not known better: no score is outside what this gives.
ScoreRanges RankRanges(const Policy& policy, const LogitRanges& logits);

/// The `keep` best candidates, ascending by token; of equal scores the lower tokens.
///
///   candidates  [chunks] first tokens, ascending
///   scores      [chunks]
std::vector<int64_t> KeepBest(std::span<const int64_t> candidates,
                              std::span<const double> scores,
                              int64_t keep);

/// Says what is wrong with `chosen` as the `keep` best of `candidates`; empty if nothing is.
///
/// Right is: `keep` distinct candidates, ascending, and none that is left out must score more than
/// a chosen one can, plus `tolerance`. A backend whose scores err by e passes with a tolerance of
/// 2 e.
std::string SelectionError(std::span<const int64_t> candidates,
                           const ScoreRanges& scores,
                           int64_t keep,
                           std::span<const int64_t> chosen,
                           double tolerance);

/// The tokens that the row at `position` attends, ascending: sink, selected chunks, window.
///
///   chosen  first tokens of the last stage's chunks, ascending, all in [S, middle_end)
std::vector<int64_t> AttendedTokens(const Policy& policy,
                                    int64_t position,
                                    int64_t middle_end,
                                    std::span<const int64_t> chosen);

}  // namespace longshore::oracle
