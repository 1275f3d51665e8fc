#pragma once

#include <cstdint>

#include "engine/cuda/decode_warp.cuh"
#include "engine/cuda/kernels.h"

// How what parts of the keys gave becomes the output: by warps, thread blocks and splits alike.
namespace longshore::cuda {

// A column's weight in a merge; nothing was seen where the maximum is -infinity.
__device__ inline float WeightOf(float max, float largest) {
  return largest == -INFINITY ? 0.0F : exp2f(max - largest);
}

// Four dimensions of one column of a KV head.
struct MergePlace {
  int32_t head;
  int32_t column;
  int32_t dim;
};

template <int32_t kDepth>
__device__ MergePlace PlaceOfFour(int32_t at, int32_t rows) {
  constexpr int32_t kFours = kDepth / 4;
  const int32_t head = at / kFours / rows;
  return {head, at / kFours - head * rows, at % kFours * 4};
}

// Softmax sums and four dimensions of the output that belongs to them, with more added.
struct Merged {
  float max = -INFINITY;
  float sum = 0.0F;
  float4 acc = {0.0F, 0.0F, 0.0F, 0.0F};

  __device__ void Add(float other_max, float other_sum, float4 other) {
    const float larger = fmaxf(max, other_max);
    const float keep = WeightOf(max, larger);
    const float add = WeightOf(other_max, larger);
    sum = fmaf(other_sum, add, sum * keep);
    acc = {fmaf(other.x, add, acc.x * keep), fmaf(other.y, add, acc.y * keep),
           fmaf(other.z, add, acc.z * keep), fmaf(other.w, add, acc.w * keep)};
    max = larger;
  }
};

// The output of four dimensions, of all parts in order, and the row's log-sum-exp.
template <int32_t kDepth>
__device__ void WriteFour(const AttendLaunch& launch,
                          const AttendBlock& attend,
                          const AttendLayout& layout,
                          int32_t parts,
                          int32_t kv_head,
                          const MergePlace& place) {
  const AttentionShape& shape = launch.shape;
  const int64_t rows = int64_t{layout.rows} * shape.num_kv_heads;  // of a part
  const int64_t index = int64_t{kv_head} * layout.rows + place.column;
  const int32_t group = shape.GroupSize();
  const int32_t row = place.column / group;
  const int32_t head = kv_head * group + place.column - row * group;
  const float* maxima = launch.workspace + layout.max + index;
  const float* sums = launch.workspace + layout.sum + index;
  const float* accs = launch.workspace + layout.acc + index * kDepth + place.dim;
  Merged merged;
  constexpr int32_t kAtOnce = 8;  // parts whose loads are on their way together
  for (int32_t first = 0; first < parts; first += kAtOnce) {
    float part_max[kAtOnce];
    float part_sum[kAtOnce];
    float4 part_acc[kAtOnce];
#pragma unroll
    for (int32_t at = 0; at < kAtOnce; ++at) {
      const int64_t part = min(first + at, parts - 1);
      part_max[at] = __ldcg(maxima + part * rows);
      part_sum[at] = __ldcg(sums + part * rows);
      part_acc[at] = __ldcg(reinterpret_cast<const float4*>(accs + part * rows * kDepth));
    }
#pragma unroll
    for (int32_t at = 0; at < kAtOnce; ++at) {
      if (first + at < parts) {
        merged.Add(part_max[at], part_sum[at], part_acc[at]);
      }
    }
  }
  if (launch.sink_logits != nullptr) {  // one more term of the denominator, without a value
    merged.Add(launch.sink_logits[head] * kLog2E, 1.0F, {0.0F, 0.0F, 0.0F, 0.0F});
  }
  const int64_t out = (int64_t{attend.block.first_row} + row) * shape.num_heads + head;
  const float largest = LargestFinite(launch.out.dtype);
  const float values[4] = {merged.acc.x, merged.acc.y, merged.acc.z, merged.acc.w};
#pragma unroll
  for (int32_t dim = 0; dim < 4; ++dim) {
    StoreAny(launch.out.dtype, fminf(fmaxf(values[dim] / merged.sum, -largest), largest),
             launch.out.data, out * kDepth + place.dim + dim);
  }
  if (launch.log_sum_exp != nullptr && place.dim == 0) {
    launch.log_sum_exp[out] = merged.max / kLog2E + logf(merged.sum);
  }
}

}  // namespace longshore::cuda
