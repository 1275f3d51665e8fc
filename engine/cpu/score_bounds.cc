#include "engine/cpu/stage_scores.h"

namespace longshore::cpu {

// Summaries of pages that are evenly apart, as those of one layer mostly are, make one tile.
void ScoreBounds(const StageView& view, CandidateRange range) {
  const KvView& kv = view.prune.block.kv;
  const SummaryKind kind = PruneKeysAreUnrotated(view.prune.rule.style) ? SummaryKind::kUnrotated
                                                                        : SummaryKind::kRotated;
  const auto summary = [&](int32_t candidate) {
    return kv.Summary(kind, view.Candidate(candidate));
  };
  for (int32_t begin = range.begin; begin < range.end;) {
    int32_t run_end = begin + 1;
    const int64_t stride = run_end < range.end ? summary(run_end) - summary(begin) : 0;
    while (run_end < range.end && summary(run_end) - summary(run_end - 1) == stride) {
      ++run_end;
    }
    for (int32_t kv_head = 0; kv_head < view.shape.num_kv_heads; ++kv_head) {
      DotTile(view.Queries(kv_head),
              {.first = summary(begin) + int64_t{2} * kv_head * kv.head_bytes,
               .stride_bytes = stride,
               .dtype = kv.dtype},
              view.depth,
              {view.Scores(kv_head, 0, begin), view.stride, view.rows, run_end - begin});
    }
    begin = run_end;
  }
}

}  // namespace longshore::cpu
