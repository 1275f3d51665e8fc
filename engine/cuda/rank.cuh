#pragma once

#include <cstdint>

#include "engine/cuda/block_reduce.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/scale.cuh"

// The rank of a candidate: the largest score over heads and rows, or the log of the sum of powers,
// after each head and row's log-sum-exp is taken off.
namespace longshore::cuda {

inline constexpr int32_t kShifts = 1024;  // rows whose log-sum-exps are at hand together

// What is here is compiled into several kernels, which must agree in every bit: roundings are
// spelled out.
struct ShiftSum {
  float max = -INFINITY;
  float sum = 0.0F;

  __device__ void Merge(const ShiftSum& other) {
    const float larger = fmaxf(max, other.max);
    if (larger > -INFINITY) {  // differences of infinities are not numbers
      const float added = __fmul_rn(other.sum, Exp2(__fmul_rn(other.max - larger, kLog2E)));
      sum = fmaf(sum, Exp2(__fmul_rn(max - larger, kLog2E)), added);
      max = larger;
    }
  }
};

// The log-sum-exps of kRowsAtOnce rows from `row` on, by a warp: lane l has every 32nd partial sum
// from l on, and several are on their way at once.
template <int32_t kRowsAtOnce>
__device__ void FindShifts(const PruneLaunch& launch,
                           const StageLayout& layout,
                           int32_t row,
                           int32_t rows,
                           float* shifts) {
  constexpr int32_t kPartsAtOnce = 8 / kRowsAtOnce;
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t partials = layout.partials;
  const float* maxima = launch.workspace + layout.partial_max + int64_t{row} * partials;
  const float* sums = launch.workspace + layout.partial_sum + int64_t{row} * partials;
  ShiftSum all[kRowsAtOnce];
  for (int32_t first = 0; first < partials; first += 32 * kPartsAtOnce) {
    ShiftSum parts[kRowsAtOnce][kPartsAtOnce];
#pragma unroll
    for (int32_t of = 0; of < kRowsAtOnce; ++of) {
#pragma unroll
      for (int32_t at = 0; at < kPartsAtOnce; ++at) {
        const int32_t part = first + 32 * at + lane;
        if (part < partials && row + of < rows) {
          parts[of][at] = {maxima[of * partials + part], sums[of * partials + part]};
        }
      }
    }
#pragma unroll
    for (int32_t at = 0; at < kPartsAtOnce; ++at) {
#pragma unroll
      for (int32_t of = 0; of < kRowsAtOnce; ++of) {
        all[of].Merge(parts[of][at]);
      }
    }
  }
  for (int32_t step = 16; step > 0; step /= 2) {
#pragma unroll
    for (int32_t of = 0; of < kRowsAtOnce; ++of) {
      all[of].Merge({__shfl_xor_sync(kWholeWarp, all[of].max, step),
                     __shfl_xor_sync(kWholeWarp, all[of].sum, step)});
    }
  }
#pragma unroll
  for (int32_t of = 0; of < kRowsAtOnce; ++of) {
    if (lane == 0 && row + of < rows) {
      shifts[of] = __fadd_rn(all[of].max, logf(all[of].sum));
    }
  }
}

// The rank of candidate `candidate`, another one for each of kThreads threads, which all take part.
//
//   shifts  [kShifts] in shared memory, for this alone
template <int32_t kThreads>
__device__ float RankOf(const PruneLaunch& launch,
                        const StageLayout& layout,
                        int32_t candidate,
                        float* shifts) {
  constexpr int32_t kWarps = kThreads / 32;
  constexpr int32_t kRowsAtOnce = kWarps >= 32 ? 1 : 4;
  const bool shifted = launch.ranking != Ranking::kScoreMax;
  const bool sums_up =
      launch.ranking == Ranking::kProbabilitySum || launch.ranking == Ranking::kProbabilityPower;
  const float power =
      launch.ranking == Ranking::kProbabilityPower ? launch.probability_power : 1.0F;
  const int32_t rows = layout.scored * launch.shape.num_heads;
  const float* scores = launch.workspace + layout.scores + min(candidate, layout.candidates - 1);
  float rank = -INFINITY;
  float sum = 0.0F;
  for (int32_t pass = 0; pass < (sums_up ? 2 : 1); ++pass) {
    const float* score = scores;
    for (int32_t first = 0; first < rows; first += kShifts) {
      const int32_t count = min(kShifts, rows - first);
      __syncthreads();
      if (shifted) {
        for (auto row = static_cast<int32_t>(threadIdx.x) / 32 * kRowsAtOnce; row < count;
             row += kWarps * kRowsAtOnce) {
          FindShifts<kRowsAtOnce>(launch, layout, first + row, rows, shifts + row);
        }
      } else {
        for (auto row = static_cast<int32_t>(threadIdx.x); row < count; row += kThreads) {
          shifts[row] = 0.0F;
        }
      }
      __syncthreads();
#pragma unroll 16
      for (int32_t row = 0; row < count; ++row) {
        const float moved = *score - shifts[row];
        score += layout.score_stride;
        if (pass == 0) {
          rank = fmaxf(rank, moved);
        } else {
          sum = __fadd_rn(sum, expf(__fmul_rn(power, moved - rank)));
        }
      }
    }
  }
  return sums_up ? __fadd_rn(__fmul_rn(power, rank), logf(sum)) : rank;
}

}  // namespace longshore::cuda
