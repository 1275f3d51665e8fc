#include "engine/cuda/block_reduce.cuh"
#include "engine/cuda/kernels.h"

namespace longshore::cuda {
namespace {

constexpr int32_t kThreads = 256;

// log sum exp of the scores of one head and scored row (x) of a block (y). A thread's share is
// short, its sums are added in double precision: no digits are lost.
__global__ void __launch_bounds__(kThreads) LogSumExps(const __grid_constant__ PruneLaunch launch) {
  __shared__ float shared_max[kThreads / 32];
  __shared__ double shared_sum[kThreads / 32];
  const StageLayout& layout = launch.layouts[blockIdx.y];
  const auto row = static_cast<int32_t>(blockIdx.x);
  if (row >= layout.scored * launch.shape.num_heads) {
    return;
  }
  const float* scores = launch.workspace + layout.scores + row * layout.score_stride;
  float max = -INFINITY;
  for (int32_t at = static_cast<int32_t>(threadIdx.x); at < layout.candidates; at += kThreads) {
    max = fmaxf(max, scores[at]);
  }
  max = BlockReduce<kThreads>(
      max, [](float a, float b) { return fmaxf(a, b); }, shared_max);
  double sum = 0.0;
  if (!isinf(max)) {
    constexpr int32_t kPart = 64;  // scores that a thread adds up in fp32
    for (int32_t begin = static_cast<int32_t>(threadIdx.x); begin < layout.candidates;
         begin += kPart * kThreads) {
      float part = 0.0F;
      const auto end = static_cast<int32_t>(Min(layout.candidates, begin + kPart * kThreads));
      for (int32_t at = begin; at < end; at += kThreads) {
        part += expf(scores[at] - max);
      }
      sum += part;
    }
  }
  sum = BlockReduce<kThreads>(
      sum, [](double a, double b) { return a + b; }, shared_sum);
  if (threadIdx.x == 0) {
    launch.workspace[layout.shift + row] =
        isinf(max) ? max : static_cast<float>(static_cast<double>(max) + log(sum));
  }
}

// The rank of one candidate (x) of a block (y): the largest score over heads and rows, or the log
// of the sum of powers, after each head and row's log sum exp is taken off.
__global__ void __launch_bounds__(kThreads)
    RankCandidates(const __grid_constant__ PruneLaunch launch) {
  const StageLayout& layout = launch.layouts[blockIdx.y];
  const int32_t candidate =
      static_cast<int32_t>(blockIdx.x) * kThreads + static_cast<int32_t>(threadIdx.x);
  if (layout.scored == 0 || candidate >= layout.candidates) {
    return;
  }
  const bool shifts = launch.ranking != Ranking::kScoreMax;
  const int32_t rows = layout.scored * launch.shape.num_heads;
  const float* scores = launch.workspace + layout.scores + candidate;
  const float* shift = launch.workspace + layout.shift;
  float rank = -INFINITY;
  for (int32_t row = 0; row < rows; ++row) {
    const float minus = shifts ? shift[row] : 0.0F;
    if (minus != -INFINITY) {
      rank = fmaxf(rank, scores[row * layout.score_stride] - minus);
    }
  }
  if (launch.ranking == Ranking::kProbabilitySum || launch.ranking == Ranking::kProbabilityPower) {
    const float power =
        launch.ranking == Ranking::kProbabilityPower ? launch.probability_power : 1.0F;
    float sum = 0.0F;
    for (int32_t row = 0; row < rows; ++row) {
      if (shift[row] != -INFINITY) {
        sum += expf(power * (scores[row * layout.score_stride] - shift[row] - rank));
      }
    }
    rank = power * rank + logf(sum);
  }
  launch.workspace[layout.rank + candidate] = rank;
}

}  // namespace

void LaunchRank(const PruneLaunch& launch, cudaStream_t stream) {
  const auto blocks = static_cast<uint32_t>(launch.num_blocks);
  if (launch.ranking != Ranking::kScoreMax) {
    const auto rows = static_cast<uint32_t>(launch.most_scored * launch.shape.num_heads);
    LogSumExps<<<dim3(rows, blocks), kThreads, 0, stream>>>(launch);
  }
  const auto tiles = static_cast<uint32_t>(CeilDiv(launch.most_candidates, kThreads));
  RankCandidates<<<dim3(tiles, blocks), kThreads, 0, stream>>>(launch);
}

}  // namespace longshore::cuda
