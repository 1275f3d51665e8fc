#pragma once

#include <cstdint>

#include "engine/backend_args.h"
#include "engine/cuda/mma.cuh"
#include "engine/cuda/rotate.cuh"

namespace longshore::cuda {

// Queries of a decode step in shared memory, as columns of B: [kColumns, kPitch] elements, rows of
// kDepth and a pad that spreads the quads over the banks. Column c is row c / group of the block,
// query head c % group of a KV head; the columns behind the last are zero.
template <class Element, int32_t kDepth, int32_t kColumns>
struct DecodeQueries {
  static constexpr int32_t kPitch = kDepth + 8;

  Element at[kColumns * kPitch];

  // The eight dimensions [32 g + 8 j, + 8) of column i of an n-tile, of which the first four words
  // are b0, b1 of one product and b0, b1 of the next.
  __device__ uint4 Fragment(int32_t tile, int32_t g, int32_t lane) const {
    return *reinterpret_cast<const uint4*>(at + (8 * tile + lane / 4) * kPitch + 32 * g +
                                           8 * (lane % 4));
  }
};

// One element of a query head turned by the angle of `id`, times `angle_scale` where it turns.
__device__ inline float TurnedQuery(const TensorRef& q,
                                    const RopeRows& rope,
                                    int64_t first,
                                    int32_t index,
                                    int64_t id,
                                    float angle_scale) {
  const float value = LoadAny(q.dtype, q.data, first + index);
  if (index >= 2 * rope.pairs) {
    return value;
  }
  const TurnPlace place = PlaceOf(rope, index);
  Turn turn = TurnOf(rope, id, place.pair);
  turn.cos = __fmul_rn(turn.cos, angle_scale);
  turn.sin = __fmul_rn(turn.sin, angle_scale);
  return Turned(turn, place.first, value, LoadAny(q.dtype, q.data, first + place.other));
}

}  // namespace longshore::cuda
