#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#include <cuda_runtime.h>

// Runs kernels on the CPU. Thread blocks run one after the other, their threads as fibers in a
// shuffled order, each until it waits for others. So a kernel computes what it does on a GPU, and a
// missing barrier shows: a thread sees what was not written yet, or shared memory's poison. Of the
// copies past the registers some are done at once, the others not before they are waited for.

/// Where the running thread is, by CUDA's names.
// NOLINTBEGIN(readability-identifier-naming)
inline uint3 threadIdx;
inline uint3 blockIdx;
inline dim3 blockDim;
inline dim3 gridDim;
// NOLINTEND(readability-identifier-naming)

namespace emulator {

inline int32_t Lane() { return static_cast<int32_t>(threadIdx.x % 32); }

/// A grid of thread blocks.
struct Grid {
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;
};

/// Runs `thread` once for each thread of a grid; when it returns, all are done. Anything that no
/// GPU would do either, or not always, ends the program with what it was: `name` is the kernel's.
void Run(const char* name, const Grid& grid, const std::function<void()>& thread);

/// A kernel as its callers know it that have its address alone.
struct KernelEntry {
  const char* name;
  std::vector<size_t> parameter_bytes;
  std::function<void(void**)> call;  // with pointers to its parameters, in one thread
};
/// A backend loads its kernels when it is made.
void Load(const void* kernel, KernelEntry entry);
/// What was loaded: one that was not ends the program.
const KernelEntry& Loaded(const void* kernel);

/// Dynamic shared memory of the running block, and its addresses there.
std::byte* SharedMemory();
uint32_t SharedAddress(const void* at);
std::byte* SharedAt(uint32_t address, size_t bytes);

/// What lanes of a warp give each other: every lane gives bytes and gets those of all. Once all
/// have arrived, the last one may combine(all) in place.
inline constexpr size_t kMostLaneBytes = 64;
struct alignas(16) LaneBytes {
  std::byte bytes[kMostLaneBytes];
};
using WarpBytes = std::array<LaneBytes, 32>;
WarpBytes& MeetWarp(const char* what,
                    uint32_t mask,
                    const void* from,
                    size_t bytes,
                    const std::function<void(WarpBytes&)>& combine);

/// Until `count` threads of the block have come to barrier `index`; 0: all that still run. Returns
/// the sum of what they gave.
int32_t MeetBlock(int32_t index, int32_t count, int32_t value);

/// Until `ready` says so.
void WaitUntil(const std::function<bool()>& ready);

/// Copies past the registers.
void SendCopy(uint32_t to, const void* from);
void CommitCopies();
void WaitForCopies(size_t groups_left);

/// A lane's value in all lanes.
template <class T>
std::array<T, 32> Everyone(const char* what, uint32_t mask, const T& value) {
  static_assert(sizeof(T) <= kMostLaneBytes && std::is_trivially_copyable_v<T>);
  const WarpBytes& all = MeetWarp(what, mask, &value, sizeof(T), nullptr);
  std::array<T, 32> out;
  for (size_t lane = 0; lane < 32; ++lane) {
    std::memcpy(&out[lane], all[lane].bytes, sizeof(T));
  }
  return out;
}

template <class T>
T Fold(const char* what, uint32_t mask, const T& value, T (*combine)(T, T)) {
  const std::array<T, 32> all = Everyone(what, mask, value);
  T out = all[0];
  for (size_t lane = 1; lane < 32; ++lane) {
    out = combine(out, all[lane]);
  }
  return out;
}

}  // namespace emulator
