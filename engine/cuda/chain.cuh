#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "engine/cuda/ptx.cuh"

// Kernels of a step follow each other closely: the next one's thread blocks may start while those
// of the one before still run, and wait for it once they have set themselves up. On GPUs that
// cannot do that they follow each other as all kernels do.
namespace longshore::cuda {

struct ChainedShape {
  dim3 grid;
  int32_t threads = 0;
  int32_t shared_bytes = 0;
};

// Launches a kernel that calls WaitForEarlier(). Errors show in cudaGetLastError().
template <class Launch>
void LaunchChained(void (*kernel)(Launch),
                   const ChainedShape& shape,
                   const Launch& launch,
                   cudaStream_t stream) {
  constexpr int32_t kAlwaysAllowedBytes = 48 * 1024;
  if (shape.shared_bytes > kAlwaysAllowedBytes) {
    // Shows as a launch that fails.
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               shape.shared_bytes);
  }
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<uint32_t>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  (void)cudaLaunchKernelEx(&config, kernel, launch);
}

}  // namespace longshore::cuda
