#pragma once

#include <cstdint>

#include "engine/cuda/turn_staged.cuh"

// Keys turned on their way from shared memory to the tensor cores. Lane (i, j) of a warp reads eight
// dimensions [32 g + 8 j, + 8) of rows i and i + 8 at a time, and finds both elements of a pair in
// two such chunks of its own: the pairs of two times 32 dimensions are a step.
namespace longshore::cuda {

// The angles of a step of one row, by a lane with j = lane % 4.
struct StepTurns {
  FourTurns low;
  FourTurns high;
};
__device__ inline StepTurns StepTurnsOf(const RopeRows& rope, int64_t id, int32_t step, int32_t j) {
  const bool interleaved = rope.pairing == RopePairing::kInterleaved;
  const int32_t pair = 32 * step + (interleaved ? 4 : 8) * j;
  return {FourTurnsOf(rope, id, pair), FourTurnsOf(rope, id, pair + (interleaved ? 16 : 4))};
}

// Turns the two chunks of a step, and rounds them to Element.
template <class Element>
__device__ inline void TurnStep(bool interleaved,
                                const StepTurns& turns,
                                uint4* first,
                                uint4* second) {
  if (interleaved) {
    TurnNeighbours<Element>(turns.low.x, &first->x);
    TurnNeighbours<Element>(turns.low.y, &first->y);
    TurnNeighbours<Element>(turns.low.z, &first->z);
    TurnNeighbours<Element>(turns.low.w, &first->w);
    TurnNeighbours<Element>(turns.high.x, &second->x);
    TurnNeighbours<Element>(turns.high.y, &second->y);
    TurnNeighbours<Element>(turns.high.z, &second->z);
    TurnNeighbours<Element>(turns.high.w, &second->w);
    return;
  }
  TurnHalves<Element>(turns.low.x, turns.low.y, &first->x, &second->x);
  TurnHalves<Element>(turns.low.z, turns.low.w, &first->y, &second->y);
  TurnHalves<Element>(turns.high.x, turns.high.y, &first->z, &second->z);
  TurnHalves<Element>(turns.high.z, turns.high.w, &first->w, &second->w);
}

// use(g, chunk of row i, chunk of row i + 8) for each 32 dimensions from 32 g on, of keys that are
// used as they are stored.
template <class Rows, class Use>
__device__ inline void ForEachChunk(Rows* rows, int32_t lane, const Use& use) {
#pragma unroll
  for (int32_t g = 0; g < Rows::kChunks / 4; ++g) {
    use(g, *rows->At(lane / 4, 4 * g + lane % 4), *rows->At(lane / 4 + 8, 4 * g + lane % 4));
  }
}

// As ForEachChunk(), but turned, in another order: turns_of(step, row) are the angles of row i, then
// of row i + 8.
template <class Element, class Rows, class TurnsOf, class Use>
__device__ inline void ForEachTurnedChunk(Rows* rows,
                                          int32_t lane,
                                          bool interleaved,
                                          const TurnsOf& turns_of,
                                          const Use& use) {
  constexpr int32_t kSteps = Rows::kChunks / 8;
  const int32_t i = lane / 4;
#pragma unroll
  for (int32_t step = 0; step < kSteps; ++step) {
    // Neighbours are pairs in both chunks; else the first has pairs with the second.
    const int32_t first = interleaved ? 2 * step : step;
    const int32_t second = interleaved ? 2 * step + 1 : step + kSteps;
    uint4 upper[2];
    uint4 lower[2];
#pragma unroll
    for (int32_t chunk = 0; chunk < 2; ++chunk) {
      const int32_t at = 4 * (chunk == 0 ? first : second) + lane % 4;
      upper[chunk] = *rows->At(i, at);
      lower[chunk] = *rows->At(i + 8, at);
    }
    TurnStep<Element>(interleaved, turns_of(step, 0), &upper[0], &upper[1]);
    TurnStep<Element>(interleaved, turns_of(step, 1), &lower[0], &lower[1]);
    use(first, upper[0], lower[0]);
    use(second, upper[1], lower[1]);
  }
}

}  // namespace longshore::cuda
