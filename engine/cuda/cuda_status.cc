#include "engine/cuda/cuda_status.h"

#include "engine/core/error.h"

namespace longshore::cuda {

absl::Status CudaStatus(cudaError_t error, absl::string_view doing) {
  if (error == cudaSuccess) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("CUDA ", cudaGetErrorName(error), " while ", doing, ": ",
                                          cudaGetErrorString(error)));
}

absl::Status LaunchStatus(absl::string_view doing) { return CudaStatus(cudaGetLastError(), doing); }

absl::Status AllocationStatus(cudaError_t error, int64_t bytes, absl::string_view where) {
  if (error != cudaErrorMemoryAllocation) {
    return CudaStatus(error, absl::StrCat("allocating ", bytes, " bytes of ", where));
  }
  cudaGetLastError();  // forgotten: the device is as it was
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("cannot allocate ", bytes, " bytes of ", where),
                   {.reason = where == "host memory" ? "HOST_MEMORY" : "DEVICE_MEMORY",
                    .field = "",
                    .metadata = {}});
}

}  // namespace longshore::cuda
