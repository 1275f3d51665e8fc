#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <cuda_runtime_api.h>

#include "engine/core/tensor_ref.h"
#include "engine/cuda/call_queue.h"
#include "engine/cuda/device_arena.h"
#include "engine/cuda/kernels.h"

namespace longshore::cuda {

/// Hides how a call's tensors in host memory meet the device, each once, however many verbs read
/// it. A copy on the stream costs a small call more than its kernels do, so what is small makes
/// none: kernels read it from pinned memory and write it there.
///
/// All on one stream, between two EndCall().
class HostTransfers {
 public:
  /// `queue` is that of the stream; all must outlive this.
  HostTransfers(cudaStream_t stream, CallQueue* queue, DeviceArena* arena)
      : stream_(stream),
        queue_(queue),
        arena_(arena) {}
  ~HostTransfers();
  HostTransfers(const HostTransfers&) = delete;
  HostTransfers& operator=(const HostTransfers&) = delete;

  /// Takes the pinned memory. ResourceExhausted where there is too little.
  absl::Status Create();

  /// The tensor as the device reads it: itself, or a copy of what it holds now.
  absl::StatusOr<TensorRef> Input(const TensorRef& tensor);
  /// The same for one kernel that reads each element once: that may come from host memory.
  absl::StatusOr<TensorRef> InputOnce(const TensorRef& tensor);
  /// What the next kernel has to bring, so that Input() finds the tensor on the device.
  absl::StatusOr<Waiting> Bring(const TensorRef& tensor);
  /// A copy of an array on the device, good until EndCall().
  template <class T>
  absl::StatusOr<const T*> Array(std::span<const T> values) {
    ASSIGN_OR_RETURN(std::byte * to, Upload(values.data(), std::ssize(values) * sizeof(T)));
    return reinterpret_cast<const T*>(to);
  }
  /// Where the device writes what is meant for `tensor`, and does not read it: itself, or a place
  /// for as many bytes.
  absl::StatusOr<TensorRef> Output(const TensorRef& tensor);
  /// The device has written bytes [begin, end) of that place.
  void Written(const TensorRef& tensor, int64_t begin, int64_t end);

  /// What follows belongs to the next call. Outputs are in their tensors after Finish().
  absl::Status EndCall();
  /// Blocks until all calls that have ended are done and their outputs are in place.
  absl::Status Finish();

 private:
  struct Place {  // of a host tensor where the device reads or writes it
    const void* host = nullptr;
    std::byte* data = nullptr;
    int64_t bytes = 0;
    bool pinned = false;
  };
  struct Range {  // of an output
    std::byte* host = nullptr;
    const std::byte* from = nullptr;
    int64_t bytes = 0;
    bool pinned = false;
  };

  absl::StatusOr<std::byte*> Upload(const void* from, int64_t bytes);
  // Null where a call has taken too much.
  absl::StatusOr<std::byte*> TakePinned(int64_t bytes);
  absl::StatusOr<std::byte*> TakeStaged(const void* from, int64_t bytes);
  static const Place* Find(const std::vector<Place>& places, const void* host);

  cudaStream_t stream_;
  CallQueue* queue_;
  DeviceArena* arena_;
  std::byte* pinned_ = nullptr;  // [kPinnedBytes]
  int64_t pinned_used_ = 0;
  bool in_call_ = false;  // which has taken some
  std::vector<Place> inputs_;
  std::vector<Place> outputs_;
  std::vector<Range> written_;    // by the call that is being queued
  std::vector<Range> returning_;  // in pinned memory, of calls that have ended
};

}  // namespace longshore::cuda
