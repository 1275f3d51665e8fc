#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

#include "engine/cuda/call_queue.h"
#include "engine/cuda/kernel_list.h"
#include "engine/cuda/ptx.cuh"

// How kernels are launched. Each is entered in the list of this build's kernels by being named
// here, so that it is loaded, and may have all shared memory there is, before its first launch.
// Errors show in cudaGetLastError().
namespace longshore::cuda {

template <auto kKernel>
cudaError_t LoadKernel(int32_t shared_bytes) {
  cudaFuncAttributes attributes = {};
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kKernel); error != cudaSuccess) {
    return error;
  }
  return cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              shared_bytes - static_cast<int32_t>(attributes.sharedSizeBytes));
}

// Entered before main().
template <auto kKernel>
inline const bool kEntered = EnterKernel(&LoadKernel<kKernel>);

template <auto kKernel, class... Arguments>
void LaunchKernel(const GridShape& shape, cudaStream_t stream, const Arguments&... arguments) {
  static_cast<void>(&kEntered<kKernel>);
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<uint32_t>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  (void)cudaLaunchKernelEx(&config, kKernel, arguments...);
}

// Kernels of a step follow each other closely: the next one's thread blocks may start while those
// of the one before still run, and wait for it once they have set themselves up. On GPUs that
// cannot do that they follow each other as all kernels do. For kernels that call WaitForEarlier().
template <auto kKernel, class Launch>
void LaunchChained(const GridShape& shape, CallQueue* queue, const Launch& launch) {
  static_assert(std::is_trivially_copyable_v<Launch>);
  static_assert(std::is_same_v<std::remove_const_t<decltype(kKernel)>, void (*)(Launch)>);
  static_cast<void>(&kEntered<kKernel>);
  queue->Launch(reinterpret_cast<const void*>(kKernel), shape, &launch, sizeof(launch));
}

}  // namespace longshore::cuda
