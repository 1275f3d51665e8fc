#include "engine/cpu/stage_scores.h"

#include "engine/core/math.h"

namespace longshore::cpu {
namespace {

bool KeysAreUnrotated(const PruneArgs& args, const PruneBlock& prune) {
  const RopeStyle style = prune.rule.style;
  return args.stage.selector == Selector::kDescent ? DescentKeysAreUnrotated(style)
                                                   : PruneKeysAreUnrotated(style);
}

}  // namespace

StageView::StageView(const PruneArgs& args, const PruneBlock& block)
    : shape(args.shape),
      stage(args.stage),
      prune(block),
      queries_of{.first = FirstScoredRow(block.block.rows, args.query_stride),
                 .stride = args.query_stride,
                 .count = ScoredRows(block.block.rows, args.query_stride)},
      rows(queries_of.count * shape.GroupSize()),
      candidates(block.NumCandidates(stage.chunk_tokens)),
      stride(RoundUp(candidates, 16)),
      depth(stage.selector == Selector::kBounds ? 2 * shape.head_dim : shape.head_dim),
      rotates_keys(block.block.rope.pairs > 0 && !KeysAreUnrotated(args, block)) {}

void ForEachSlice(const StageView& view,
                  int32_t rows_per_query,
                  absl::FunctionRef<void(const RowSlice& slice)> body) {
  const int32_t queries = view.queries_of.count;
  const int32_t queries_at_once = KeyIdsDependOnQuery(view.prune.rule.style) ? 1 : queries;
  for (int32_t index = 0; index < queries; index += queries_at_once) {
    body({.first = index * rows_per_query,
          .rows = queries_at_once * rows_per_query,
          .query_position = view.QueryPosition(index)});
  }
}

}  // namespace longshore::cpu
