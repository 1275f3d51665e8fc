#include "engine/cuda/cuda_backend.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/math.h"
#include "engine/cuda/cuda_status.h"
#include "engine/cuda/kernel_list.h"

namespace longshore::cuda {
namespace {

// Inputs, outputs and descriptions of calls: those of 32K rows of 8B shapes fit together.
constexpr int64_t kArenaPieceBytes = int64_t{768} << 20;
// Of decode launches: more blocks than fit a call of 8B shapes.
constexpr int64_t kCounters = int64_t{1} << 20;

absl::Status NoDevice(absl::string_view why) {
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("backend \"cuda\" has no GPU to run on: ", why),
                   {.reason = "NO_DEVICE", .field = "backend", .metadata = {}});
}

const char* NameOfSpace(MemorySpace space) {
  return space == MemorySpace::kDevice ? "device memory" : "host memory";
}

cudaError_t AllocateBytes(MemorySpace space, size_t bytes, void** data) {
  switch (space) {
    case MemorySpace::kDevice: return cudaMalloc(data, bytes);
    case MemorySpace::kHostMapped: return cudaHostAlloc(data, bytes, cudaHostAllocMapped);
    case MemorySpace::kHost: break;
  }
  *data = std::aligned_alloc(64, static_cast<size_t>(RoundUp(static_cast<int64_t>(bytes), 64)));
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CudaBackend::Create() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    cudaGetLastError();
    return NoDevice(error == cudaSuccess ? "there is none" : cudaGetErrorString(error));
  }
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, 0), "asking for the device"));
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(0), "choosing the device"));
  cudaStream_t stream = nullptr;
  if (const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      error != cudaSuccess) {
    return NoDevice(cudaGetErrorString(error));
  }
  DeviceInfo info{.backend = "cuda",
                  .device = absl::StrCat(properties.name, ", compute capability ", properties.major,
                                         ".", properties.minor),
                  .threads = 0,
                  .device_bytes = static_cast<int64_t>(properties.totalGlobalMem)};
  const DeviceTraits device{.shared_bytes =
                                static_cast<int32_t>(properties.sharedMemPerBlockOptin)};
  const bool chains = properties.major >= 9;
  auto backend =
      std::unique_ptr<CudaBackend>(new CudaBackend(std::move(info), device, chains, stream));
  if (const absl::Status status = LoadKernels(device.shared_bytes); !status.ok()) {
    return NoDevice(status.message());  // made for other devices
  }
  RETURN_IF_ERROR(backend->TakeMemory());
  return backend;
}

absl::Status CudaBackend::TakeMemory() {
  RETURN_IF_ERROR(transfers_.Create());
  RETURN_IF_ERROR(arena_.Take(kArenaPieceBytes).status());
  arena_.Reset();
  RETURN_IF_ERROR(ReserveWorkspace(0));
  RETURN_IF_ERROR(Counters(kCounters).status());
  return CudaStatus(cudaStreamSynchronize(queue_.stream()), "waiting for the device");
}

CudaBackend::CudaBackend(DeviceInfo info,
                         const DeviceTraits& device,
                         bool chains,
                         cudaStream_t stream)
    : info_(std::move(info)),
      device_(device),
      stream_(stream),
      queue_(stream, chains),
      arena_(kArenaPieceBytes),
      transfers_(stream, &queue_, &arena_) {}

CudaBackend::~CudaBackend() {
  cudaStreamSynchronize(stream_);  // an error here has shown before
  counters_ = Buffer();
  cudaFree(workspace_);
  cudaStreamDestroy(stream_);
}

absl::StatusOr<Buffer> CudaBackend::Allocate(MemorySpace space, int64_t bytes) {
  void* data = nullptr;
  const auto size = static_cast<size_t>(Max(bytes, 1));
  RETURN_IF_ERROR(AllocationStatus(AllocateBytes(space, size, &data), bytes, NameOfSpace(space)));
  Buffer buffer(this, space, static_cast<std::byte*>(data), bytes);
  if (space == MemorySpace::kDevice) {
    RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(data, 0, size, queue_.stream()), "clearing memory"));
  } else {
    std::memset(data, 0, size);
  }
  return buffer;
}

void CudaBackend::Free(MemorySpace space, std::byte* data, int64_t /*bytes*/) {
  switch (space) {
    case MemorySpace::kDevice:
      queue_.stream();
      cudaFree(data);  // waits for what is on the stream
      return;
    case MemorySpace::kHostMapped: cudaFreeHost(data); return;
    case MemorySpace::kHost: std::free(data); return;
  }
}

absl::Status CudaBackend::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) {
    return absl::OkStatus();
  }
  return CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, queue_.stream()),
      "copying");
}

absl::Status CudaBackend::Admit(const AdmitArgs& /*args*/) { return absl::OkStatus(); }

absl::StatusOr<Fence> CudaBackend::Mark() {
  RETURN_IF_ERROR(transfers_.EndCall());
  RETURN_IF_ERROR(queue_.EndCall());
  return Fence{++sequence_};
}

absl::Status CudaBackend::Wait(Fence fence) {
  if (fence.sequence <= finished_) {
    return absl::OkStatus();
  }
  const uint64_t queued = sequence_;
  RETURN_IF_ERROR(transfers_.Finish());
  finished_ = queued;
  return absl::OkStatus();
}

}  // namespace longshore::cuda
