#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "engine/core/status.h"

// The kernels of this build, known before one is launched: CUDA loads each when it first meets it,
// and a call would wait for that.
namespace longshore::cuda {

/// Loads one kernel and lets it have `shared_bytes` of shared memory, its own variables included.
using KernelLoader = cudaError_t (*)(int32_t shared_bytes);

/// Adds a kernel to the list. Called by launch.cuh alone, before main(). Returns true.
bool EnterKernel(KernelLoader loader);

/// Loads all of them for the current device, whose thread blocks may have `shared_bytes`.
absl::Status LoadKernels(int32_t shared_bytes);

}  // namespace longshore::cuda
