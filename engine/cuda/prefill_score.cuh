#pragma once

#include <cstdint>

#include "engine/cuda/log_sum.cuh"
#include "engine/cuda/panels.cuh"
#include "engine/cuda/warpgroup.cuh"

namespace longshore::cuda {

// The scores of 16 columns (queries) against a tile of rows (keys or summaries), by a warp, of
// which each four are a group with 64 columns: with i = lane / 4 and j = lane % 4 the lane has
// columns i and i + 8, and of each the rows 8 n + 2 j and 8 n + 2 j + 1.
template <class Element, int32_t kTileRows>
struct WarpScores {
  static constexpr int32_t kRowTiles = kTileRows / 8;

  Accumulator scores[kRowTiles];

  // Adds the products of kDepth elements, of the queries from panel `query_panel` on. `begins`: it
  // is the first that is added.
  template <int32_t kDepth, class Queries, class Rows>
  __device__ void Add(bool begins, int32_t query_panel, Queries* queries, Rows* rows) {
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
    if constexpr (kHasWarpgroups) {
      BeginProducts();
      const uint64_t left = MatrixAt(&queries->chunks[query_panel][warp / 4 * 64][0], 16);
      const uint64_t right = MatrixAt(&rows->chunks[0][0][0], 16);
#pragma unroll
      for (int32_t chunk = 0; chunk < kDepth / 8; chunk += 2) {
        MultiplyShared(Columns<kTileRows>{}, Element{}, left + ChunksOn<Queries>(chunk),
                       right + ChunksOn<Rows>(chunk), begins && chunk == 0 ? 0 : 1, scores);
      }
      CommitProducts();
      WaitProducts<0>();
      return;
    }
    if (begins) {
#pragma unroll
      for (Accumulator& sums : scores) {
        sums = {};
      }
    }
    const Fragments<Queries, Side::kLeft> left_of(queries, 16 * warp);
    const Fragments<Rows, Side::kRight> right_of(rows, 0);
#pragma unroll
    for (int32_t chunk = 0; chunk < kDepth / 8; chunk += 2) {
      const uint4 left = left_of.Load(0, 8 * query_panel + chunk);
#pragma unroll
      for (int32_t row = 0; row < kRowTiles; row += 2) {
        const uint4 r = right_of.Load(8 * row, chunk);
        Multiply<Element>(left.x, left.y, left.z, left.w, r.x, r.y, &scores[row]);
        Multiply<Element>(left.x, left.y, left.z, left.w, r.z, r.w, &scores[row + 1]);
      }
    }
  }

  // Of column i + 8 half: value `at` is that of row 8 (first + at / 2) + 2 j + at % 2.
  template <int32_t kCount>
  __device__ void CopyTo(int32_t half, int32_t first, float (&values)[kCount]) const {
#pragma unroll
    for (int32_t at = 0; at < kCount; ++at) {
      values[at] = scores[first + at / 2].c[2 * half + at % 2];
    }
  }

  // The best of each candidate's `keys` rows, a power of two from 2 to 64, of column i + 8 half:
  // best[n] is that of the candidate which begins at row 8 n + (2 j in place of 0, where keys < 8).
  __device__ void Fold(int32_t keys, int32_t half, float (&best)[kRowTiles]) const {
#pragma unroll
    for (int32_t n = 0; n < kRowTiles; ++n) {
      best[n] = fmaxf(scores[n].c[2 * half], scores[n].c[2 * half + 1]);
      if (keys >= 4) {
        best[n] = fmaxf(best[n], __shfl_xor_sync(0xffffffffu, best[n], 1));
      }
      if (keys >= 8) {
        best[n] = fmaxf(best[n], __shfl_xor_sync(0xffffffffu, best[n], 2));
      }
    }
#pragma unroll
    for (int32_t step = 1; step < 8; step *= 2) {
      if (keys > 8 * step) {
#pragma unroll
        for (int32_t n = 0; n + step < kRowTiles; n += 2 * step) {
          best[n] = fmaxf(best[n], best[n + step]);
        }
      }
    }
  }
};

// One lane's fourth of values that four lanes hold alike, the j-th.
template <int32_t kCount>
__device__ inline void TakeFourth(const float (&all)[kCount], float (&mine)[kCount / 4]) {
  const int32_t j = static_cast<int32_t>(threadIdx.x) % 4;
#pragma unroll
  for (int32_t at = 0; at < kCount / 4; ++at) {
    const float low = (j & 1) != 0 ? all[kCount / 4 + at] : all[at];
    const float high = (j & 1) != 0 ? all[3 * kCount / 4 + at] : all[kCount / 2 + at];
    mine[at] = (j & 2) != 0 ? high : low;
  }
}

// The maximum over the lanes with equal j of eight values each; this lane gets that of value i.
__device__ inline float SpreadMaxima(float (&values)[8]) {
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
#pragma unroll
  for (int32_t left = 4; left > 0; left /= 2) {
    const bool upper = (lane & 4 * left) != 0;
#pragma unroll
    for (int32_t at = 0; at < left; ++at) {
      const float sent = upper ? values[at] : values[at + left];
      const float kept = upper ? values[at + left] : values[at];
      values[at] = fmaxf(kept, __shfl_xor_sync(0xffffffffu, sent, 4 * left));
    }
  }
  return values[0];
}

// All 128 threads of four warps.
__device__ inline void GroupBarrier() {
  NamedBarrier<128>(static_cast<int32_t>(threadIdx.x) / 128);
}

}  // namespace longshore::cuda
