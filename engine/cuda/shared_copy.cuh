#pragma once

#include <cstdint>

namespace longshore::cuda {

// The threads of a block bring a description of their work near: one trip to memory instead of one
// for each field. Behind a barrier of the caller's.
template <class T>
__device__ inline void CopyToShared(const T* from, T* to) {
  static_assert(sizeof(T) % sizeof(uint32_t) == 0);
  const auto* words = reinterpret_cast<const uint32_t*>(from);
  for (uint32_t word = threadIdx.x; word < sizeof(T) / sizeof(uint32_t); word += blockDim.x) {
    reinterpret_cast<uint32_t*>(to)[word] = words[word];
  }
}

// Memory for a T whose constructors do not run.
template <class T>
struct Uninitialized {
  alignas(T) unsigned char bytes[sizeof(T)];
  __device__ T& operator*() { return *reinterpret_cast<T*>(bytes); }
  __device__ T* get() { return reinterpret_cast<T*>(bytes); }
};

}  // namespace longshore::cuda
