#include "engine/cuda/block_reduce.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/launch.cuh"
#include "engine/cuda/rank.cuh"

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

// The ranks of kThreads candidates (x) of a block (y).
__global__ void __launch_bounds__(kThreads, 1)
    RankCandidates(const __grid_constant__ PruneLaunch launch) {
  __shared__ float shifts[kShifts];
  WaitForEarlier();
  LetLaterStart();
  const StageLayout& layout = launch.Layout(blockIdx.y);
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kThreads;
  if (layout.scored == 0 || first >= layout.candidates) {
    return;
  }
  const int32_t candidate = first + static_cast<int32_t>(threadIdx.x);
  const float rank = RankOf<kThreads>(launch, layout, candidate, shifts);
  if (candidate < layout.candidates) {
    launch.workspace[layout.rank + candidate] = rank;
  }
}

__global__ void __launch_bounds__(kThreads) ClearRanks(const __grid_constant__ PruneLaunch launch) {
  const StageLayout& layout = launch.Layout(blockIdx.y);
  const int32_t candidate =
      static_cast<int32_t>(blockIdx.x) * kThreads + static_cast<int32_t>(threadIdx.x);
  if (layout.scored > 0 && candidate < layout.candidates) {
    launch.workspace[layout.rank + candidate] = -INFINITY;
  }
}

}  // namespace

void LaunchClearRanks(const PruneLaunch& launch, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(CeilDiv(launch.most_candidates, kThreads)),
                  static_cast<uint32_t>(launch.num_blocks));
  LaunchKernel<ClearRanks>({grid, kThreads}, stream, launch);
}

void LaunchLogSumExps(const PruneLaunch& launch, cudaStream_t stream) {
  const auto rows = static_cast<uint32_t>(launch.most_scored * launch.shape.num_heads);
  const dim3 grid(rows, static_cast<uint32_t>(launch.num_blocks));
  LaunchKernel<LogSumExps>({grid, kThreads}, stream, launch);
}

void LaunchRank(const PruneLaunch& launch, CallQueue* queue) {
  const auto tiles = static_cast<uint32_t>(CeilDiv(launch.most_candidates, kThreads));
  const dim3 grid(tiles, static_cast<uint32_t>(launch.num_blocks));
  LaunchChained<RankCandidates>({grid, kThreads}, queue, launch);
}

}  // namespace longshore::cuda
