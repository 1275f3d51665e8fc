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

void ForEachSlice(const StageView& view, absl::FunctionRef<void(const RowSlice& slice)> body) {
  if (!KeyIdsDependOnQuery(view.prune.rule.style)) {
    body({.first = 0, .rows = view.rows, .query_position = view.QueryPosition(0)});
    return;
  }
  const int32_t group = view.shape.GroupSize();
  for (int32_t index = 0; index < view.queries_of.count; ++index) {
    body({.first = index * group, .rows = group, .query_position = view.QueryPosition(index)});
  }
}

}  // namespace longshore::cpu
