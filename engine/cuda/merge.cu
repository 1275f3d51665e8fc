#include "engine/cuda/launch.cuh"
#include "engine/cuda/row_end.cuh"

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
  if (index >= rows || (launch.kind == AttendKind::kPrefill && layout.splits == 1)) {
    return;  // none, or written already
  }
  const float* maxima = launch.workspace + layout.max + index;
  const float* sums = launch.workspace + layout.sum + index;
  const int32_t group = shape.GroupSize();
  const auto row = static_cast<int32_t>(index % layout.rows);
  const auto head = static_cast<int32_t>(index / layout.rows * group + row % group);
  float max = -INFINITY;
  for (int32_t split = 0; split < layout.splits; ++split) {
    max = fmaxf(max, maxima[split * rows]);
  }
  float sum = 0.0F;
  for (int32_t split = 0; split < layout.splits; ++split) {
    sum += sums[split * rows] * expf(maxima[split * rows] - max);
  }
  const RowEnd end = EndOf(launch, head, max, sum);
  const AttendBlock& attend = launch.blocks[blockIdx.y];
  const int64_t out_row = (int64_t{attend.block.first_row} + row / group) * shape.num_heads + head;
  for (auto dim = static_cast<int32_t>(threadIdx.x % 32); dim < shape.head_dim; dim += 32) {
    const float* acc = launch.workspace + layout.acc + index * shape.head_dim + dim;
    float value = 0.0F;
    for (int32_t split = 0; split < layout.splits; ++split) {
      value = fmaf(acc[split * rows * shape.head_dim], expf(maxima[split * rows] - max), value);
    }
    StoreAny(launch.out.dtype, WithinRange(launch.out.dtype, value * end.factor), launch.out.data,
             out_row * shape.head_dim + dim);
  }
  if (launch.log_sum_exp != nullptr && threadIdx.x % 32 == 0) {
    launch.log_sum_exp[out_row] = end.log_sum_exp;
  }
}

}  // namespace

void LaunchMergeSplits(const AttendLaunch& launch, cudaStream_t stream) {
  if (launch.kind == AttendKind::kPrefill && launch.most_splits == 1) {
    return;
  }
  const int64_t rows = int64_t{launch.most_rows} * launch.shape.num_kv_heads;
  const dim3 grid(static_cast<uint32_t>(CeilDiv(rows, kWarps)),
                  static_cast<uint32_t>(launch.num_blocks));
  LaunchKernel<MergeSplits>({grid, kWarps * 32}, stream, launch);
}

}  // namespace longshore::cuda
