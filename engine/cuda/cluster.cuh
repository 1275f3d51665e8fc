#pragma once

#include <cstdint>

#include <cooperative_groups.h>

namespace longshore::cuda {

// The thread blocks that share memory: those of a launch's cluster, or this one alone on devices
// that have none.
class Cluster {
 public:
  // All threads of all blocks, and what they wrote to shared memory.
  __device__ void Sync() const {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().sync();
#else
    __syncthreads();
#endif
  }
  __device__ int32_t Blocks() const {
#if __CUDA_ARCH__ >= 900
    return static_cast<int32_t>(cooperative_groups::this_cluster().num_blocks());
#else
    return 1;
#endif
  }
  __device__ int32_t Rank() const {
#if __CUDA_ARCH__ >= 900
    return static_cast<int32_t>(cooperative_groups::this_cluster().block_rank());
#else
    return 0;
#endif
  }
  // What block `rank` has where this one has `shared`.
  template <class T>
  __device__ T* Of(int32_t rank, T* shared) const {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(shared, static_cast<uint32_t>(rank));
#else
    return shared;
#endif
  }
};

}  // namespace longshore::cuda
