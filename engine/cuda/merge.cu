#include "engine/cuda/elements.cuh"
#include "engine/cuda/kernels.h"

namespace longshore::cuda {
namespace {

constexpr int32_t kWarps = 8;

// One row of one head: a warp. Heads (x), blocks (y).
__global__ void __launch_bounds__(kWarps * 32, 1)
    MergeSplits(const __grid_constant__ AttendLaunch launch) {
  const AttendLayout& layout = launch.layouts[blockIdx.y];
  const AttentionShape& shape = launch.shape;
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t rows = int64_t{layout.rows} * shape.num_kv_heads;  // [kv_heads, rows]
  if (index >= rows) {
    return;
  }
  const float* maxima = launch.workspace + layout.max + index;
  const float* sums = launch.workspace + layout.sum + index;
  const int32_t group = shape.GroupSize();
  const auto row = static_cast<int32_t>(index % layout.rows);
  const auto head = static_cast<int32_t>(index / layout.rows * group + row % group);
  float max = launch.sink_logits == nullptr ? -INFINITY : launch.sink_logits[head];
  for (int32_t split = 0; split < layout.splits; ++split) {
    max = fmaxf(max, maxima[split * rows]);
  }
  float sum = launch.sink_logits == nullptr ? 0.0F : expf(launch.sink_logits[head] - max);
  for (int32_t split = 0; split < layout.splits; ++split) {
    sum += sums[split * rows] * expf(maxima[split * rows] - max);
  }
  const AttendBlock& attend = launch.blocks[blockIdx.y];
  const int64_t out_row = (int64_t{attend.block.first_row} + row / group) * shape.num_heads + head;
  const float largest = LargestFinite(launch.out.dtype);
  for (auto dim = static_cast<int32_t>(threadIdx.x % 32); dim < shape.head_dim; dim += 32) {
    const float* acc = launch.workspace + layout.acc + index * shape.head_dim + dim;
    float value = 0.0F;
    for (int32_t split = 0; split < layout.splits; ++split) {
      value = fmaf(acc[split * rows * shape.head_dim], expf(maxima[split * rows] - max), value);
    }
    // Rounding may carry a mean past the largest number.
    StoreAny(launch.out.dtype, fminf(fmaxf(value / sum, -largest), largest), launch.out.data,
             out_row * shape.head_dim + dim);
  }
  if (launch.log_sum_exp != nullptr && threadIdx.x % 32 == 0) {
    launch.log_sum_exp[out_row] = max + logf(sum);
  }
}

}  // namespace

void LaunchMergeSplits(const AttendLaunch& launch, cudaStream_t stream) {
  const int64_t rows = int64_t{launch.most_rows} * launch.shape.num_kv_heads;
  const dim3 grid(static_cast<uint32_t>(CeilDiv(rows, kWarps)),
                  static_cast<uint32_t>(launch.num_blocks));
  MergeSplits<<<grid, kWarps * 32, 0, stream>>>(launch);
}

}  // namespace longshore::cuda
