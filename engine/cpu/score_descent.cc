#include <algorithm>
#include <array>
#include <limits>

#include "engine/core/math.h"
#include "engine/cpu/scattered_keys.h"

namespace longshore::cpu {
namespace {

// Tokens [first, last] of a chunk that are left on a head's way down.
struct Branch {
  int64_t first = 0;
  int64_t last = 0;
};

// The way of one head down the chunks of a range, all chunks a level at a time.
class HeadDescent {
 public:
  HeadDescent(const StageView& view, CandidateRange range, Scratch* scratch)
      : view_(view),
        range_(range),
        keys_(view, scratch),
        rows_(view.queries_of.count),
        queries_(scratch->Floats(int64_t{rows_} * view.depth)),
        left_(scratch->Floats(int64_t{rows_} * kTileKeys)),
        right_(scratch->Floats(int64_t{rows_} * kTileKeys)),
        best_(scratch->Floats(int64_t{rows_} * kTileKeys)) {}

  // Writes the scores of a KV head's query head `head`.
  void Run(int32_t kv_head, int32_t head) {
    kv_head_ = kv_head;
    const int32_t group = view_.shape.GroupSize();
    for (int32_t row = 0; row < rows_; ++row) {
      const float* query = view_.Queries(kv_head) + (int64_t{row} * group + head) * view_.depth;
      std::copy_n(query, view_.depth, queries_ + int64_t{row} * view_.depth);
    }
    for (int32_t index = 0; index < range_.count(); ++index) {
      const int64_t token = view_.Candidate(range_.begin + index);
      branches_[static_cast<size_t>(index)] = {token, token + view_.stage.chunk_tokens - 1};
    }
    std::fill_n(best_, int64_t{rows_} * kTileKeys, -std::numeric_limits<float>::infinity());
    while (Descend()) {
    }
    Finish(head);
  }

 private:
  // The token that stands for tokens [first, last].
  int64_t Representative(const Branch& branch) const {
    return view_.stage.representative == DescentRepresentative::kFirst
               ? branch.first
               : (branch.first + branch.last) / 2;
  }

  // The halves [first, m - 1] and [m, last] with m = floor((first + last) / 2). The left one of two
  // tokens is empty: there the way ends.
  static Branch Left(const Branch& branch) {
    return {branch.first, (branch.first + branch.last) / 2 - 1};
  }
  static Branch Right(const Branch& branch) {
    return {(branch.first + branch.last) / 2, branch.last};
  }

  // out[row, index] = query . representative of half(branches[index]).
  template <typename Half>
  void Dot(Half half, bool left, float* out) const {
    ForEachSlice(view_, 1, [&](const RowSlice& slice) {
      const auto key_of = [&](int32_t index) {
        const int64_t token = Representative(half(branches_[static_cast<size_t>(index)]));
        return ScatteredKey{token, DescentKeyId(view_.prune.rule, slice.query_position, token,
                                                range_.begin + index, left)};
      };
      keys_.Dot(kv_head_, queries_ + int64_t{slice.first} * view_.depth, key_of,
                {out + int64_t{slice.first} * kTileKeys, kTileKeys, slice.rows, range_.count()});
    });
  }

  // One level for every chunk whose way has not ended. False if there is none.
  bool Descend() {
    const int32_t chunks = range_.count();
    const auto ended = [](const Branch& branch) { return branch.last - branch.first < 2; };
    if (std::all_of(branches_.begin(), branches_.begin() + chunks, ended)) {
      return false;
    }
    const auto half = [&](bool left) {
      return [&, left](const Branch& branch) {
        return ended(branch) ? branch : left ? Left(branch) : Right(branch);
      };
    };
    Dot(half(true), true, left_);
    Dot(half(false), false, right_);
    for (int32_t index = 0; index < chunks; ++index) {
      Branch& branch = branches_[static_cast<size_t>(index)];
      if (ended(branch)) {
        continue;
      }
      const bool left = Best(left_, index) >= Best(right_, index);
      branch = left ? Left(branch) : Right(branch);
      for (int64_t row = 0; row < rows_; ++row) {
        const int64_t at = row * kTileKeys + index;
        best_[at] = std::max(best_[at], left ? left_[at] : right_[at]);
      }
    }
    return true;
  }

  float Best(const float* scores, int64_t index) const {
    float best = scores[index];
    for (int64_t row = 1; row < rows_; ++row) {
      best = std::max(best, scores[row * kTileKeys + index]);
    }
    return best;
  }

  // The final token's scores, or the best on the way and of the final token.
  void Finish(int32_t head) {
    Dot([](const Branch& branch) { return branch; }, false, right_);
    const bool running = view_.stage.descent_score == DescentScore::kRunningMaximum;
    const int32_t group = view_.shape.GroupSize();
    for (int64_t row = 0; row < rows_; ++row) {
      float* out = view_.Scores(kv_head_, row * group + head, range_.begin);
      for (int64_t index = 0; index < range_.count(); ++index) {
        const int64_t at = row * kTileKeys + index;
        out[index] = running ? std::max(best_[at], right_[at]) : right_[at];
      }
    }
  }

  const StageView& view_;
  CandidateRange range_;
  ScatteredKeys keys_;
  int32_t rows_;  // scored queries
  int32_t kv_head_ = 0;
  float* queries_;  // [rows, depth] of the head
  float* left_;     // [rows, kTileKeys]
  float* right_;    // [rows, kTileKeys]
  float* best_;     // [rows, kTileKeys] on the way so far
  std::array<Branch, kTileKeys> branches_;
};

}  // namespace

void ScoreDescent(const StageView& view, CandidateRange range, Scratch* scratch) {
  HeadDescent descent(view, range, scratch);
  for (int32_t kv_head = 0; kv_head < view.shape.num_kv_heads; ++kv_head) {
    for (int32_t head = 0; head < view.shape.GroupSize(); ++head) {
      descent.Run(kv_head, head);
    }
  }
}

}  // namespace longshore::cpu
