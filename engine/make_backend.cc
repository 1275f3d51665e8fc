#include "engine/make_backend.h"

#include <sched.h>

#include "engine/core/error.h"
#include "engine/cpu/cpu_backend.h"
#ifdef LONGSHORE_WITH_CUDA
#include "engine/cuda/cuda_backend.h"
#endif

namespace longshore {
namespace {

// Cores that this process may run on; a container or taskset may leave fewer than the machine has.
int32_t UsableCores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options) {
  constexpr int32_t kMaxThreads = 1024;
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return InvalidField("threads", options.threads, " is not in 0..", kMaxThreads);
  }
  if (options.name == "cpu") {
    return std::make_unique<cpu::CpuBackend>(options.threads == 0 ? UsableCores()
                                                                  : options.threads);
  }
#ifdef LONGSHORE_WITH_CUDA
  if (options.name == "cuda") {
    return cuda::CudaBackend::Create();
  }
  constexpr char kBuilt[] = "cpu and cuda are";
#else
  constexpr char kBuilt[] = "cpu is";
#endif
  return InvalidField("backend", "\"", options.name, "\" is not built into this binary: ", kBuilt);
}

}  // namespace longshore
