#pragma once

#include <cstdint>

#include "engine/cuda/ptx.cuh"
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
  // Tables of 2^32 elements and more are none.
  const auto narrow = static_cast<uint32_t>(id);
  const auto pairs = static_cast<uint32_t>(rope.pairs);
  const uint32_t coarse = (narrow >> 6) * pairs + static_cast<uint32_t>(pair);
  const uint32_t fine = (narrow & 63) * pairs + static_cast<uint32_t>(pair);
  const auto four = [](const float* from, uint32_t at) {
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

// Turns the 16 staged rows of a warp in place, all their dimensions, and rounds them to Element. A
// lane has the same pairs of all rows that it turns, so that most addresses are found once. Between
// wait() and a barrier of the caller's; the angles of kAhead steps are found before.
//
//   ids  [16] rotary ids of the rows
template <class Element, int32_t kDepth, int32_t kAhead, class Rows, class Wait>
__device__ void TurnStaged(const RopeRows& rope, const int32_t* ids, Rows* rows, const Wait& wait) {
  constexpr int32_t kFours = kDepth / 8;
  constexpr int32_t kRowsAtOnce = 32 / kFours;
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t of_lane = lane / kFours;
  const int32_t pair = lane % kFours * 4;
  constexpr int32_t kSteps = Rows::kRows / kRowsAtOnce;
  const bool turns = of_lane < kRowsAtOnce;
  const auto turns_of = [&](int32_t step) {
    return FourTurnsOf(rope, ids[step * kRowsAtOnce + of_lane], pair);
  };
  const auto turn = [&](int32_t step, const FourTurns& angles) {
    TurnFour<Element, kDepth>(rope.pairing, pair, angles, [&](int32_t chunk) {
      if constexpr (kRowsAtOnce % 2 == 0) {  // an even number of rows further on, all is alike
        return rows->At(of_lane, chunk) + step * kRowsAtOnce * Rows::kChunks;
      } else {
        return rows->At(step * kRowsAtOnce + of_lane, chunk);
      }
    });
  };
  FourTurns ahead[kAhead + 1];
  if (turns) {
#pragma unroll
    for (int32_t step = 0; step < kAhead; ++step) {
      ahead[step] = turns_of(step);
    }
  }
  wait();
  if (turns) {
#pragma unroll
    for (int32_t step = 0; step < kAhead; ++step) {
      turn(step, ahead[step]);
    }
#pragma unroll 4
    for (int32_t step = kAhead; step < kSteps; ++step) {
      turn(step, turns_of(step));
    }
  }
}

}  // namespace longshore::cuda
