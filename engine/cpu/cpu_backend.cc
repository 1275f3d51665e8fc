#include "engine/cpu/cpu_backend.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/math.h"

namespace longshore::cpu {
namespace {

// From here on memory comes straight from the system: zeroed, only faulted in when touched, and in
// huge pages where there are any.
constexpr int64_t kMappedBytes = int64_t{1} << 21;

absl::Status OutOfMemory(int64_t bytes) {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("cannot allocate ", bytes, " bytes of host memory"),
                   {.reason = "HOST_MEMORY", .field = "", .metadata = {}});
}

}  // namespace

CpuBackend::CpuBackend(int32_t threads)
    : info_{.backend = "cpu",
            .device = absl::StrCat("CPU, ", threads, threads == 1 ? " thread" : " threads"),
            .threads = threads,
            .device_bytes = 0},
      team_(threads),
      scratch_(static_cast<size_t>(threads)),
      block_scratch_(static_cast<size_t>(threads)) {}

absl::StatusOr<Buffer> CpuBackend::Allocate(MemorySpace space, int64_t bytes) {
  void* data = nullptr;
  if (bytes >= kMappedBytes) {
    data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      return OutOfMemory(bytes);
    }
    madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a wish: slower without, not wrong
  } else {
    const auto rounded = static_cast<size_t>(RoundUp(Max(bytes, 1), 64));
    data = std::aligned_alloc(64, rounded);
    if (data == nullptr) {
      return OutOfMemory(bytes);
    }
    std::memset(data, 0, rounded);
  }
  return Buffer(this, space, static_cast<std::byte*>(data), bytes);
}

void CpuBackend::Free(MemorySpace /*space*/, std::byte* data, int64_t bytes) {
  if (bytes >= kMappedBytes) {
    munmap(data, static_cast<size_t>(bytes));
  } else {
    std::free(data);
  }
}

absl::Status CpuBackend::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) {  // memcpy wants pointers even for nothing
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::Admit(const AdmitArgs& /*args*/) { return absl::OkStatus(); }

absl::StatusOr<Fence> CpuBackend::Mark() { return Fence{++sequence_}; }

absl::Status CpuBackend::Wait(Fence /*fence*/) { return absl::OkStatus(); }

}  // namespace longshore::cpu
