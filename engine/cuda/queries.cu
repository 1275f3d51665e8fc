#include "engine/cuda/kernels.h"
#include "engine/cuda/launch.cuh"
#include "engine/cuda/rotate.cuh"

namespace longshore::cuda {
namespace {

constexpr int32_t kThreads = 128;

// A head of a query row, turned by the angle of `id` and rounded to kv_dtype.
struct TurnedRow {
  TensorRef q;
  const RopeRows& rope;
  DType round_to;
  int64_t head;  // in the packed tensor
  int64_t id;
  float angle_scale;

  __device__ float operator()(int32_t index, int32_t head_dim) const {
    const int64_t row = head * head_dim;
    float value = LoadAny(q.dtype, q.data, row + index);
    if (index < 2 * rope.pairs) {
      const TurnPlace place = PlaceOf(rope, index);
      const Turn turn = Times(TurnOf(rope, id, place.pair), angle_scale);
      value = Turned(turn, place.first, value, LoadAny(q.dtype, q.data, row + place.other));
    }
    switch (round_to) {
      case DType::kBf16: return RoundTo<Bf16>(value);
      case DType::kF16: return RoundTo<F16>(value);
      default: return value;
    }
  }
};

// One scored row of one block, all heads.
__global__ void __launch_bounds__(kThreads)
    StageQueries(const __grid_constant__ PruneLaunch launch) {
  const StageLayout& layout = launch.layouts[blockIdx.y];
  const auto scored = static_cast<int32_t>(blockIdx.x);
  if (scored >= layout.scored) {
    return;
  }
  const PruneBlock& prune = launch.blocks[blockIdx.y];
  const AttentionShape& shape = launch.shape;
  const RopeRows& rope = prune.block.rope;
  const bool descent = launch.stage.selector == Selector::kDescent;
  const bool splits_signs = launch.stage.selector == Selector::kBounds;
  const bool unrotated =
      descent ? DescentKeysAreUnrotated(prune.rule.style) : PruneKeysAreUnrotated(prune.rule.style);
  const int32_t row = layout.first_row + scored * launch.query_stride;
  const int64_t position = prune.block.first_position + row;
  const int64_t id = descent ? DescentQueryId(prune.rule, position, layout.candidates)
                             : PruneQueryId(prune.rule, position, layout.candidates);
  const int32_t group = shape.GroupSize();
  const int32_t depth = splits_signs ? 2 * shape.head_dim : shape.head_dim;
  float* out = launch.workspace + layout.queries;
  for (int32_t element = static_cast<int32_t>(threadIdx.x);
       element < shape.num_heads * shape.head_dim; element += kThreads) {
    const int32_t head = element / shape.head_dim;
    const int32_t index = element % shape.head_dim;
    const TurnedRow turned{launch.q,
                           rope,
                           shape.kv_dtype,
                           (int64_t{prune.block.first_row} + row) * shape.num_heads + head,
                           id,
                           unrotated ? rope.attention_scaling : 1.0F};
    const float value = turned(index, shape.head_dim);
    const int32_t kv_head = head / group;
    float* to = out + ((int64_t{kv_head} * layout.scored + scored) * group + head % group) * depth;
    if (splits_signs) {
      to[index] = fmaxf(value, 0.0F);
      to[shape.head_dim + index] = fminf(value, 0.0F);
    } else {
      to[index] = value;
    }
  }
}

// One row of one block, all heads.
__global__ void __launch_bounds__(kThreads)
    AttendQueries(const __grid_constant__ AttendLaunch launch) {
  const AttendBlock& attend = launch.blocks[blockIdx.y];
  const auto row = static_cast<int32_t>(blockIdx.x);
  if (row >= attend.block.rows) {
    return;
  }
  const AttentionShape& shape = launch.shape;
  const AttendLayout& layout = launch.layouts[blockIdx.y];
  const AttendIds ids = MakeAttendIds(attend.rule, attend.block.regions,
                                      int64_t{attend.num_selected} * attend.selected_chunk_tokens);
  const int32_t group = shape.GroupSize();
  float* out = launch.workspace + layout.queries;
  for (int32_t element = static_cast<int32_t>(threadIdx.x);
       element < shape.num_heads * shape.head_dim; element += kThreads) {
    const int32_t head = element / shape.head_dim;
    const int32_t index = element % shape.head_dim;
    const TurnedRow turned{launch.q,
                           attend.block.rope,
                           shape.kv_dtype,
                           (int64_t{attend.block.first_row} + row) * shape.num_heads + head,
                           ids.OfQuery(attend.block.first_position + row),
                           1.0F};
    const int64_t to = (int64_t{head / group} * layout.rows + int64_t{row} * group + head % group) *
                           shape.head_dim +
                       index;
    out[to] = turned(index, shape.head_dim);
  }
}

}  // namespace

void LaunchStageQueries(const PruneLaunch& launch, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(launch.most_scored),
                  static_cast<uint32_t>(launch.num_blocks));
  LaunchKernel<StageQueries>({grid, kThreads}, stream, launch);
}

void LaunchAttendQueries(const AttendLaunch& launch, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(launch.most_rows / launch.shape.GroupSize()),
                  static_cast<uint32_t>(launch.num_blocks));
  LaunchKernel<AttendQueries>({grid, kThreads}, stream, launch);
}

}  // namespace longshore::cuda
