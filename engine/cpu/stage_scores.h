#pragma once

#include <cstdint>

#include <absl/functional/function_ref.h>

#include "engine/cpu/rows.h"

namespace longshore::cpu {

/// One stage of one query block, laid out for the selectors: which rows are scored, where their
/// queries and scores are.
///
/// A KV head's rows are [scored queries, group]. Queries are rotated, rounded and, for `bounds`,
/// split by sign (depth is then twice head_dim).
struct StageView {
  StageView(const PruneArgs& args, const PruneBlock& prune);

  const AttentionShape& shape;
  const PruningStage& stage;
  const PruneBlock& prune;
  QueryRows queries_of;  ///< which rows of the block are scored
  int32_t rows = 0;      ///< scored rows of a KV head: queries_of.count * group
  int32_t candidates = 0;
  int64_t stride = 0;  ///< floats between the scores of two rows
  int32_t depth = 0;
  bool rotates_keys = false;  ///< keys are not used as they are stored
  float* queries = nullptr;   ///< [kv_heads, rows, depth]
  float* scores = nullptr;    ///< [kv_heads, rows, stride]

  float* Queries(int64_t kv_head) const { return queries + kv_head * rows * depth; }
  float* Scores(int64_t kv_head, int64_t row, int64_t candidate) const {
    return scores + (kv_head * rows + row) * stride + candidate;
  }
  int64_t NumScores() const { return int64_t{shape.num_kv_heads} * rows * stride; }
  /// Nothing to choose: there are no more candidates than are kept.
  bool KeepsAll() const { return prune.num_selected == candidates; }
  int64_t Candidate(int32_t candidate) const {
    return prune.Candidate(candidate, stage.chunk_tokens);
  }
  /// Position of scored query `index`.
  int64_t QueryPosition(int64_t index) const {
    return prune.block.first_position + queries_of.first + index * queries_of.stride;
  }
};

/// Rows that see a key at the same rotary id: all, or those of one query where ids depend on it.
struct RowSlice {
  int32_t first = 0;
  int32_t rows = 0;
  int64_t query_position = 0;
};

/// Calls body for each slice of rows [scored queries, rows_per_query]: the group for a KV head's
/// rows, 1 for a query head's.
void ForEachSlice(const StageView& view,
                  int32_t rows_per_query,
                  absl::FunctionRef<void(const RowSlice& slice)> body);

/// Candidates of a stage, as many as one thread scores at a time.
struct CandidateRange {
  int32_t begin = 0;
  int32_t end = 0;  ///< at most kTileKeys after begin

  int32_t count() const { return end - begin; }
};

/// Each writes the raw scores of the range for all KV heads and rows, before scale and soft-cap.
/// design section 4, table of selectors.
void ScoreBounds(const StageView& view, CandidateRange range);
void ScoreExact(const StageView& view, CandidateRange range, Scratch* scratch);
void ScoreDescent(const StageView& view, CandidateRange range, Scratch* scratch);
void ScoreProbes(const StageView& view, CandidateRange range, Scratch* scratch);

}  // namespace longshore::cpu
