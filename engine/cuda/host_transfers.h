#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <cuda_runtime_api.h>

#include "engine/core/tensor_ref.h"
#include "engine/cuda/device_arena.h"

namespace longshore::cuda {

/// Hides how a call's tensors in host memory meet the device: each is uploaded once, however many
/// verbs read it, and what was written for it comes back when the call is waited for.
///
/// All on one stream, between two EndCall().
class HostTransfers {
 public:
  /// Both must outlive this.
  HostTransfers(cudaStream_t stream, DeviceArena* arena) : stream_(stream), arena_(arena) {}
  ~HostTransfers();
  HostTransfers(const HostTransfers&) = delete;
  HostTransfers& operator=(const HostTransfers&) = delete;

  /// The tensor as the device reads it: itself, or a copy of what it holds now.
  absl::StatusOr<TensorRef> Input(const TensorRef& tensor);
  /// A copy of an array on the device, good until EndCall().
  template <class T>
  absl::StatusOr<const T*> Array(std::span<const T> values) {
    ASSIGN_OR_RETURN(std::byte * to, Upload(values.data(), std::ssize(values) * sizeof(T)));
    return reinterpret_cast<const T*>(to);
  }
  /// Where the device writes what is meant for `tensor`: itself, or a place for as many bytes.
  absl::StatusOr<TensorRef> Output(const TensorRef& tensor);
  /// The device has written bytes [begin, end) of that place.
  void Written(const TensorRef& tensor, int64_t begin, int64_t end);

  /// What follows belongs to the next call. Outputs are copied to their tensors by Finish().
  absl::Status EndCall();
  /// Blocks until all calls that have ended are done and their outputs are in place.
  absl::Status Finish();

 private:
  struct Place {  // of a host tensor on the device
    const void* host = nullptr;
    std::byte* device = nullptr;
    int64_t bytes = 0;
  };
  struct Range {  // of an output
    std::byte* host = nullptr;
    const std::byte* from = nullptr;
    int64_t bytes = 0;
  };

  absl::StatusOr<std::byte*> Upload(const void* from, int64_t bytes);
  absl::StatusOr<std::byte*> TakePinned(int64_t bytes);
  static const Place* Find(const std::vector<Place>& places, const void* host);

  cudaStream_t stream_;
  DeviceArena* arena_;
  std::byte* pinned_ = nullptr;  // [kPinnedBytes], made when first needed
  int64_t pinned_used_ = 0;
  std::vector<Place> inputs_;
  std::vector<Place> outputs_;
  std::vector<Range> written_;    // on the device, by the call that is being queued
  std::vector<Range> returning_;  // to pinned memory, of calls that have ended
};

}  // namespace longshore::cuda
