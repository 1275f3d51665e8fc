#include <cstdlib>
#include <cstring>

#include <cuda_runtime_api.h>

// The part of CUDA's runtime that the backend calls, for one GPU that is none: its memory is the
// host's, and what is queued is done.
namespace {

constexpr size_t kAlignment = 256;
constexpr int kPoison = 0xa5;
constexpr size_t kMostPoisoned = size_t{8} << 20;  // of a workspace little more is used

cudaError_t Allocate(void** data, size_t bytes) {
  *data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (*data == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  std::memset(*data, kPoison, bytes < kMostPoisoned ? bytes : kMostPoisoned);
  return cudaSuccess;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof(*properties));
  std::strcpy(properties->name, "emulated on the CPU");
  properties->major = 9;
  properties->totalGlobalMem = size_t{4} << 30;
  properties->sharedMemPerBlockOptin = size_t{227} << 10;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMalloc(void** data, size_t bytes) { return Allocate(data, bytes); }
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) { return Allocate(data, bytes); }
cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaMemcpyAsync(void* to,
                            const void* from,
                            size_t bytes,
                            cudaMemcpyKind,
                            cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the emulator"; }
const char* cudaGetErrorName(cudaError_t) { return "emulator"; }

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
