#include "engine/cpu/rank_candidates.h"

#include <algorithm>
#include <limits>

#include "engine/core/math.h"

namespace longshore::cpu {
namespace {

constexpr int64_t kRankRange = 1024;  // candidates that a thread ranks at a time

}  // namespace

float* RankCandidates(const PruneArgs& args, const StageView& view, Loop loop, Scratch* scratch) {
  const int64_t rows = int64_t{view.shape.num_kv_heads} * view.rows;
  const int64_t candidates = view.candidates;
  float* shift = scratch->Floats(rows);
  float* rank = scratch->Floats(candidates);
  float* sums = scratch->Floats(candidates);
  std::fill_n(shift, rows, 0.0F);
  if (args.ranking != Ranking::kScoreMax) {
    loop(rows, [&](int64_t row, Scratch* /*local*/) {
      shift[row] = LogSumExp(view.scores + row * view.stride, candidates);
    });
  }
  const bool sums_up =
      args.ranking == Ranking::kProbabilitySum || args.ranking == Ranking::kProbabilityPower;
  const float power = args.ranking == Ranking::kProbabilityPower ? args.probability_power : 1.0F;
  std::fill_n(rank, candidates, -std::numeric_limits<float>::infinity());
  loop(CeilDiv(candidates, kRankRange), [&](int64_t range, Scratch* /*local*/) {
    const int64_t begin = range * kRankRange;
    const int64_t count = Min(kRankRange, candidates - begin);
    for (int64_t row = 0; row < rows; ++row) {
      MaxOfShifted(view.scores + row * view.stride + begin, shift[row], count, rank + begin);
    }
    if (!sums_up) {
      return;
    }
    std::fill_n(sums + begin, count, 0.0F);
    for (int64_t row = 0; row < rows; ++row) {
      AddPowers(view.scores + row * view.stride + begin, shift[row], rank + begin, power, count,
                sums + begin);
    }
    LogOfPowers(sums + begin, power, count, rank + begin);
  });
  return rank;
}

}  // namespace longshore::cpu
