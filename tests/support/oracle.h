#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tests/support/oracle_math.h"
#include "tests/support/oracle_model.h"
#include "tests/support/oracle_rules.h"

/// The oracle itself: one layer of one session, as slow as it is plain.
namespace longshore::oracle {

/// What one stage did for one block.
struct StageTrace {
  bool refreshed = false;           ///< false: `chosen` is an older block's
  int64_t refresh_position = 0;     ///< last position of the block that chose
  std::vector<int64_t> candidates;  ///< first tokens, ascending; empty unless refreshed
  std::vector<double> scores;       ///< one a candidate, also when all are kept
  std::vector<int64_t> chosen;      ///< first tokens, ascending
};

/// What was decided for one query block. All of it but candidates, scores and chosen chunks follows
/// from positions alone, so it holds for a backend that broke a tie the other way too.
struct BlockTrace {
  int64_t first_position = 0;
  int64_t last_position = 0;
  bool dense = false;  ///< every key at true positions; then there are no regions and no stages
  bool beyond = false;
  int64_t middle_end = 0;  ///< M: sink [0, min(S, p + 1)), middle [S, M), window [M, p]
  std::vector<StageTrace> stages;
};

/// A selection to attend or score with that need not be the oracle's own.
struct Selection {
  int64_t middle_end = 0;
  std::vector<int64_t> chosen;  ///< first tokens of the last stage's chunks, ascending
};

/// One layer of one session.
///
/// Queries are [rows, heads, head_dim], keys and values [rows, kv_heads, head_dim], all unrotated;
/// keys and values hold values of the storage type. A copy continues by itself; a fork is a copy
/// with `InvalidateMask`. Wrong arguments throw std::invalid_argument and change nothing.
class Layer {
 public:
  /// `layer_index` is the phase of the refresh clock.
  Layer(Model model, Policy policy, int layer_index);

  /// Appends rows and attends them; every query block selects afresh and the last block's selection
  /// stays behind as the cached mask. `position` must be `length()`.
  Attention Prefill(int64_t position,
                    std::span<const double> queries,
                    std::span<const double> keys,
                    std::span<const double> values);

  /// Appends rows and attends them with the cached mask, of which each block refreshes what is
  /// stale. `position` must be `length()`.
  Attention Decode(int64_t position,
                   std::span<const double> queries,
                   std::span<const double> keys,
                   std::span<const double> values);

  /// Appends rows without attending them; the cached mask stays.
  void Append(std::span<const double> keys, std::span<const double> values);

  /// Drops tokens >= `length`, and the cached mask if any of its stages was refreshed there.
  void Truncate(int64_t length);

  /// Makes the next block refresh every stage, as after a fork or a restore.
  void InvalidateMask() { mask_.valid = false; }

  /// Tokens appended so far.
  int64_t length() const { return length_; }

  /// The blocks of the last Prefill or Decode, in order.
  const std::vector<BlockTrace>& trace() const { return trace_; }

  /// Ranking scores of given candidates for a block of rows at `position`; the block must lie
  /// within one query block of the stage and its keys must have been appended. Whether the layer is
  /// beyond follows from the block's last position.
  std::vector<double> ScoreStage(int stage,
                                 int64_t position,
                                 std::span<const double> queries,
                                 std::span<const int64_t> candidates) const;

  /// What the scores of `ScoreStage` may be where branches of a descent that differ by at most
  /// `branch_tolerance`, as scaled scores, may go either way. Equal to them for other selectors.
  ScoreRanges ScoreStageRanges(int stage,
                               int64_t position,
                               std::span<const double> queries,
                               std::span<const int64_t> candidates,
                               double branch_tolerance) const;

  /// Attention of one block of rows with a given selection; like `ScoreStage`. Dense blocks (by
  /// `IsDense`) ignore the selection.
  Attention Attend(int64_t position,
                   std::span<const double> queries,
                   const Selection& selection) const;

 private:
  struct MaskStage {
    int64_t refresh_position = 0;
    std::vector<int64_t> chosen;
  };

  struct Mask {
    bool valid = false;
    bool beyond = false;
    int64_t middle_end = 0;
    std::vector<MaskStage> stages;
  };

  enum class Phase { kPrefill, kDecode };

  Attention AppendAndAttend(Phase phase,
                            int64_t position,
                            std::span<const double> queries,
                            std::span<const double> keys,
                            std::span<const double> values);
  // The rows of one call.
  struct Call {
    Phase phase = Phase::kDecode;
    int64_t position = 0;
    std::span<const double> queries;
  };

  BlockTrace SelectBlock(const Call& call, int64_t position);
  int64_t StageBegin(const Call& call, int stage, const BlockTrace& block) const;
  int64_t StageEnd(const Call& call, int stage, const BlockTrace& block) const;
  bool Shares(const BlockTrace& block, int64_t position) const;
  std::span<const double> Queries(const Call& call, int64_t begin, int64_t end) const;
  int FirstStaleStage(int64_t last_position) const;
  int64_t CheckedLastPosition(int64_t position,
                              std::span<const double> queries,
                              int64_t query_block_tokens) const;

  Model model_;
  Policy policy_;
  int layer_index_;
  int64_t length_ = 0;
  std::vector<double> keys_;    // [length, kv_heads, head_dim]
  std::vector<double> values_;  // [length, kv_heads, head_dim]
  Mask mask_;
  std::vector<BlockTrace> trace_;
};

}  // namespace longshore::oracle
