#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <cuda_runtime_api.h>

#include "engine/backend.h"
#include "engine/cuda/call_queue.h"
#include "engine/cuda/device_arena.h"
#include "engine/cuda/host_transfers.h"
#include "engine/cuda/launch_shape.h"

namespace longshore::cuda {

/// One GPU: its memory, one stream, and the kernels of this folder on it. Tensors of a call may lie
/// in host memory or on the device. Results do not depend on a block's neighbours in a call.
class CudaBackend final : public Backend {
 public:
  /// With all kernels loaded, and all memory that calls work in, but for what is named at
  /// TakeMemory(). FailedPrecondition with reason NO_DEVICE where there is no GPU that this build
  /// runs on; ResourceExhausted names the bytes.
  static absl::StatusOr<std::unique_ptr<Backend>> Create();
  ~CudaBackend() override;

  /// What verbs enqueue on, with all that they have enqueued so far, for benchmarks that capture
  /// it.
  cudaStream_t stream() { return queue_.stream(); }

  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<Buffer> Allocate(MemorySpace space, int64_t bytes) override;
  absl::Status Copy(void* to, const void* from, int64_t bytes) override;
  absl::Status Append(const AppendArgs& args) override;
  absl::Status Prune(const PruneArgs& args) override;
  absl::Status Attend(const AttendArgs& args) override;
  absl::Status Admit(const AdmitArgs& args) override;
  absl::StatusOr<Fence> Mark() override;
  absl::Status Wait(Fence fence) override;

 private:
  // `chains` as of StepGraphs.
  CudaBackend(DeviceInfo info, const DeviceTraits& device, bool chains, cudaStream_t stream);
  void Free(MemorySpace space, std::byte* data, int64_t bytes) override;

  // The tensors of an AttendArgs as the device sees them.
  struct AttendTensors {
    TensorRef q;
    TensorRef out;
    TensorRef log_sum_exp;
  };

  // What calls work in. Grows later, once, where a call is larger than any of 8B shapes with the
  // default limits: tensors of more than 768 MiB (by a piece of the arena), one query block whose
  // scores take more than 1.5 GiB (the workspace), more than 1M pairs of a decode block and a KV
  // head (the counters).
  absl::Status TakeMemory();
  absl::Status ReserveWorkspace(int64_t floats);
  // `count` zeros, which launches leave behind as zeros.
  absl::StatusOr<int32_t*> Counters(int64_t count);
  absl::Status PruneBlocks(const PruneArgs& args,
                           const TensorRef& q,
                           std::span<const PruneBlock> blocks,
                           std::span<const StageLayout> layouts);
  absl::Status AttendBlocks(const AttendArgs& args,
                            const AttendTensors& tensors,
                            std::span<const AttendBlock> blocks,
                            std::span<const AttendLayout> layouts);

  DeviceInfo info_;
  DeviceTraits device_;
  cudaStream_t stream_;
  CallQueue queue_;  // what goes to the stream goes through it
  DeviceArena arena_;
  HostTransfers transfers_;
  std::byte* workspace_ = nullptr;  // of one launch after the other
  int64_t workspace_bytes_ = 0;
  Buffer counters_;
  uint64_t sequence_ = 0;
  uint64_t finished_ = 0;  // fences that have passed
};

}  // namespace longshore::cuda
