#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <cuda_runtime_api.h>

#include "engine/core/status.h"
#include "engine/cuda/operation.h"

namespace longshore::cuda {

/// Hides that calls of a kind that came before are replayed, each as one CUDA graph whose nodes are
/// told what is different this time.
///
/// The second call of a kind makes its graph. At most kMostKinds kinds are known; a new one takes
/// the place of that which was used least recently.
class StepGraphs {
 public:
  static constexpr size_t kMostKinds = 32;

  /// `chains`: kernels may start before the one before them has ended.
  explicit StepGraphs(bool chains) : chains_(chains) {}
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  /// Launches the graph of a call, whose operations may change places with an earlier one's. False:
  /// there is none yet, and nothing was enqueued.
  absl::StatusOr<bool> Replay(std::span<Operation> call, cudaStream_t stream);

 private:
  struct Kind {
    std::vector<Operation> held;  // what the graph does, or the call that came before it
    cudaGraph_t graph = nullptr;  // of which the nodes are
    cudaGraphExec_t executable = nullptr;
    std::vector<cudaGraphNode_t> nodes;
    uint64_t last_use = 0;
  };

  Kind* Find(std::span<const Operation> call);
  void Remember(std::span<const Operation> call);
  absl::Status Build(std::span<const Operation> call, Kind* kind) const;
  static absl::Status Update(std::span<const Operation> call, const Kind& kind);
  static void Destroy(const Kind& kind);

  bool chains_;
  uint64_t uses_ = 0;
  std::vector<Kind> kinds_;
};

}  // namespace longshore::cuda
