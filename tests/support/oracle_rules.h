#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/support/oracle_math.h"
#include "tests/support/oracle_model.h"

/// The oracle's decisions: regions, the refresh clock, positions, candidates, ranking. No state.
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

/// Whether a block that ends at `last_position` attends every key, at true positions.
bool IsDense(const Model& model, const Policy& policy, int64_t last_position);

/// Whether a mask made at `refreshed_at` is stale for a block that ends at `last_position`:
/// floor((p + layer) / interval) differs.
bool IsStale(int64_t interval, int layer_index, int64_t refreshed_at, int64_t last_position);

/// One query and one key. Ranks count attended tokens; they have no meaning while pruning.
struct Pair {
  int64_t query_position = 0;
  int64_t query_rank = 0;
  int64_t key_position = 0;
  int64_t key_rank = 0;
};

/// Where the two vectors of a pair are rotated to.
struct PairPlaces {
  RotaryPlace query;
  RotaryPlace key;
};

/// The table of RoPE styles in design section 4; a style that is added is a case here.
///
/// kRelative is the table's (W + 1, 1) shifted by one, so that keys stay as they are stored. The
/// key's share of the attention scaling goes to the query.
PairPlaces PlacePair(RopeStyle style, const Model& model, const Policy& policy, const Pair& pair);

/// First tokens of a stage's candidate chunks, ascending. Stage 0: the chunks of [S, middle_end); a
/// later stage: the chunks in `coarser`, what the stage before it chose.
std::vector<int64_t> StageCandidates(const Policy& policy,
                                     int stage,
                                     int64_t middle_end,
                                     std::span<const int64_t> coarser);

/// How many chunks the stage keeps of `candidates`.
int64_t KeepCount(const Stage& stage, int64_t candidates);

/// Merges logits over heads and rows into one score a chunk.
///
///   kProbability     max over (row, head) of  logit - lse;  lse over the chunks
///   kProbabilitySum  log sum exp over (row, head) of  logit - lse
///   kScoreMax        max over (row, head) of  logit
///
///   logits  [rows * heads][chunks]
std::vector<double> RankChunks(Ranking ranking, const std::vector<std::vector<double>>& logits);

/// The `keep` best candidates, ascending by token; of equal scores the lower tokens.
///
///   candidates  [chunks] first tokens, ascending
///   scores      [chunks]
std::vector<int64_t> KeepBest(std::span<const int64_t> candidates,
                              std::span<const double> scores,
                              int64_t keep);

/// Says what is wrong with `chosen` as the `keep` best of `candidates`; empty if nothing is.
///
/// Right is: `keep` distinct candidates, ascending; each chosen one scores at least the keep-th
/// best less `tolerance`, and each other one at most the keep-th best plus `tolerance`. (Without
/// the second half, leaving out the best chunk of all would pass.) A backend whose scores err by e
/// passes with a tolerance of 2 e.
std::string SelectionError(std::span<const int64_t> candidates,
                           std::span<const double> scores,
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
