#pragma once

#include <cstdint>

#include "engine/cuda/mma.cuh"
#include "engine/cuda/rotate.cuh"
#include "engine/cuda/staged_rows.cuh"

namespace longshore::cuda {

// The angles of four consecutive pairs of an id, as TurnOf().
struct alignas(16) FourTurns {
  Turn x;
  Turn y;
  Turn z;
  Turn w;
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
  return {Compose({cc.x, cs.x}, {fc.x, fs.x}), Compose({cc.y, cs.y}, {fc.y, fs.y}),
          Compose({cc.z, cs.z}, {fc.z, fs.z}), Compose({cc.w, cs.w}, {fc.w, fs.w})};
}

// Turns two words of two elements each: their elements at the same place are pairs.
template <class Element>
__device__ inline void TurnHalves(const Turn& turn0,
                                  const Turn& turn1,
                                  uint32_t* first,
                                  uint32_t* second) {
  const float2 x = UnpackPair<Element>(*first);
  const float2 y = UnpackPair<Element>(*second);
  *first = PackPair<Element>(TurnedFirst(turn0, x.x, y.x), TurnedFirst(turn1, x.y, y.y));
  *second = PackPair<Element>(TurnedSecond(turn0, x.x, y.x), TurnedSecond(turn1, x.y, y.y));
}

// Turns a word whose two elements are a pair.
template <class Element>
__device__ inline void TurnNeighbours(const Turn& turn, uint32_t* word) {
  const float2 x = UnpackPair<Element>(*word);
  *word = PackPair<Element>(TurnedFirst(turn, x.x, x.y), TurnedSecond(turn, x.x, x.y));
}

// Turns four pairs, from pair number `pair` on, of a row in chunks of eight 16-bit elements:
// chunk_of(index) is chunk `index` of the row.
template <class Element, int32_t kDepth, class ChunkOf>
__device__ inline void TurnFour(RopePairing pairing,
                                int32_t pair,
                                const FourTurns& turns,
                                const ChunkOf& chunk_of) {
  const auto words_of = [&](int32_t index) {  // of four elements from `index` on
    return reinterpret_cast<uint2*>(chunk_of(index / 8)) + index % 8 / 4;
  };
  if (pairing == RopePairing::kInterleaved) {
    uint2 low = *words_of(2 * pair);
    uint2 high = *words_of(2 * pair + 4);
    TurnNeighbours<Element>(turns.x, &low.x);
    TurnNeighbours<Element>(turns.y, &low.y);
    TurnNeighbours<Element>(turns.z, &high.x);
    TurnNeighbours<Element>(turns.w, &high.y);
    *words_of(2 * pair) = low;
    *words_of(2 * pair + 4) = high;
    return;
  }
  uint2 first = *words_of(pair);
  uint2 second = *words_of(kDepth / 2 + pair);
  TurnHalves<Element>(turns.x, turns.y, &first.x, &second.x);
  TurnHalves<Element>(turns.z, turns.w, &first.y, &second.y);
  *words_of(pair) = first;
  *words_of(kDepth / 2 + pair) = second;
}

// Turns the 16 staged rows of a warp in place, all their dimensions, and rounds them to Element.
//
//   ids  [16] rotary ids of the rows
template <class Element, int32_t kDepth, class Rows>
__device__ void TurnStaged(const RopeRows& rope, const int32_t* ids, Rows* rows) {
  constexpr int32_t kFours = kDepth / 8;
#pragma unroll 4
  for (auto at = static_cast<int32_t>(threadIdx.x) % 32; at < Rows::kRows * kFours; at += 32) {
    const int32_t row = at / kFours;
    const int32_t pair = at % kFours * 4;
    TurnFour<Element, kDepth>(rope.pairing, pair, FourTurnsOf(rope, ids[row], pair),
                              [&](int32_t chunk) { return rows->At(row, chunk); });
  }
}

}  // namespace longshore::cuda
