#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/cuda_emulator/emulator.h"

// CUDA's graphs, of the one shape that the backend makes: chains of kernels and copies. What a node
// was told stays until it is told something else.

struct CUgraphNode_st {
  const void* kernel = nullptr;  // null: a copy
  emulator::Grid grid;
  std::vector<std::vector<std::byte>> arguments;
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  const CUgraphNode_st* after = nullptr;
};

struct CUgraph_st {
  std::deque<CUgraphNode_st> nodes;
};

struct CUgraphExec_st {
  struct Node {
    const CUgraphNode_st* of;
    CUgraphNode_st work;
  };
  std::vector<Node> nodes;
};

namespace {

void Tell(const cudaKernelNodeParams* parameters, CUgraphNode_st* node) {
  node->kernel = parameters->func;
  node->grid = {parameters->gridDim, parameters->blockDim, parameters->sharedMemBytes};
  node->arguments.clear();
  const std::vector<size_t>& sizes = emulator::Loaded(node->kernel).parameter_bytes;
  for (size_t index = 0; index < sizes.size(); ++index) {
    const auto* begin = static_cast<const std::byte*>(parameters->kernelParams[index]);
    node->arguments.emplace_back(begin, begin + sizes[index]);
  }
}

void RunKernel(const void* kernel, const emulator::Grid& grid, void** arguments) {
  const emulator::KernelEntry& entry = emulator::Loaded(kernel);
  emulator::Run(entry.name, grid, [&] { entry.call(arguments); });
}

void RunNode(CUgraphNode_st* node) {
  if (node->kernel == nullptr) {
    std::memcpy(node->to, node->from, node->bytes);
    return;
  }
  std::vector<void*> arguments;
  for (std::vector<std::byte>& argument : node->arguments) {
    arguments.push_back(argument.data());
  }
  RunKernel(node->kernel, node->grid, arguments.data());
}

CUgraphNode_st* WorkOf(cudaGraphExec_t executable, cudaGraphNode_t node) {
  for (CUgraphExec_st::Node& known : executable->nodes) {
    if (known.of == node) {
      return &known.work;
    }
  }
  return nullptr;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming, readability-function-size): as CUDA has them
extern "C" {

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                const void* kernel,
                                void** arguments) {
  RunKernel(kernel, {config->gridDim, config->blockDim, config->dynamicSmemBytes}, arguments);
  return cudaSuccess;
}

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
  *graph = std::make_unique<CUgraph_st>().release();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  std::unique_ptr<CUgraph_st>(graph).reset();
  return cudaSuccess;
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node,
                                   cudaGraph_t graph,
                                   const cudaGraphNode_t*,
                                   size_t dependencies,
                                   const cudaKernelNodeParams* parameters) {
  if (dependencies != 0) {
    return cudaErrorInvalidValue;
  }
  *node = &graph->nodes.emplace_back();
  Tell(parameters, *node);
  return cudaSuccess;
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node,
                                     cudaGraph_t graph,
                                     const cudaGraphNode_t*,
                                     size_t dependencies,
                                     void* to,
                                     const void* from,
                                     size_t bytes,
                                     cudaMemcpyKind) {
  if (dependencies != 0 || bytes == 0) {
    return cudaErrorInvalidValue;
  }
  *node = &graph->nodes.emplace_back();
  (*node)->to = to;
  (*node)->from = from;
  (*node)->bytes = bytes;
  return cudaSuccess;
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t,
                                     const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to,
                                     const cudaGraphEdgeData* edges,
                                     size_t count) {
  for (size_t index = 0; index < count; ++index) {
    const bool early = edges[index].type == cudaGraphDependencyTypeProgrammatic;
    const bool kernels = from[index]->kernel != nullptr && to[index]->kernel != nullptr;
    if ((early && !kernels) || to[index]->after != nullptr ||
        edges[index].from_port != (early ? cudaGraphKernelNodePortProgrammatic : 0)) {
      return cudaErrorInvalidValue;
    }
    to[index]->after = from[index];
  }
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable,
                                 cudaGraph_t graph,
                                 unsigned long long) {
  auto made = std::make_unique<CUgraphExec_st>();
  const CUgraphNode_st* before = nullptr;
  for (const CUgraphNode_st& node : graph->nodes) {
    if (node.after != before) {
      return cudaErrorInvalidValue;  // no chain
    }
    before = &node;
    made->nodes.push_back({&node, node});
  }
  *executable = made.release();
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  std::unique_ptr<CUgraphExec_st>(executable).reset();
  return cudaSuccess;
}
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t executable,
                                             cudaGraphNode_t node,
                                             const cudaKernelNodeParams* parameters) {
  CUgraphNode_st* work = WorkOf(executable, node);
  if (work == nullptr || work->kernel != parameters->func) {
    return cudaErrorInvalidValue;
  }
  Tell(parameters, work);
  return cudaSuccess;
}
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t executable,
                                               cudaGraphNode_t node,
                                               void* to,
                                               const void* from,
                                               size_t bytes,
                                               cudaMemcpyKind) {
  CUgraphNode_st* work = WorkOf(executable, node);
  if (work == nullptr || work->kernel != nullptr || bytes == 0) {
    return cudaErrorInvalidValue;
  }
  work->to = to;
  work->from = from;
  work->bytes = bytes;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) {
  for (CUgraphExec_st::Node& node : executable->nodes) {
    RunNode(&node.work);
  }
  return cudaSuccess;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming, readability-function-size)
