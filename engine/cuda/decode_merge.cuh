#pragma once

#include <cstdint>

#include "engine/cuda/decode_warp.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/row_end.cuh"

// How what parts of the keys gave becomes the output: by warps and splits alike.
namespace longshore::cuda {

// A column's weight in a merge; nothing was seen where the maximum is -infinity.
__device__ inline float WeightOf(float max, float largest) {
  return largest == -INFINITY ? 0.0F : Exp2(max - largest);
}

// Softmax sums and four dimensions of the output that belongs to them.
struct Merged {
  float max = -INFINITY;
  float sum = 0.0F;
  float4 acc = {0.0F, 0.0F, 0.0F, 0.0F};

  __device__ void Scale(float weight) {
    sum *= weight;
    acc = {acc.x * weight, acc.y * weight, acc.z * weight, acc.w * weight};
  }
  __device__ void Add(const Merged& other, float weight) {
    sum = fmaf(other.sum, weight, sum);
    acc = {fmaf(other.acc.x, weight, acc.x), fmaf(other.acc.y, weight, acc.y),
           fmaf(other.acc.z, weight, acc.z), fmaf(other.acc.w, weight, acc.w)};
  }
};

// Parts [first, end) in order, of which part_of(index) finds one; kAtOnce are looked for together.
template <int32_t kAtOnce, class PartOf>
__device__ Merged MergeParts(int32_t first, int32_t end, const PartOf& part_of) {
  Merged merged;
  for (int32_t begin = first; begin < end; begin += kAtOnce) {
    Merged parts[kAtOnce];
#pragma unroll
    for (int32_t at = 0; at < kAtOnce; ++at) {
      parts[at] = part_of(min(begin + at, end - 1));
    }
    float largest = merged.max;
#pragma unroll
    for (int32_t at = 0; at < kAtOnce; ++at) {
      largest = fmaxf(largest, parts[at].max);
    }
    merged.Scale(WeightOf(merged.max, largest));
    merged.max = largest;
#pragma unroll
    for (int32_t at = 0; at < kAtOnce; ++at) {
      merged.Add(parts[at], begin + at < end ? WeightOf(parts[at].max, largest) : 0.0F);
    }
  }
  return merged;
}

// Four dimensions of one column of a KV head.
struct MergePlace {
  int32_t column;
  int32_t dim;
};
template <int32_t kDepth>
__device__ MergePlace PlaceOfFour(int32_t at) {
  constexpr int32_t kFours = kDepth / 4;
  return {at / kFours, at % kFours * 4};
}

// What a split gives of one KV head, in memory.
template <int32_t kDepth>
struct SplitResults {
  float* max;
  float* sum;
  float* acc;
  int64_t rows;  // of a split

  __device__ SplitResults(const AttendLaunch& launch, const AttendLayout& layout, int32_t kv_head)
      : max(launch.workspace + layout.max + int64_t{kv_head} * layout.rows),
        sum(launch.workspace + layout.sum + int64_t{kv_head} * layout.rows),
        acc(launch.workspace + layout.acc + int64_t{kv_head} * layout.rows * kDepth),
        rows(int64_t{layout.rows} * launch.shape.num_kv_heads) {}

  __device__ void Write(int32_t split, const MergePlace& place, const Merged& merged) const {
    const int64_t row = split * rows + place.column;
    __stcg(reinterpret_cast<float4*>(acc + row * kDepth + place.dim), merged.acc);
    if (place.dim == 0) {
      __stcg(max + row, merged.max);
      __stcg(sum + row, merged.sum);
    }
  }
  __device__ Merged Read(int32_t split, const MergePlace& place) const {
    const int64_t row = split * rows + place.column;
    return {__ldcg(max + row), __ldcg(sum + row),
            __ldcg(reinterpret_cast<const float4*>(acc + row * kDepth + place.dim))};
  }
};

// The output of four dimensions, and the row's log-sum-exp.
template <int32_t kDepth>
__device__ void WriteFour(const AttendLaunch& launch,
                          const AttendBlock& attend,
                          int32_t kv_head,
                          const MergePlace& place,
                          const Merged& merged) {
  const AttentionShape& shape = launch.shape;
  const int32_t group = shape.GroupSize();
  const int32_t row = place.column / group;
  const int32_t head = kv_head * group + place.column - row * group;
  const RowEnd end = EndOf(launch, head, merged.max / kLog2E, merged.sum);
  const int64_t out = (int64_t{attend.block.first_row} + row) * shape.num_heads + head;
  const int64_t at = out * kDepth + place.dim;
  StoreTwo(launch.out.dtype, {merged.acc.x * end.factor, merged.acc.y * end.factor},
           launch.out.data, at);
  StoreTwo(launch.out.dtype, {merged.acc.z * end.factor, merged.acc.w * end.factor},
           launch.out.data, at + 2);
  if (launch.log_sum_exp != nullptr && place.dim == 0) {
    launch.log_sum_exp[out] = end.log_sum_exp;
  }
}

}  // namespace longshore::cuda
