#include "engine/cuda/block_reduce.cuh"
#include "engine/cuda/kernels.h"

namespace longshore::cuda {
namespace {

constexpr int32_t kThreads = 256;

// log sum exp of the scores of one head and scored row (x) of a block (y), as its one partial sum.
// A thread's share is short, its sums are added in double precision: no digits are lost.
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
  sum = BlockReduce<kThreads>(
      sum, [](double a, double b) { return a + b; }, shared_sum);
  if (threadIdx.x == 0) {
    launch.workspace[layout.partial_max + row] = max;
    launch.workspace[layout.partial_sum + row] = static_cast<float>(sum);
  }
}

// The log sum exp of one row, all its partial sums in order.
__device__ float ShiftOf(const PruneLaunch& launch, const StageLayout& layout, int32_t row) {
  const int64_t rows = int64_t{layout.scored} * launch.shape.num_heads;
  const float* maxima = launch.workspace + layout.partial_max + row;
  const float* sums = launch.workspace + layout.partial_sum + row;
  float max = -INFINITY;
#pragma unroll 8
  for (int32_t part = 0; part < layout.partials; ++part) {
    max = fmaxf(max, maxima[part * rows]);
  }
  float sum = 0.0F;
#pragma unroll 8
  for (int32_t part = 0; part < layout.partials; ++part) {
    sum += sums[part * rows] * expf(maxima[part * rows] - max);
  }
  return max + logf(sum);
}

// The rank of one candidate (x) of a block (y): the largest score over heads and rows, or the log
// of the sum of powers, after each head and row's log sum exp is taken off.
__global__ void __launch_bounds__(kThreads)
    RankCandidates(const __grid_constant__ PruneLaunch launch) {
  constexpr int32_t kShifts = 1024;
  __shared__ float shift[kShifts];
  const StageLayout& layout = launch.layouts[blockIdx.y];
  const int32_t candidate =
      static_cast<int32_t>(blockIdx.x) * kThreads + static_cast<int32_t>(threadIdx.x);
  if (layout.scored == 0 || static_cast<int32_t>(blockIdx.x) * kThreads >= layout.candidates) {
    return;
  }
  const bool there = candidate < layout.candidates;
  const bool shifts = launch.ranking != Ranking::kScoreMax;
  const bool sums_up =
      launch.ranking == Ranking::kProbabilitySum || launch.ranking == Ranking::kProbabilityPower;
  const float power =
      launch.ranking == Ranking::kProbabilityPower ? launch.probability_power : 1.0F;
  const int32_t rows = layout.scored * launch.shape.num_heads;
  const float* scores = launch.workspace + layout.scores + candidate;
  float rank = -INFINITY;
  float sum = 0.0F;
  for (int32_t pass = 0; pass < (sums_up ? 2 : 1); ++pass) {
    for (int32_t first = 0; first < rows; first += kShifts) {
      const int32_t count = min(kShifts, rows - first);
      __syncthreads();
      for (auto row = static_cast<int32_t>(threadIdx.x); row < count; row += kThreads) {
        shift[row] = shifts ? ShiftOf(launch, layout, first + row) : 0.0F;
      }
      __syncthreads();
#pragma unroll 8
      for (int32_t row = 0; row < count; ++row) {
        const float score = there ? scores[(first + row) * layout.score_stride] : 0.0F;
        if (pass == 0) {
          rank = fmaxf(rank, score - shift[row]);
        } else {
          sum += expf(power * (score - shift[row] - rank));
        }
      }
    }
  }
  if (there) {
    launch.workspace[layout.rank + candidate] = sums_up ? power * rank + logf(sum) : rank;
  }
}

}  // namespace

void LaunchLogSumExps(const PruneLaunch& launch, cudaStream_t stream) {
  const auto rows = static_cast<uint32_t>(launch.most_scored * launch.shape.num_heads);
  const dim3 grid(rows, static_cast<uint32_t>(launch.num_blocks));
  LogSumExps<<<grid, kThreads, 0, stream>>>(launch);
}

void LaunchRank(const PruneLaunch& launch, cudaStream_t stream) {
  const auto tiles = static_cast<uint32_t>(CeilDiv(launch.most_candidates, kThreads));
  const dim3 grid(tiles, static_cast<uint32_t>(launch.num_blocks));
  RankCandidates<<<grid, kThreads, 0, stream>>>(launch);
}

}  // namespace longshore::cuda
