#include "engine/cuda/host_transfers.h"

#include <algorithm>
#include <cstring>

#include "engine/core/math.h"
#include "engine/cuda/cuda_status.h"

namespace longshore::cuda {
namespace {

// Small things go through memory that the device reads by itself, so that nothing waits; large ones
// are staged by the driver while we wait for it.
constexpr int64_t kPinnedBytes = int64_t{16} << 20;
constexpr int64_t kLargeBytes = int64_t{1} << 20;

}  // namespace

HostTransfers::~HostTransfers() { cudaFreeHost(pinned_); }

const HostTransfers::Place* HostTransfers::Find(const std::vector<Place>& places,
                                                const void* host) {
  const auto found = std::find_if(places.begin(), places.end(),
                                  [host](const Place& place) { return place.host == host; });
  return found == places.end() ? nullptr : &*found;
}

absl::StatusOr<std::byte*> HostTransfers::TakePinned(int64_t bytes) {
  if (pinned_ == nullptr) {
    void* data = nullptr;
    RETURN_IF_ERROR(AllocationStatus(
        cudaHostAlloc(&data, static_cast<size_t>(kPinnedBytes), cudaHostAllocDefault), kPinnedBytes,
        "host memory"));
    pinned_ = static_cast<std::byte*>(data);
  }
  bytes = RoundUp(bytes, 64);
  if (bytes > kPinnedBytes - pinned_used_) {
    RETURN_IF_ERROR(Finish());  // the device may still read or write what was taken before
  }
  std::byte* taken = pinned_ + pinned_used_;
  pinned_used_ += bytes;
  return taken;
}

absl::StatusOr<std::byte*> HostTransfers::Upload(const void* from, int64_t bytes) {
  ASSIGN_OR_RETURN(std::byte * to, arena_->Take(bytes));
  if (bytes <= kLargeBytes) {
    ASSIGN_OR_RETURN(std::byte * pinned, TakePinned(bytes));
    std::memcpy(pinned, from, static_cast<size_t>(bytes));
    from = pinned;
  }
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
      "copying to the device"));
  return to;
}

absl::StatusOr<TensorRef> HostTransfers::Input(const TensorRef& tensor) {
  if (tensor.space != MemorySpace::kHost || tensor.data == nullptr) {
    return tensor;
  }
  TensorRef copy = tensor;
  copy.space = MemorySpace::kDevice;
  if (const Place* place = Find(inputs_, tensor.data); place != nullptr) {
    copy.data = place->device;
    return copy;
  }
  ASSIGN_OR_RETURN(std::byte * device, Upload(tensor.data, tensor.Bytes()));
  inputs_.push_back({.host = tensor.data, .device = device, .bytes = tensor.Bytes()});
  copy.data = device;
  return copy;
}

absl::StatusOr<TensorRef> HostTransfers::Output(const TensorRef& tensor) {
  if (tensor.space != MemorySpace::kHost || tensor.data == nullptr) {
    return tensor;
  }
  TensorRef place = tensor;
  place.space = MemorySpace::kDevice;
  if (const Place* known = Find(outputs_, tensor.data); known != nullptr) {
    place.data = known->device;
    return place;
  }
  ASSIGN_OR_RETURN(std::byte * device, arena_->Take(tensor.Bytes()));
  outputs_.push_back({.host = tensor.data, .device = device, .bytes = tensor.Bytes()});
  place.data = device;
  return place;
}

void HostTransfers::Written(const TensorRef& tensor, int64_t begin, int64_t end) {
  const Place* place = Find(outputs_, tensor.data);
  if (place == nullptr) {
    return;  // the device wrote to the tensor itself
  }
  auto* host = static_cast<std::byte*>(tensor.data) + begin;
  const std::byte* from = place->device + begin;
  if (!written_.empty() && written_.back().from + written_.back().bytes == from &&
      written_.back().host + written_.back().bytes == host) {
    written_.back().bytes += end - begin;
    return;
  }
  written_.push_back({.host = host, .from = from, .bytes = end - begin});
}

absl::Status HostTransfers::EndCall() {
  for (const Range& range : written_) {
    std::byte* to = range.host;
    if (range.bytes <= kLargeBytes) {
      ASSIGN_OR_RETURN(to, TakePinned(range.bytes));
    }
    RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(to, range.from, static_cast<size_t>(range.bytes),
                                               cudaMemcpyDeviceToHost, stream_),
                               "copying from the device"));
    if (to != range.host) {
      returning_.push_back({.host = range.host, .from = to, .bytes = range.bytes});
    }
  }
  written_.clear();
  inputs_.clear();
  outputs_.clear();
  arena_->Reset();
  return absl::OkStatus();
}

absl::Status HostTransfers::Finish() {
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "waiting for the device"));
  for (const Range& range : returning_) {
    std::memcpy(range.host, range.from, static_cast<size_t>(range.bytes));
  }
  returning_.clear();
  pinned_used_ = 0;
  return absl::OkStatus();
}

}  // namespace longshore::cuda
