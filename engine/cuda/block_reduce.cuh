#pragma once

#include <cstdint>

namespace longshore::cuda {

inline constexpr uint32_t kWholeWarp = 0xffffffffu;

// The sum or maximum of one value a thread, in every thread, in an order that depends only on
// kThreads. `shared` holds a value for each warp, and is free again when this returns.
template <int32_t kThreads, class T, class Combine>
__device__ T BlockReduce(T value, const Combine& combine, T* shared) {
  constexpr int32_t kWarps = kThreads / 32;
  for (int32_t step = 16; step > 0; step /= 2) {
    value = combine(value, __shfl_xor_sync(kWholeWarp, value, step));
  }
  if (threadIdx.x % 32 == 0) {
    shared[threadIdx.x / 32] = value;
  }
  __syncthreads();
  value = shared[0];
  for (int32_t warp = 1; warp < kWarps; ++warp) {
    value = combine(value, shared[warp]);
  }
  __syncthreads();
  return value;
}

}  // namespace longshore::cuda
