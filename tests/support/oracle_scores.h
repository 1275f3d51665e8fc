#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tests/support/oracle_math.h"
#include "tests/support/oracle_model.h"
#include "tests/support/oracle_positions.h"
#include "tests/support/oracle_rules.h"

/// The oracle's selectors: what one stage finds in its candidate chunks.
namespace longshore::oracle {

/// Rows of one query block and every key appended so far, all unrotated.
struct BlockRows {
  int64_t first_position = 0;
  int64_t last_position = 0;
  std::span<const double> queries;  ///< [rows, heads, head_dim]
  std::span<const double> keys;     ///< [last_position + 1 or more, kv_heads, head_dim]
};

/// Scores candidate chunks for the scored rows and the heads of one block.
///
///   bounds   sum over dims of max(q_d min_d, q_d max_d), minimum and maximum over the chunk's keys
///   exact    max of q.k over the chunk's keys
///   probes   max of q.k over the tokens at offsets floor((i + 1/2) chunk / n), i = 0 ... n - 1
///   descent  q.k of the token that one way down for all rows of a query head ends at:
///              [first, last] has m = floor((first + last) / 2) and the branches [first, m - 1] and
///              [m, last]; a branch's score is the maximum over the scored rows of q.k of its
///              representative, which is its first token or its floor((first + last) / 2); the
///              higher branch is followed, the left one of equals, and the way ends where the left
///              one is empty, at the representative of what is left. `kRunningMaximum`: each row's
///              maximum over the followed representatives and the final token.
class StageScorer {
 public:
  /// Everything must outlive this object.
  StageScorer(const Model& model, const Policy& policy, const Stage& stage, const BlockRows& rows);

  /// The logits of the chunks at `candidates`, first tokens, ascending.
  ///
  /// Two branches of a descent whose scaled scores differ by at most `tolerance` are both followed
  /// if it is not 0; a chunk's logits are then any within what the ways find.
  LogitRanges Score(std::span<const int64_t> candidates, double tolerance);

 private:
  struct Chunk {
    int64_t first = 0;
    int64_t ordinal = 0;
    int64_t count = 0;  // of the stage
  };

  // Tokens [first, last].
  struct Branch {
    int64_t first = 0;
    int64_t last = 0;
  };

  // What a chunk's descent needs and finds. Rows are the scored ones.
  struct Descent {
    int head = 0;
    Chunk chunk;
    double tolerance = 0.0;
    std::vector<std::vector<double>> ends = {};  // [ways][rows]
  };

  struct Vectors {
    std::span<const double> query;  // [head_dim]
    std::span<const double> key;    // [head_dim]
  };

  // Valid until another place of either is asked for.
  Vectors Rotated(int64_t row_position, int head, const Chunk& chunk, int64_t token, KeyRole role);
  // Raw scores [ways][rows] of a chunk; one way except after a near tie.
  std::vector<std::vector<double>> RawScores(int head, const Chunk& chunk, double tolerance);
  double Bound(int64_t row_position, int head, const Chunk& chunk);
  double BestDot(int64_t row_position, int head, const Chunk& chunk);
  std::vector<double> DotsOfRows(const Descent& descent, int64_t token, KeyRole role);
  void Descend(const Branch& branch, const std::vector<double>& best, Descent* descent);
  int64_t RepresentativeOf(const Branch& branch) const;

  const Model& model_;
  const Policy& policy_;
  const Stage& stage_;
  BlockRows rows_;
  std::vector<int64_t> scored_;  // positions, ascending
  RotatedRows rotated_queries_;
  RotatedRows rotated_keys_;
};

}  // namespace longshore::oracle
