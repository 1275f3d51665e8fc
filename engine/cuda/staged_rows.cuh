#pragma once

#include <cstddef>
#include <cstdint>

namespace longshore::cuda {

// 16 bytes to shared memory, past the registers. Done when a WaitAsync() says so, for the thread
// that asked; for the others of its warp, a __syncwarp() later.
__device__ inline void CopyAsync(void* to, const void* from) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
__device__ inline void CommitAsync() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `kLeft` groups of copies, the last ones, are still on their way.
template <int32_t kLeft>
__device__ inline void WaitAsync() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// 16 rows of kDepth 16-bit elements in shared memory, in chunks of 16 bytes that are swapped within
// 128 bytes so that the lanes of a fragment meet different banks: rows of keys are read by quads,
// row i by quad i; rows of values by eights, chunk i of every second row.
template <int32_t kDepth, bool kByQuads>
struct StagedRows {
  static constexpr int32_t kRows = 16;
  static constexpr int32_t kChunks = kDepth / 8;
  static constexpr int32_t kSteps = kRows * kChunks / 32;  // chunks of a lane

  uint4 chunks[kRows * kChunks];

  // Chunk `chunk` of a row.
  __device__ uint4* At(int32_t row, int32_t chunk) {
    return &chunks[row * kChunks + (chunk ^ (kByQuads ? (row & 1) * 4 : row & 7))];
  }
};

}  // namespace longshore::cuda
