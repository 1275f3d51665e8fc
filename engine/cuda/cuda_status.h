#pragma once

#include <cuda_runtime_api.h>

#include "engine/core/status.h"

namespace longshore::cuda {

/// OK, or INTERNAL with the name of the CUDA error and what was being done. The one place where
/// CUDA's errors become ours. Errors of earlier work on the device show here, too.
absl::Status CudaStatus(cudaError_t error, absl::string_view doing);

/// The status of the launches since the last call, as far as it is known yet.
absl::Status LaunchStatus(absl::string_view doing);

/// ResourceExhausted that names the bytes where `error` is a lack of memory, which leaves the
/// device as it was; else as CudaStatus.
absl::Status AllocationStatus(cudaError_t error, int64_t bytes, absl::string_view where);

}  // namespace longshore::cuda
