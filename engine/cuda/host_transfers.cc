#include "engine/cuda/host_transfers.h"

#include <algorithm>
#include <cstring>

#include "engine/core/math.h"
#include "engine/cuda/cuda_status.h"

namespace longshore::cuda {
namespace {

// Memory that the device reads and writes by itself. A call has at least half of it to itself.
constexpr int64_t kPinnedBytes = int64_t{16} << 20;
// What is larger is copied, by the driver's own staging while we wait for it.
constexpr int64_t kSmallBytes = int64_t{1} << 20;
constexpr int64_t kAlignment = 64;

// What stands for `tensor` at `data`.
TensorRef At(const TensorRef& tensor, MemorySpace space, std::byte* data) {
  TensorRef copy = tensor;
  copy.space = space;
  copy.data = data;
  return copy;
}

bool IsThere(const TensorRef& tensor) {
  return tensor.space != MemorySpace::kHost || tensor.data == nullptr;
}

}  // namespace

HostTransfers::~HostTransfers() { cudaFreeHost(pinned_); }

absl::Status HostTransfers::Create() {
  void* data = nullptr;
  RETURN_IF_ERROR(
      AllocationStatus(cudaHostAlloc(&data, static_cast<size_t>(kPinnedBytes), cudaHostAllocMapped),
                       kPinnedBytes, "host memory"));
  pinned_ = static_cast<std::byte*>(data);
  return absl::OkStatus();
}

const HostTransfers::Place* HostTransfers::Find(const std::vector<Place>& places,
                                                const void* host) {
  const auto found = std::find_if(places.begin(), places.end(),
                                  [host](const Place& place) { return place.host == host; });
  return found == places.end() ? nullptr : &*found;
}

absl::StatusOr<std::byte*> HostTransfers::TakePinned(int64_t bytes) {
  if (!in_call_) {
    in_call_ = true;
    if (pinned_used_ > kPinnedBytes / 2) {
      RETURN_IF_ERROR(Finish());  // earlier calls may still read and write what they took
    }
  }
  bytes = RoundUp(bytes, kAlignment);
  if (bytes > kSmallBytes || bytes > kPinnedBytes - pinned_used_) {
    return nullptr;
  }
  std::byte* taken = pinned_ + pinned_used_;
  pinned_used_ += bytes;
  return taken;
}

absl::StatusOr<std::byte*> HostTransfers::TakeStaged(const void* from, int64_t bytes) {
  ASSIGN_OR_RETURN(std::byte * pinned, TakePinned(bytes));
  if (pinned != nullptr) {
    std::memcpy(pinned, from, static_cast<size_t>(bytes));
  }
  return pinned;
}

absl::StatusOr<std::byte*> HostTransfers::Upload(const void* from, int64_t bytes) {
  ASSIGN_OR_RETURN(std::byte * to, arena_->Take(bytes));
  ASSIGN_OR_RETURN(const std::byte* staged, TakeStaged(from, bytes));
  if (staged != nullptr) {
    RETURN_IF_ERROR(queue_->Copy(to, staged, bytes));
    return to;
  }
  RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                                             cudaMemcpyHostToDevice, queue_->stream()),
                             "copying to the device"));
  return to;
}

absl::StatusOr<TensorRef> HostTransfers::Input(const TensorRef& tensor) {
  if (IsThere(tensor)) {
    return tensor;
  }
  if (const Place* place = Find(inputs_, tensor.data); place != nullptr) {
    return At(tensor, MemorySpace::kDevice, place->data);
  }
  ASSIGN_OR_RETURN(std::byte * device, Upload(tensor.data, tensor.Bytes()));
  inputs_.push_back({.host = tensor.data, .data = device, .bytes = tensor.Bytes()});
  return At(tensor, MemorySpace::kDevice, device);
}

absl::StatusOr<TensorRef> HostTransfers::InputOnce(const TensorRef& tensor) {
  if (IsThere(tensor) || Find(inputs_, tensor.data) != nullptr) {
    return Input(tensor);
  }
  ASSIGN_OR_RETURN(std::byte * pinned, TakeStaged(tensor.data, tensor.Bytes()));
  return pinned != nullptr ? At(tensor, MemorySpace::kHostMapped, pinned) : Input(tensor);
}

absl::StatusOr<Waiting> HostTransfers::Bring(const TensorRef& tensor) {
  if (IsThere(tensor) || Find(inputs_, tensor.data) != nullptr) {
    return Waiting{};
  }
  const int64_t bytes = tensor.Bytes();
  ASSIGN_OR_RETURN(const std::byte* pinned, TakeStaged(tensor.data, bytes));
  if (pinned == nullptr) {
    return Waiting{};
  }
  ASSIGN_OR_RETURN(std::byte * device, arena_->Take(bytes));
  inputs_.push_back({.host = tensor.data, .data = device, .bytes = bytes});
  return Waiting{.from = pinned, .to = device, .bytes = RoundUp(bytes, 16)};
}

absl::StatusOr<TensorRef> HostTransfers::Output(const TensorRef& tensor) {
  if (IsThere(tensor)) {
    return tensor;
  }
  if (const Place* known = Find(outputs_, tensor.data); known != nullptr) {
    return At(tensor, MemorySpace::kDevice, known->data);
  }
  const int64_t bytes = tensor.Bytes();
  ASSIGN_OR_RETURN(std::byte * data, TakePinned(bytes));
  const bool pinned = data != nullptr;
  if (!pinned) {
    ASSIGN_OR_RETURN(data, arena_->Take(bytes));
  }
  outputs_.push_back({.host = tensor.data, .data = data, .bytes = bytes, .pinned = pinned});
  return At(tensor, MemorySpace::kDevice, data);
}

void HostTransfers::Written(const TensorRef& tensor, int64_t begin, int64_t end) {
  const Place* place = Find(outputs_, tensor.data);
  if (place == nullptr) {
    return;  // the device wrote to the tensor itself
  }
  const Range range{.host = static_cast<std::byte*>(tensor.data) + begin,
                    .from = place->data + begin,
                    .bytes = end - begin,
                    .pinned = place->pinned};
  for (Range& known : written_) {
    if (known.host + known.bytes == range.host && known.from + known.bytes == range.from) {
      known.bytes += range.bytes;
      return;
    }
  }
  written_.push_back(range);
}

absl::Status HostTransfers::EndCall() {
  for (const Range& range : written_) {
    if (range.pinned) {
      returning_.push_back(range);
      continue;
    }
    RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(range.host, range.from, static_cast<size_t>(range.bytes),
                                   cudaMemcpyDeviceToHost, queue_->stream()),
                   "copying from the device"));
  }
  written_.clear();
  inputs_.clear();
  outputs_.clear();
  arena_->Reset();
  in_call_ = false;
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
