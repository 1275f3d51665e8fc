#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/ptx.cuh"

namespace longshore::cuda {

// 16 rows of kDepth 16-bit elements in shared memory, in chunks of 16 bytes that are swapped within
// 128 bytes so that the lanes of a fragment meet different banks: rows of keys are read by quads,
// row i by quad i; rows of values by eights, chunk i of every second row.
template <int32_t kDepth, bool kByQuads>
struct StagedRows {
  static constexpr int32_t kRows = 16;
  static constexpr int32_t kChunks = kDepth / 8;
  static constexpr int32_t kSteps = kRows * kChunks / 32;  // chunks of a lane

  uint4 chunks[kRows * kChunks];

  // Where chunk `chunk` of a row is.
  __device__ static int32_t Index(int32_t row, int32_t chunk) {
    return row * kChunks + (chunk ^ (kByQuads ? (row & 1) * 4 : row & 7));
  }
  __device__ uint4* At(int32_t row, int32_t chunk) { return &chunks[Index(row, chunk)]; }

  // Sends for all rows, by a warp: `offset` bytes behind from[row].
  __device__ void SendFor(const std::byte* const* from, int64_t offset) {
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(chunks));
    if constexpr (32 % kChunks == 0) {  // a lane has one chunk of some rows
      constexpr int32_t kRowsAtOnce = 32 / kChunks;
      const int32_t row = lane / kChunks;
      const int32_t chunk = lane % kChunks;
      offset += 16 * chunk;
      constexpr int32_t kAtOnce = kSteps < 8 ? kSteps : 8;  // rows that are looked up together
#pragma unroll
      for (int32_t begin = 0; begin < kSteps; begin += kAtOnce) {
        const std::byte* rows[kAtOnce];
#pragma unroll
        for (int32_t step = 0; step < kAtOnce; ++step) {
          rows[step] = from[(begin + step) * kRowsAtOnce + row] + offset;
        }
#pragma unroll
        for (int32_t step = 0; step < kAtOnce; ++step) {
          // What `first` alone decides is known when this is compiled.
          const int32_t first = (begin + step) * kRowsAtOnce;
          const int32_t swap = kByQuads ? (first & 1) * 4 : first & 7;
          const int32_t index = Index(row, chunk) ^ swap;
          CopyAsync(to + static_cast<uint32_t>(16 * (first * kChunks + index)), rows[step]);
        }
      }
    } else {
#pragma unroll 4
      for (int32_t step = 0; step < kSteps; ++step) {
        const int32_t row = (32 * step + lane) / kChunks;
        const int32_t chunk = (32 * step + lane) % kChunks;
        CopyAsync(to + static_cast<uint32_t>(16 * Index(row, chunk)),
                  from[row] + offset + 16 * chunk);
      }
    }
  }
};

// use(g, chunk of row i, chunk of row i + 8), i = lane / 4, for each 32 dimensions from 32 g on:
// rows of keys as Multiply() takes them.
template <class Rows, class Use>
__device__ inline void ForEachChunk(Rows* rows, const Use& use) {
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  const uint4* chunk = rows->At(lane / 4, lane % 4);
  const int32_t swap = lane / 4 % 2 * 4;  // as Index() has it, of two neighbours
#pragma unroll
  for (int32_t g = 0; g < Rows::kChunks / 4; ++g) {
    // Four chunks further on, seen from the first, is forwards or backwards.
    const int32_t at = g % 2 == 0 ? 4 * g : 4 * g - 2 * swap;
    use(g, chunk[at], chunk[at + 8 * Rows::kChunks]);
  }
}

}  // namespace longshore::cuda
