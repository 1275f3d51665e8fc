#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include <absl/functional/function_ref.h>

#include "engine/algo/rope.h"
#include "engine/core/math.h"
#include "engine/cpu/cpu_backend.h"
#include "engine/cpu/rows.h"

namespace longshore::cpu {
namespace {

constexpr int32_t kRangeCandidates = 64;  // candidates that a thread scores at a time
constexpr int32_t kTileKeys = 64;
// A block with more scores than this is the whole team's, so that they are there once and not once
// a thread: as much as the engine's max_score_bytes, and this for each thread, is all there ever
// is.
constexpr int64_t kMaxOwnScoreBytes = int64_t{64} << 20;

// Runs body(index, scratch) for [0, count): on the team for a single block, in place where whole
// blocks are what the team shares.
using Loop = absl::FunctionRef<void(int64_t count,
                                    absl::FunctionRef<void(int64_t index, Scratch* scratch)> body)>;

// One stage of one query block: score, rank, keep. Scores are [kv_heads, rows, candidates] in fp32,
// with a row for each scored query of each head of the KV head's group.
class StageRun {
 public:
  StageRun(const PruneArgs& args, const PruneBlock& prune)
      : args_(args),
        shape_(args.shape),
        prune_(prune),
        block_(prune.block),
        chunk_tokens_(args.stage.chunk_tokens),
        candidates_(prune.NumCandidates(chunk_tokens_)),
        stride_(RoundUp(candidates_, 16)),
        query_rows_{.first = FirstScoredRow(block_.rows, args.query_stride),
                    .stride = args.query_stride,
                    .count = ScoredRows(block_.rows, args.query_stride)},
        rows_(query_rows_.count * shape_.GroupSize()),
        bounds_(args.stage.selector == Selector::kBounds),
        rotates_keys_(!PruneKeysAreUnrotated(prune.rope_style) && block_.rope.pairs > 0) {}

  // What the block needs to be ranked; 0 where there is nothing to choose.
  int64_t ScoreBytes() const {
    return prune_.num_selected == candidates_ ? 0 : Scores() * static_cast<int64_t>(sizeof(float));
  }

  void Run(Loop loop, Scratch* scratch) {
    if (prune_.num_selected == candidates_) {
      for (int32_t candidate = 0; candidate < candidates_; ++candidate) {
        prune_.selected[candidate] = prune_.Candidate(candidate, chunk_tokens_);
      }
      return;
    }
    scratch->Reset();
    LoadAllQueries(scratch);
    scores_ = scratch->Floats(Scores());
    const int64_t ranges = CeilDiv(candidates_, kRangeCandidates);
    loop(ranges, [this](int64_t range, Scratch* local) { ScoreRange(range, local); });
    Rank(loop, scratch);
    Select(scratch);
  }

 private:
  int64_t Scores() const { return int64_t{shape_.num_kv_heads} * rows_ * stride_; }
  int32_t Depth() const { return bounds_ ? 2 * shape_.head_dim : shape_.head_dim; }
  const float* Queries(int32_t kv_head) const {
    return queries_ + int64_t{kv_head} * rows_ * Depth();
  }
  float* Scores(int64_t kv_head, int64_t candidate) const {
    return scores_ + kv_head * rows_ * stride_ + candidate;
  }

  void LoadAllQueries(Scratch* scratch) {
    const int64_t floats = int64_t{rows_} * shape_.head_dim;
    queries_ = scratch->Floats(int64_t{shape_.num_kv_heads} * rows_ * Depth());
    float* unsplit = bounds_ ? scratch->Floats(floats) : nullptr;
    const QuerySource source{.q = args_.q,
                             .shape = shape_,
                             .block = block_,
                             .rows = query_rows_,
                             .angle_scale = PruneKeysAreUnrotated(prune_.rope_style)
                                                ? block_.rope.attention_scaling
                                                : 1.0F};
    const auto id_of = [this](int64_t position) {
      return PruneQueryId(prune_.rope_style, position, block_.window_tokens);
    };
    for (int32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
      float* out = queries_ + int64_t{kv_head} * rows_ * Depth();
      LoadQueries(source, kv_head, id_of, scratch, bounds_ ? unsplit : out);
      if (bounds_) {
        SplitSigns(unsplit, rows_, shape_.head_dim, out);
      }
    }
  }

  void ScoreRange(int64_t range, Scratch* scratch) const {
    const auto begin = static_cast<int32_t>(range * kRangeCandidates);
    const auto end = static_cast<int32_t>(Min(candidates_, int64_t{begin} + kRangeCandidates));
    scratch->Reset();
    if (bounds_) {
      ScoreBounds(begin, end);
    } else {
      ScoreExact(begin, end, scratch);
    }
    for (int32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
      ScaleTile({Scores(kv_head, begin), stride_, rows_, end - begin}, shape_.softmax_scale,
                shape_.logit_soft_cap);
    }
  }

  // Upper bounds from the pages' summaries. Summaries of pages that are evenly apart, as those of
  // one layer mostly are, make one tile.
  void ScoreBounds(int32_t begin, int32_t end) const {
    const KvView& kv = block_.kv;
    const SummaryKind kind =
        PruneKeysAreUnrotated(prune_.rope_style) ? SummaryKind::kUnrotated : SummaryKind::kRotated;
    const auto summary = [&](int32_t candidate) {
      return kv.Summary(kind, prune_.Candidate(candidate, chunk_tokens_));
    };
    while (begin < end) {
      int32_t run_end = begin + 1;
      const int64_t stride = run_end < end ? summary(run_end) - summary(begin) : 0;
      while (run_end < end && summary(run_end) - summary(run_end - 1) == stride) {
        ++run_end;
      }
      for (int32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
        DotTile(Queries(kv_head),
                {.first = summary(begin) + int64_t{2} * kv_head * kv.head_bytes,
                 .stride_bytes = stride,
                 .dtype = kv.dtype},
                Depth(), {Scores(kv_head, begin), stride_, rows_, run_end - begin});
      }
      begin = run_end;
    }
  }

