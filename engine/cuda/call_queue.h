#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cuda_runtime_api.h>

#include "engine/core/status.h"
#include "engine/cuda/operation.h"
#include "engine/cuda/step_graphs.h"

namespace longshore::cuda {

/// Hides when what a call enqueues reaches the stream: at its end, so that it can be one graph, or
/// as it comes once somebody has asked for the stream itself. Its order is always that of the
/// calls here.
class CallQueue {
 public:
  /// `chains` as of StepGraphs. The stream must outlive this.
  CallQueue(cudaStream_t stream, bool chains) : stream_(stream), graphs_(chains) {}
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  /// A kernel that calls WaitForEarlier(), with an argument of `bytes` bytes. Errors show in
  /// cudaGetLastError(), or in EndCall().
  void Launch(const void* kernel, const GridShape& shape, const void* argument, size_t bytes);
  /// From pinned memory to the device, `bytes` of them.
  absl::Status Copy(std::byte* to, const std::byte* from, int64_t bytes);

  /// The stream, behind all that was enqueued here, for what cannot be part of a graph. If that
  /// was anything, the rest of the call will not be one either.
  cudaStream_t stream();
  /// What was enqueued is on the stream; what follows is another call.
  absl::Status EndCall();

 private:
  Operation& Next();
  void EnqueueWaiting();

  cudaStream_t stream_;
  StepGraphs graphs_;
  bool direct_ = false;                // for the rest of the call
  std::vector<Operation> operations_;  // [waiting_] of this call; those behind are to be used again
  size_t waiting_ = 0;
};

}  // namespace longshore::cuda
