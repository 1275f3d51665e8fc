#include <algorithm>
#include <functional>
#include <vector>

#include "engine/algo/rope.h"
#include "engine/core/math.h"
#include "engine/cpu/cpu_backend.h"
#include "engine/cpu/rank_candidates.h"
#include "engine/cpu/stage_scores.h"

namespace longshore::cpu {
namespace {

// A block with more scores than this is the whole team's, so that they are there once and not once
// a thread: as much as the engine's max_score_bytes, and this for each thread, is all there ever
// is.
constexpr int64_t kMaxOwnScoreBytes = int64_t{64} << 20;

// One stage of one query block: score, rank, keep.
class StageRun {
 public:
  StageRun(const PruneArgs& args, const PruneBlock& prune) : args_(args), view_(args, prune) {}

  // What the block needs to be ranked; 0 where there is nothing to choose.
  int64_t ScoreBytes() const {
    return view_.KeepsAll() ? 0 : view_.NumScores() * static_cast<int64_t>(sizeof(float));
  }

  void Run(Loop loop, Scratch* scratch) {
    const PruneBlock& prune = view_.prune;
    if (view_.KeepsAll()) {
      for (int32_t candidate = 0; candidate < view_.candidates; ++candidate) {
        prune.selected[candidate] = static_cast<int32_t>(view_.Candidate(candidate));
      }
      return;
    }
    scratch->Reset();
    LoadAllQueries(scratch);
    view_.scores = scratch->Floats(view_.NumScores());
    loop(CeilDiv(view_.candidates, kTileKeys), [this](int64_t index, Scratch* local) {
      const auto begin = static_cast<int32_t>(index * kTileKeys);
      const int64_t end = Min(view_.candidates, int64_t{begin} + kTileKeys);
      local->Reset();
      Score({.begin = begin, .end = static_cast<int32_t>(end)}, local);
    });
    Select(RankCandidates(args_, view_, loop, scratch), scratch);
  }

 private:
  void LoadAllQueries(Scratch* scratch) {
    const AttentionShape& shape = view_.shape;
    const PruneBlock& prune = view_.prune;
    const bool bounds = view_.stage.selector == Selector::kBounds;
    const bool descent = view_.stage.selector == Selector::kDescent;
    view_.queries = scratch->Floats(int64_t{shape.num_kv_heads} * view_.rows * view_.depth);
    float* unsplit = bounds ? scratch->Floats(int64_t{view_.rows} * shape.head_dim) : nullptr;
    const QuerySource source{
        .q = args_.q,
        .shape = shape,
        .block = prune.block,
        .rows = view_.queries_of,
        .angle_scale = view_.rotates_keys ? 1.0F : prune.block.rope.attention_scaling};
    const auto id_of = [&](int64_t position) {
      return descent ? DescentQueryId(prune.rule, position, view_.candidates)
                     : PruneQueryId(prune.rule, position, view_.candidates);
    };
    for (int32_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      float* out = view_.Queries(kv_head);
      LoadQueries(source, kv_head, id_of, scratch, bounds ? unsplit : out);
      if (bounds) {
        SplitSigns(unsplit, view_.rows, shape.head_dim, out);
      }
    }
  }

  void Score(CandidateRange range, Scratch* scratch) const {
    switch (view_.stage.selector) {
      case Selector::kBounds: ScoreBounds(view_, range); break;
      case Selector::kExact: ScoreExact(view_, range, scratch); break;
      case Selector::kDescent: ScoreDescent(view_, range, scratch); break;
      case Selector::kProbes: ScoreProbes(view_, range, scratch); break;
    }
    for (int32_t kv_head = 0; kv_head < view_.shape.num_kv_heads; ++kv_head) {
      ScaleTile({view_.Scores(kv_head, 0, range.begin), view_.stride, view_.rows, range.count()},
                view_.shape.softmax_scale, view_.shape.logit_soft_cap);
    }
  }

  // The num_selected best in ascending order; of equal ranks the lower token.
  void Select(const float* rank, Scratch* scratch) const {
    const PruneBlock& prune = view_.prune;
    const int32_t candidates = view_.candidates;
    float* sorted = scratch->Floats(candidates);
    std::copy_n(rank, candidates, sorted);
    float* kth = sorted + prune.num_selected - 1;
    std::nth_element(sorted, kth, sorted + candidates, std::greater<>());
    const float threshold = *kth;
    int64_t equal = prune.num_selected - std::count_if(rank, rank + candidates, [=](float value) {
                      return value > threshold;
                    });
    int32_t* next = prune.selected;
    for (int32_t candidate = 0; candidate < candidates; ++candidate) {
      const bool ties = rank[candidate] == threshold;
      if (rank[candidate] > threshold || (ties && equal > 0)) {
        equal -= ties ? 1 : 0;
        *next++ = static_cast<int32_t>(view_.Candidate(candidate));
      }
    }
  }

  const PruneArgs& args_;
  StageView view_;
};

}  // namespace

absl::Status CpuBackend::Prune(const PruneArgs& args) {
  const auto blocks = static_cast<int64_t>(args.blocks.size());
  const bool small =
      std::all_of(args.blocks.begin(), args.blocks.end(), [&](const PruneBlock& block) {
        return StageRun(args, block).ScoreBytes() <= kMaxOwnScoreBytes;
      });
  if (small && blocks >= team_.threads()) {
    // Enough blocks for everybody: a thread takes a block from start to end.
    team_.ParallelFor(blocks, [&](int64_t index, int32_t thread) {
      Scratch* tiles = &scratch_[static_cast<size_t>(thread)];
      const auto in_place = [&](int64_t count, absl::FunctionRef<void(int64_t, Scratch*)> body) {
        for (int64_t part = 0; part < count; ++part) {
          body(part, tiles);
        }
      };
      StageRun(args, args.blocks[static_cast<size_t>(index)])
          .Run(in_place, &block_scratch_[static_cast<size_t>(thread)]);
    });
    return absl::OkStatus();
  }
  const auto on_team = [&](int64_t count, absl::FunctionRef<void(int64_t, Scratch*)> body) {
    team_.ParallelFor(count, [&](int64_t part, int32_t thread) {
      body(part, &scratch_[static_cast<size_t>(thread)]);
    });
  };
  for (const PruneBlock& block : args.blocks) {
    StageRun(args, block).Run(on_team, &shared_scratch_);
  }
  return absl::OkStatus();
}

}  // namespace longshore::cpu
