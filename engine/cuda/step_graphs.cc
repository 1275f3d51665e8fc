#include "engine/cuda/step_graphs.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/cuda/cuda_status.h"

namespace longshore::cuda {
namespace {

// A kernel's launch for CUDA; lives as long as the operation stays as it is.
class KernelNode {
 public:
  explicit KernelNode(const Operation& operation)
      : arguments_{const_cast<std::byte*>(operation.argument.data())} {
    parameters_.func = const_cast<void*>(operation.kernel);
    parameters_.gridDim = operation.shape.grid;
    parameters_.blockDim = dim3(static_cast<uint32_t>(operation.shape.threads));
    parameters_.sharedMemBytes = static_cast<uint32_t>(operation.shape.shared_bytes);
    parameters_.kernelParams = arguments_.data();
  }
  const cudaKernelNodeParams* parameters() const { return &parameters_; }

 private:
  std::array<void*, 1> arguments_;
  cudaKernelNodeParams parameters_ = {};
};

cudaError_t AddNode(cudaGraph_t graph, const Operation& operation, cudaGraphNode_t* node) {
  if (operation.kernel == nullptr) {
    return cudaGraphAddMemcpyNode1D(node, graph, nullptr, 0, operation.to, operation.from,
                                    static_cast<size_t>(operation.bytes), cudaMemcpyHostToDevice);
  }
  return cudaGraphAddKernelNode(node, graph, nullptr, 0, KernelNode(operation).parameters());
}

cudaError_t SetNode(cudaGraphExec_t executable, const Operation& operation, cudaGraphNode_t node) {
  if (operation.kernel == nullptr) {
    return cudaGraphExecMemcpyNodeSetParams1D(executable, node, operation.to, operation.from,
                                              static_cast<size_t>(operation.bytes),
                                              cudaMemcpyHostToDevice);
  }
  return cudaGraphExecKernelNodeSetParams(executable, node, KernelNode(operation).parameters());
}

}  // namespace

StepGraphs::~StepGraphs() {
  for (const Kind& kind : kinds_) {
    Destroy(kind);
  }
}

void StepGraphs::Destroy(const Kind& kind) {
  if (kind.executable != nullptr) {
    cudaGraphExecDestroy(kind.executable);  // once it has run; errors have shown before
  }
  if (kind.graph != nullptr) {
    cudaGraphDestroy(kind.graph);
  }
}

StepGraphs::Kind* StepGraphs::Find(std::span<const Operation> call) {
  const auto found = std::find_if(kinds_.begin(), kinds_.end(), [call](const Kind& kind) {
    return AreOfOneKind(call, kind.held);
  });
  return found == kinds_.end() ? nullptr : &*found;
}

void StepGraphs::Remember(std::span<const Operation> call) {
  if (kinds_.size() == kMostKinds) {
    const auto oldest = std::min_element(
        kinds_.begin(), kinds_.end(),
        [](const Kind& left, const Kind& right) { return left.last_use < right.last_use; });
    Destroy(*oldest);
    kinds_.erase(oldest);
  }
  Kind& kind = kinds_.emplace_back();
  kind.held.assign(call.begin(), call.end());
  kind.last_use = ++uses_;
}

// A chain of nodes, each of which follows the one before.
absl::Status StepGraphs::Build(std::span<const Operation> call, Kind* kind) const {
  constexpr char kDoing[] = "making a graph";
  RETURN_IF_ERROR(CudaStatus(cudaGraphCreate(&kind->graph, 0), kDoing));
  for (size_t index = 0; index < call.size(); ++index) {
    cudaGraphNode_t node = nullptr;
    RETURN_IF_ERROR(CudaStatus(AddNode(kind->graph, call[index], &node), kDoing));
    if (index > 0) {
      cudaGraphEdgeData edge = {};
      if (chains_ && call[index].kernel != nullptr && call[index - 1].kernel != nullptr) {
        edge.from_port = cudaGraphKernelNodePortProgrammatic;
        edge.type = cudaGraphDependencyTypeProgrammatic;
      }
      RETURN_IF_ERROR(CudaStatus(
          cudaGraphAddDependencies(kind->graph, &kind->nodes.back(), &node, &edge, 1), kDoing));
    }
    kind->nodes.push_back(node);
  }
  return CudaStatus(cudaGraphInstantiate(&kind->executable, kind->graph, 0), kDoing);
}

absl::Status StepGraphs::Update(std::span<const Operation> call, const Kind& kind) {
  for (const size_t index : Differences(call, kind.held)) {
    RETURN_IF_ERROR(CudaStatus(SetNode(kind.executable, call[index], kind.nodes[index]),
                               "telling a graph what to do"));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> StepGraphs::Replay(std::span<Operation> call, cudaStream_t stream) {
  Kind* kind = Find(call);
  if (kind == nullptr) {
    Remember(call);
    return false;
  }
  kind->last_use = ++uses_;
  if (kind->executable == nullptr) {
    RETURN_IF_ERROR(Build(call, kind));
  } else {
    RETURN_IF_ERROR(Update(call, *kind));
  }
  std::swap_ranges(call.begin(), call.end(), kind->held.begin());
  RETURN_IF_ERROR(CudaStatus(cudaGraphLaunch(kind->executable, stream), "launching a graph"));
  return true;
}

}  // namespace longshore::cuda
