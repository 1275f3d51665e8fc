#pragma once

#include <cstdint>

#include "engine/cuda/panels.cuh"
#include "engine/cuda/turn_staged.cuh"

namespace longshore::cuda {

// Turns rows in place, all their dimensions, and rounds them to Element, by kThreads threads: each
// has the same four pairs of every so many rows, which are swapped alike.
//
//   ids     [rows] in shared memory
//   thread  of the kThreads
template <class Element, int32_t kThreads, int32_t kRows, int32_t kDepth>
__device__ void TurnPanels(const RopeRows& rope,
                           const int32_t* ids,
                           int32_t thread,
                           Panels<kRows, kDepth>* rows) {
  constexpr int32_t kFours = kDepth / 8;
  constexpr int32_t kRowStep = kThreads / kFours;
  constexpr int32_t kSteps = kRows / kRowStep;
  static_assert(kRowStep % 8 == 0 && kSteps * kRowStep == kRows);
  const int32_t four = thread % kFours;
  const int32_t row = thread / kFours;
  constexpr int32_t kNext = kRowStep * 16;  // words of four elements between the rows of a thread
  const auto angles = [&](int32_t step) {
    return FourTurnsOf(rope, ids[row + step * kRowStep], 4 * four);
  };
  if (rope.pairing == RopePairing::kInterleaved) {
    uint4* words = rows->At(row, four);
#pragma unroll 1
    for (int32_t step = 0; step < kSteps; ++step, words += kNext / 2) {
      const FourTurns turns = angles(step);
      uint4 pairs = *words;
      TurnNeighbours<Element>(turns.x, &pairs.x);
      TurnNeighbours<Element>(turns.y, &pairs.y);
      TurnNeighbours<Element>(turns.z, &pairs.z);
      TurnNeighbours<Element>(turns.w, &pairs.w);
      *words = pairs;
    }
    return;
  }
  auto* first = reinterpret_cast<uint2*>(rows->At(row, four / 2)) + four % 2;
  auto* second = reinterpret_cast<uint2*>(rows->At(row, kDepth / 16 + four / 2)) + four % 2;
#pragma unroll 2
  for (int32_t step = 0; step < kSteps; ++step) {
    const FourTurns turns = angles(step);
    uint2 x = first[step * kNext];
    uint2 y = second[step * kNext];
    TurnHalves<Element>(turns.x, turns.y, &x.x, &y.x);
    TurnHalves<Element>(turns.z, turns.w, &x.y, &y.y);
    first[step * kNext] = x;
    second[step * kNext] = y;
  }
}

}  // namespace longshore::cuda