  // Candidates [begin, end) that follow each other in a page.
  struct ChunkRun {
    int32_t begin;
    int32_t end;
    KeyPiece piece;
  };

  // The run that starts at candidate `begin`; empty at `end`.
  ChunkRun RunFrom(int32_t begin, int32_t end) const {
    if (begin == end) {
      return {.begin = end, .end = end, .piece = {}};
    }
    const int64_t token = prune_.Candidate(begin, chunk_tokens_);
    int32_t run_end = begin + 1;
    while (run_end < end && Follows(token, begin, run_end)) {
      ++run_end;
    }
    return {.begin = begin,
            .end = run_end,
            .piece = {.token = token,
                      .id = PruneKeyId(prune_.rope_style, token),
                      .keys = (run_end - begin) * chunk_tokens_}};
  }

  // Whether candidate `next` continues the run that began at candidate `begin` with `token`.
  bool Follows(int64_t token, int32_t begin, int32_t next) const {
    const int64_t expected = token + int64_t{next - begin} * chunk_tokens_;
    return expected % kBlockTokens != 0 && prune_.Candidate(next, chunk_tokens_) == expected;
  }

  // The best key of each chunk, a run at a time; while one is scored the next is fetched.
  void ScoreExact(int32_t begin, int32_t end, Scratch* scratch) const {
    const RopeRows& rope = block_.rope;
    float* cos = scratch->Floats(int64_t{kTileKeys} * rope.pairs);
    float* sin = scratch->Floats(int64_t{kTileKeys} * rope.pairs);
    float* dots = scratch->Floats(int64_t{rows_} * kTileKeys);
    const TileRotation rotation{
        .angles = {.cos = cos, .sin = sin}, .pairs = rope.pairs, .pairing = rope.pairing};
    for (ChunkRun run = RunFrom(begin, end); run.begin < end;) {
      const ChunkRun next = RunFrom(run.end, end);
      const KeyPiece& piece = run.piece;
      if (rotates_keys_) {
        LoadAngles(rope, piece.id, piece.keys, cos, sin);
      }
      for (int32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
        RowSource source = KeyRows(block_.kv, piece, kv_head);
        if (next.piece.keys >= piece.keys) {
          source.next = KeyRows(block_.kv, next.piece, kv_head).first;
        }
        const ScoreTile tile{dots, kTileKeys, rows_, piece.keys};
        if (rotates_keys_) {
          DotRotatedTile(Queries(kv_head), source, rotation, shape_.head_dim, tile);
        } else {
          DotTile(Queries(kv_head), source, shape_.head_dim, tile);
        }
        ChunkMaxTile(tile, chunk_tokens_, Scores(kv_head, run.begin), stride_);
      }
      run = next;
    }
  }

  // rank[c] = max over rows and heads of (score - log-sum-exp over the candidates): a
  // log-probability, so that heads count by attention, whatever the size of their logits.
  void Rank(Loop loop, Scratch* scratch) {
    const int64_t all_rows = int64_t{shape_.num_kv_heads} * rows_;
    float* lse = scratch->Floats(all_rows);
    rank_ = scratch->Floats(candidates_);
    loop(all_rows, [&](int64_t row, Scratch* /*local*/) {
      lse[row] = LogSumExp(scores_ + row * stride_, candidates_);
    });
    std::fill_n(rank_, candidates_, -std::numeric_limits<float>::infinity());
    loop(CeilDiv(candidates_, kRankRange), [&](int64_t range, Scratch* /*local*/) {
      const int64_t begin = range * kRankRange;
      const int64_t count = Min(kRankRange, candidates_ - begin);
      for (int64_t row = 0; row < all_rows; ++row) {
        MaxOfShifted(scores_ + row * stride_ + begin, lse[row], count, rank_ + begin);
      }
    });
  }

  // The num_selected best in ascending order; of equal ranks the lower token.
  void Select(Scratch* scratch) const {
    float* sorted = scratch->Floats(candidates_);
    std::copy_n(rank_, candidates_, sorted);
    float* kth = sorted + prune_.num_selected - 1;
    std::nth_element(sorted, kth, sorted + candidates_, std::greater<>());
    const float threshold = *kth;
    int64_t equal =
        prune_.num_selected -
        std::count_if(rank_, rank_ + candidates_, [=](float rank) { return rank > threshold; });
    int32_t* next = prune_.selected;
    for (int32_t candidate = 0; candidate < candidates_; ++candidate) {
      const bool ties = rank_[candidate] == threshold;
      if (rank_[candidate] > threshold || (ties && equal > 0)) {
        equal -= ties ? 1 : 0;
        *next++ = prune_.Candidate(candidate, chunk_tokens_);
      }
    }
  }

  static constexpr int64_t kRankRange = 1024;

  const PruneArgs& args_;
  const AttentionShape& shape_;
  const PruneBlock& prune_;
  const QueryBlock& block_;
  int32_t chunk_tokens_;
  int32_t candidates_;
  int64_t stride_;
  QueryRows query_rows_;
  int32_t rows_;  // scored rows that share a KV head
  bool bounds_;
  bool rotates_keys_;
  float* queries_ = nullptr;  // [kv_heads, rows, depth]
  float* scores_ = nullptr;   // [kv_heads, rows, stride]
  float* rank_ = nullptr;     // [candidates]
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
