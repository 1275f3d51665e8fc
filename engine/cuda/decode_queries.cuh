#pragma once

#include <cstdint>

#include "engine/backend_args.h"
#include "engine/cuda/turn_staged.cuh"

namespace longshore::cuda {

// Queries of a decode step in shared memory, as columns of B: [kColumns, kPitch] elements, rows of
// kDepth and a pad that spreads the quads over the banks. Column c is row c / group of the block,
// query head c % group of a KV head; what the columns behind the last hold leads nowhere.
template <class Element, int32_t kDepth, int32_t kColumns>
struct DecodeQueries {
  static constexpr int32_t kPitch = kDepth + 8;

  alignas(16) Element at[kColumns * kPitch];  // rows are read 16 bytes at a time

  // The eight dimensions [32 g + 8 j, + 8) of column i of an n-tile, of which the first four words
  // are b0, b1 of one product and b0, b1 of the next.
  __device__ uint4 Fragment(int32_t tile, int32_t g, int32_t lane) const {
    return *reinterpret_cast<const uint4*>(at + (8 * tile + lane / 4) * kPitch + 32 * g +
                                           8 * (lane % 4));
  }
};

// Four elements of a tensor's row as fp32.
__device__ inline float4 LoadFour(const TensorRef& tensor, int64_t index) {
  switch (tensor.dtype) {
    case DType::kBf16: {
      const uint2 words =
          *reinterpret_cast<const uint2*>(static_cast<const Bf16*>(tensor.data) + index);
      const float2 low = UnpackPair<Bf16>(words.x);
      const float2 high = UnpackPair<Bf16>(words.y);
      return {low.x, low.y, high.x, high.y};
    }
    case DType::kF16: {
      const uint2 words =
          *reinterpret_cast<const uint2*>(static_cast<const F16*>(tensor.data) + index);
      const float2 low = UnpackPair<F16>(words.x);
      const float2 high = UnpackPair<F16>(words.y);
      return {low.x, low.y, high.x, high.y};
    }
    default:
      return *reinterpret_cast<const float4*>(static_cast<const float*>(tensor.data) + index);
  }
}

// Four pairs of a query head, of which the angle of `id` turns all dimensions or none: elements
// [first, + 4) and [second, + 4) of the head.
struct PairOfFours {
  int32_t first;
  int32_t second;
  float4 x;
  float4 y;
};

// Pairs [4 four, + 4) of the head that begins at `head` in the tensor, times `angle_scale`.
template <int32_t kDepth>
__device__ inline PairOfFours TurnedPairs(const TensorRef& q,
                                          const RopeRows& rope,
                                          int64_t head,
                                          int32_t four,
                                          int64_t id,
                                          float angle_scale) {
  const bool interleaved = rope.pairing == RopePairing::kInterleaved;
  PairOfFours out;
  out.first = interleaved ? 8 * four : 4 * four;
  out.second = interleaved ? out.first + 4 : out.first + kDepth / 2;
  const float4 x = LoadFour(q, head + out.first);
  const float4 y = LoadFour(q, head + out.second);
  if (rope.pairs == 0) {
    out.x = x;
    out.y = y;
    return out;
  }
  FourTurns turns = FourTurnsOf(rope, id, 4 * four);
  for (Turn* turn : {&turns.x, &turns.y, &turns.z, &turns.w}) {
    *turn = Times(*turn, angle_scale);
  }
  if (interleaved) {
    out.x = {TurnedFirst(turns.x, x.x, x.y), TurnedSecond(turns.x, x.x, x.y),
             TurnedFirst(turns.y, x.z, x.w), TurnedSecond(turns.y, x.z, x.w)};
    out.y = {TurnedFirst(turns.z, y.x, y.y), TurnedSecond(turns.z, y.x, y.y),
             TurnedFirst(turns.w, y.z, y.w), TurnedSecond(turns.w, y.z, y.w)};
  } else {
    out.x = {TurnedFirst(turns.x, x.x, y.x), TurnedFirst(turns.y, x.y, y.y),
             TurnedFirst(turns.z, x.z, y.z), TurnedFirst(turns.w, x.w, y.w)};
    out.y = {TurnedSecond(turns.x, x.x, y.x), TurnedSecond(turns.y, x.y, y.y),
             TurnedSecond(turns.z, x.z, y.z), TurnedSecond(turns.w, x.w, y.w)};
  }
  return out;
}

// Which query rows a KV head's columns are.
struct QueryColumns {
  const TensorRef& q;
  const AttentionShape& shape;
  const QueryBlock& block;
  int32_t first_row;  // of the block
  int32_t stride;
  int32_t rows;
  float angle_scale;
};

// The columns of KV heads [first_head, first_head + heads), one behind the other, by all threads:
// turned by id_of(position) and handed to put(head, column, index, four values), which rounds them
// to Element as StoreFour() does: parts of either sign may be taken before. Columns that no query
// has stay as they are: nothing reads what they lead to.
template <int32_t kDepth, class IdOf, class Put>
__device__ void LoadColumns(const QueryColumns& columns,
                            int32_t first_head,
                            int32_t heads,
                            const IdOf& id_of,
                            const Put& put) {
  constexpr int32_t kFours = kDepth / 8;
  const int32_t group = columns.shape.GroupSize();
  const int32_t used = columns.rows * group;
  // The last threads begin: the first have more to do elsewhere.
  for (auto at = static_cast<int32_t>(blockDim.x - 1 - threadIdx.x); at < heads * used * kFours;
       at += static_cast<int32_t>(blockDim.x)) {
    const int32_t head = at / kFours / used;
    const int32_t column = at / kFours - head * used;
    const int32_t row = columns.rows == 1 ? 0 : column / group;
    const int32_t of_block = columns.first_row + row * columns.stride;
    const int32_t of_call = (columns.block.first_row + of_block) * columns.shape.num_heads +
                            (first_head + head) * group + column - row * group;
    const PairOfFours turned =
        TurnedPairs<kDepth>(columns.q, columns.block.rope, int64_t{of_call} * kDepth, at % kFours,
                            id_of(columns.block.first_position + of_block), columns.angle_scale);
    put(head, column, turned.first, turned.x);
    put(head, column, turned.second, turned.y);
  }
}

template <class Element>
__device__ inline void StoreFour(float4 value, Element* to) {
  *reinterpret_cast<uint2*>(to) = {PackPair<Element>(value.x, value.y),
                                   PackPair<Element>(value.z, value.w)};
}

}  // namespace longshore::cuda
