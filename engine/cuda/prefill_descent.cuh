#pragma once

#include <cstdint>

#include "engine/cuda/kernels.h"
#include "engine/cuda/shared_copy.cuh"
#include "engine/cuda/turn_staged.cuh"

// What a thread block of a prefill's `descent` has in shared memory and registers.
namespace longshore::cuda {

inline constexpr int32_t kPairs = 4;    // of warps
inline constexpr int32_t kColumns = 8;  // candidates of a product

template <class ElementType, int32_t kHeadDim, int32_t kTiles, bool kTurnsKeys>
struct DescentKind {
  using Element = ElementType;
  static constexpr int32_t kDepth = kHeadDim;
  static constexpr int32_t kRowTiles = kTiles;  // of 16 scored rows
  static constexpr bool kTurns = kTurnsKeys;
  // Sets of kColumns candidates that are on their way down together: while one is scored, the
  // other's keys come.
  static constexpr int32_t kSets = 2;
};

template <class K>
struct DescentShared {
  static constexpr int32_t kPitch = K::kDepth + 8;  // spreads rows over the banks

  Uninitialized<PruneBlock> prune;
  Uninitialized<StageLayout> layout;
  float best[2][kPairs][K::kSets][2][kColumns];  // [level % 2]...[side]
  // Of one head by side, on the way to registers; of all heads where these have no room for them.
  alignas(16) typename K::Element queries[K::kTurns ? kPairs : 2][16 * K::kRowTiles * kPitch];
};

// A head's scored queries as fragments of A, of which a lane has the eight elements
// [32 g + 8 (lane % 4), + 8) of the rows lane / 4 and lane / 4 + 8 of each tile: in registers, but
// where keys turn, in shared memory.
template <class K>
struct Fragments {
  static constexpr int32_t kChunks = K::kDepth / 32;
  static constexpr int32_t kPitch = DescentShared<K>::kPitch;
  struct Chunk {
    uint4 upper;
    uint4 lower;
  };

  const typename K::Element* rows;
  Chunk chunks[K::kTurns ? 1 : K::kRowTiles][kChunks];

  __device__ void Load(const typename K::Element* queries) {
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
    rows = queries + lane / 4 * kPitch + 8 * (lane % 4);
    if constexpr (!K::kTurns) {
#pragma unroll
      for (int32_t tile = 0; tile < K::kRowTiles; ++tile) {
#pragma unroll
        for (int32_t g = 0; g < kChunks; ++g) {
          chunks[tile][g] = Stored(tile, g);
        }
      }
    }
  }
  __device__ Chunk At(int32_t tile, int32_t g) const {
    if constexpr (K::kTurns) {
      return Stored(tile, g);
    } else {
      return chunks[tile][g];
    }
  }

 private:
  __device__ Chunk Stored(int32_t tile, int32_t g) const {
    const auto* at = rows + 16 * tile * kPitch + 32 * g;
    return {*reinterpret_cast<const uint4*>(at), *reinterpret_cast<const uint4*>(at + 8 * kPitch)};
  }
};

// Turns the chunks of a key that a lane holds, [32 g + 8 j, + 8) each.
template <class K>
__device__ void TurnChunks(const RopeRows& rope,
                           int32_t id,
                           int32_t j,
                           uint4 (&chunks)[K::kDepth / 32]) {
  using Element = typename K::Element;
  constexpr int32_t kChunks = K::kDepth / 32;
  if (rope.pairing == RopePairing::kInterleaved) {
#pragma unroll
    for (int32_t g = 0; g < kChunks; ++g) {
      const FourTurns turns = FourTurnsOf(rope, id, 16 * g + 4 * j);
      TurnNeighbours<Element>(turns.x, &chunks[g].x);
      TurnNeighbours<Element>(turns.y, &chunks[g].y);
      TurnNeighbours<Element>(turns.z, &chunks[g].z);
      TurnNeighbours<Element>(turns.w, &chunks[g].w);
    }
    return;
  }
#pragma unroll
  for (int32_t g = 0; g < kChunks / 2; ++g) {
    uint4& first = chunks[g];
    uint4& second = chunks[g + kChunks / 2];
    const FourTurns low = FourTurnsOf(rope, id, 32 * g + 8 * j);
    TurnHalves<Element>(low.x, low.y, &first.x, &second.x);
    TurnHalves<Element>(low.z, low.w, &first.y, &second.y);
    const FourTurns high = FourTurnsOf(rope, id, 32 * g + 8 * j + 4);
    TurnHalves<Element>(high.x, high.y, &first.z, &second.z);
    TurnHalves<Element>(high.z, high.w, &first.w, &second.w);
  }
}

}  // namespace longshore::cuda
