#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <cuda_runtime_api.h>

namespace longshore::cuda {

/// How a kernel is launched.
struct GridShape {
  dim3 grid;
  int32_t threads = 0;
  int32_t shared_bytes = 0;  ///< dynamic
};

/// One operation of a call: a kernel of one argument, or a copy from pinned memory to the device.
struct Operation {
  const void* kernel = nullptr;  ///< as CUDA knows it; null: a copy
  GridShape shape;
  std::vector<std::byte> argument;  ///< the kernel's, its bytes
  const std::byte* from = nullptr;  ///< of a copy
  std::byte* to = nullptr;          ///< of a copy
  int64_t bytes = 0;                ///< of a copy
};

/// Whether two calls are the same but for arguments, grids, and what copies copy: then one CUDA
/// graph serves both.
bool AreOfOneKind(std::span<const Operation> left, std::span<const Operation> right);

/// Where two calls of one kind differ. Arguments are compared by their bytes, padding included: a
/// difference in that alone is harmless.
std::vector<size_t> Differences(std::span<const Operation> left, std::span<const Operation> right);

}  // namespace longshore::cuda
