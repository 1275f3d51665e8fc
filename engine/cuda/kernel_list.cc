#include "engine/cuda/kernel_list.h"

#include <vector>

#include "engine/cuda/cuda_status.h"

namespace longshore::cuda {
namespace {

// Filled while the program starts, in whatever order its files come.
std::vector<KernelLoader>& Loaders() {
  static std::vector<KernelLoader> loaders;
  return loaders;
}

}  // namespace

bool EnterKernel(KernelLoader loader) {
  Loaders().push_back(loader);
  return true;
}

absl::Status LoadKernels(int32_t shared_bytes) {
  for (const KernelLoader load : Loaders()) {
    RETURN_IF_ERROR(CudaStatus(load(shared_bytes), "loading kernels"));
  }
  return absl::OkStatus();
}

}  // namespace longshore::cuda
