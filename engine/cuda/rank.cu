#include "engine/cuda/block_reduce.cuh"
#include "engine/cuda/chain.cuh"
#include "engine/cuda/kernels.h"

namespace longshore::cuda {
namespace {

constexpr int32_t kThreads = 256;

// log sum exp of the scores of one head and scored row (x) of a block (y), as its one partial sum.
// A thread's share is short, its sums are added in double precision: no digits are lost.
__global__ void __launch_bounds__(kThreads) LogSumExps(const __grid_constant__ PruneLaunch launch) {
  __shared__ float shared_max[kThreads / 32];
  __shared__ double shared_sum[kThreads / 32];
  const StageLayout& layout = launch.Layout(blockIdx.y);
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

// Adds sum exp(max) to another; nothing where both are empty.
__device__ void MergeLogSum(float other_max, float other_sum, float* max, float* sum) {
  const float larger = fmaxf(*max, other_max);
  if (larger > -INFINITY) {
    *sum = *sum * expf(*max - larger) + other_sum * expf(other_max - larger);
    *max = larger;
  }
}

constexpr int32_t kRowsAtOnce = 4;

// The log sum exps of four rows from `row` on, by a warp: lane l has every 32nd partial sum from l
// on, and all are on their way at once.
__device__ void FindShifts(const PruneLaunch& launch,
                           const StageLayout& layout,
                           int32_t row,
                           int32_t rows,
                           float* shifts) {
  constexpr int32_t kPartsAtOnce = 2;
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t partials = layout.partials;
  const float* maxima = launch.workspace + layout.partial_max + int64_t{row} * partials;
  const float* sums = launch.workspace + layout.partial_sum + int64_t{row} * partials;
  float max[kRowsAtOnce];
  float sum[kRowsAtOnce];
#pragma unroll
  for (int32_t of = 0; of < kRowsAtOnce; ++of) {
    max[of] = -INFINITY;
    sum[of] = 0.0F;
  }
  for (int32_t first = 0; first < partials; first += 32 * kPartsAtOnce) {
    float part_max[kRowsAtOnce][kPartsAtOnce];
    float part_sum[kRowsAtOnce][kPartsAtOnce];
#pragma unroll
    for (int32_t of = 0; of < kRowsAtOnce; ++of) {
#pragma unroll
      for (int32_t at = 0; at < kPartsAtOnce; ++at) {
        const int32_t part = first + 32 * at + lane;
        const bool there = part < partials && row + of < rows;
        part_max[of][at] = there ? maxima[of * partials + part] : -INFINITY;
        part_sum[of][at] = there ? sums[of * partials + part] : 0.0F;
      }
    }
#pragma unroll
    for (int32_t at = 0; at < kPartsAtOnce; ++at) {
#pragma unroll
      for (int32_t of = 0; of < kRowsAtOnce; ++of) {
        MergeLogSum(part_max[of][at], part_sum[of][at], &max[of], &sum[of]);
      }
    }
  }
  for (int32_t step = 16; step > 0; step /= 2) {
#pragma unroll
    for (int32_t of = 0; of < kRowsAtOnce; ++of) {
      const float other_max = __shfl_xor_sync(kWholeWarp, max[of], step);
      const float other_sum = __shfl_xor_sync(kWholeWarp, sum[of], step);
      MergeLogSum(other_max, other_sum, &max[of], &sum[of]);
    }
  }
#pragma unroll
  for (int32_t of = 0; of < kRowsAtOnce; ++of) {
    if (lane == 0 && row + of < rows) {
      shifts[of] = max[of] + logf(sum[of]);
    }
  }
}

// The rank of one candidate (x) of a block (y): the largest score over heads and rows, or the log
// of the sum of powers, after each head and row's log sum exp is taken off.
__global__ void __launch_bounds__(kThreads, 1)
    RankCandidates(const __grid_constant__ PruneLaunch launch) {
  constexpr int32_t kShifts = 1024;
  __shared__ float shift[kShifts + 32];
  WaitForEarlier();
  LetLaterStart();
  const StageLayout& layout = launch.Layout(blockIdx.y);
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
  const int64_t stride = layout.score_stride;
  const float* scores =
      launch.workspace + layout.scores + (there ? candidate : layout.candidates - 1);
  float rank = -INFINITY;
  float sum = 0.0F;
  for (int32_t pass = 0; pass < (sums_up ? 2 : 1); ++pass) {
    const float* score = scores;
    for (int32_t first = 0; first < rows; first += kShifts) {
      const int32_t count = min(kShifts, rows - first);
      __syncthreads();
      for (auto row = static_cast<int32_t>(threadIdx.x) / 32 * kRowsAtOnce; row < count;
           row += kThreads / 32 * kRowsAtOnce) {
        if (shifts) {
          FindShifts(launch, layout, first + row, rows, shift + row);
        } else if (threadIdx.x % 32 < kRowsAtOnce) {
          shift[row + threadIdx.x % 32] = 0.0F;
        }
      }
      __syncthreads();
#pragma unroll 16
      for (int32_t row = 0; row < count; ++row) {
        const float shifted = *score - shift[row];
        score += stride;
        if (pass == 0) {
          rank = fmaxf(rank, shifted);
        } else {
          sum += expf(power * (shifted - rank));
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
  LaunchChained(RankCandidates, {grid, kThreads}, launch, stream);
}

}  // namespace longshore::cuda
