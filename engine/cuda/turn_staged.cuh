#pragma once

#include <cstdint>

#include "engine/cuda/mma.cuh"
#include "engine/cuda/rotate.cuh"
#include "engine/cuda/staged_rows.cuh"

namespace longshore::cuda {

/// Whether the pairs of a table can be turned four at a time.
HD inline bool TurnsByFours(const RopeRows& rope) { return rope.pairs % 4 == 0; }

// cos and sin of four consecutive pairs of an id, as TurnOf().
struct FourTurns {
  float cos[4];
  float sin[4];
};

__device__ inline FourTurns FourTurnsOf(const RopeRows& rope, int64_t id, int32_t pair) {
  const int64_t coarse = (id >> 6) * rope.pairs + pair;
  const int64_t fine = (id & 63) * rope.pairs + pair;
  const auto four = [](const float* from, int64_t at) {
    return __ldg(reinterpret_cast<const float4*>(from + at));
  };
  const float4 cc = four(rope.coarse_cos, coarse);
  const float4 cs = four(rope.coarse_sin, coarse);
  const float4 fc = four(rope.fine_cos, fine);
  const float4 fs = four(rope.fine_sin, fine);
  const auto cos = [](float a, float b, float c, float d) { return fmaf(-c, d, __fmul_rn(a, b)); };
  const auto sin = [](float a, float b, float c, float d) { return fmaf(a, d, __fmul_rn(c, b)); };
  return {{cos(cc.x, fc.x, cs.x, fs.x), cos(cc.y, fc.y, cs.y, fs.y), cos(cc.z, fc.z, cs.z, fs.z),
           cos(cc.w, fc.w, cs.w, fs.w)},
          {sin(cc.x, fc.x, cs.x, fs.x), sin(cc.y, fc.y, cs.y, fs.y), sin(cc.z, fc.z, cs.z, fs.z),
           sin(cc.w, fc.w, cs.w, fs.w)}};
}

// Turns two words of two elements each: their elements at the same place are pairs.
template <class Element>
__device__ inline void TurnHalves(const float* cos,
                                  const float* sin,
                                  uint32_t* first,
                                  uint32_t* second) {
  const float2 x = UnpackPair<Element>(*first);
  const float2 y = UnpackPair<Element>(*second);
  *first = PackPair<Element>(fmaf(-y.x, sin[0], __fmul_rn(x.x, cos[0])),
                             fmaf(-y.y, sin[1], __fmul_rn(x.y, cos[1])));
  *second = PackPair<Element>(fmaf(x.x, sin[0], __fmul_rn(y.x, cos[0])),
                              fmaf(x.y, sin[1], __fmul_rn(y.y, cos[1])));
}

// Turns a word whose two elements are a pair.
template <class Element>
__device__ inline void TurnNeighbours(float cos, float sin, uint32_t* word) {
  const float2 x = UnpackPair<Element>(*word);
  *word =
      PackPair<Element>(fmaf(-x.y, sin, __fmul_rn(x.x, cos)), fmaf(x.x, sin, __fmul_rn(x.y, cos)));
}

// Turns staged rows in place and rounds them to Element, a whole warp: row r by the angle of the id
// that lane r holds. Rows of other lanes are there behind a __syncwarp().
template <class Element, class Rows>
__device__ void TurnStaged(const RopeRows& rope, int64_t id, Rows* rows) {
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t fours = rope.pairs / 4;
  const auto words_of = [&](int32_t row, int32_t index) {  // of four elements from `index` on
    return reinterpret_cast<uint32_t*>(rows->At(row, index / 8)) + index % 8 / 2;
  };
  const int32_t steps = (Rows::kRows * fours + 31) / 32;
#pragma unroll 1
  for (int32_t step = 0; step < steps; ++step) {
    const int32_t at = 32 * step + lane;
    const int32_t row = at / fours;
    const int32_t pair = at % fours * 4;
    const int64_t row_id = __shfl_sync(0xffffffffu, id, row);
    if (row >= Rows::kRows) {
      continue;
    }
    const FourTurns turns = FourTurnsOf(rope, row_id, pair);
    if (rope.pairing == RopePairing::kInterleaved) {
      uint32_t* low = words_of(row, 2 * pair);
      uint32_t* high = words_of(row, 2 * pair + 4);
      TurnNeighbours<Element>(turns.cos[0], turns.sin[0], low);
      TurnNeighbours<Element>(turns.cos[1], turns.sin[1], low + 1);
      TurnNeighbours<Element>(turns.cos[2], turns.sin[2], high);
      TurnNeighbours<Element>(turns.cos[3], turns.sin[3], high + 1);
    } else {
      uint32_t* first = words_of(row, pair);
      uint32_t* second = words_of(row, rope.pairs + pair);
      TurnHalves<Element>(turns.cos, turns.sin, first, second);
      TurnHalves<Element>(turns.cos + 2, turns.sin + 2, first + 1, second + 1);
    }
  }
}

}  // namespace longshore::cuda
