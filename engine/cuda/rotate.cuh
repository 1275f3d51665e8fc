#pragma once

#include <cstdint>

#include "engine/backend_args.h"
#include "engine/cuda/elements.cuh"

namespace longshore::cuda {

struct Turn {
  float cos;
  float sin;
};

// The angle of a rotary id, composed of the two levels of its table (RopeTable).
__device__ inline Turn TurnOf(const RopeRows& rope, int64_t id, int32_t pair) {
  const int64_t coarse = (id >> 6) * rope.pairs + pair;
  const int64_t fine = (id & 63) * rope.pairs + pair;
  const float coarse_cos = rope.coarse_cos[coarse];
  const float coarse_sin = rope.coarse_sin[coarse];
  const float fine_cos = rope.fine_cos[fine];
  const float fine_sin = rope.fine_sin[fine];
  return {fmaf(-coarse_sin, fine_sin, __fmul_rn(coarse_cos, fine_cos)),
          fmaf(coarse_cos, fine_sin, __fmul_rn(coarse_sin, fine_cos))};
}

// Where an element finds the one that it turns with.
struct TurnPlace {
  int32_t pair;
  int32_t other;
  bool first;
};

__device__ inline TurnPlace PlaceOf(const RopeRows& rope, int32_t index) {
  if (rope.pairing == RopePairing::kInterleaved) {
    return {index / 2, index ^ 1, (index & 1) == 0};
  }
  const bool first = index < rope.pairs;
  return {first ? index : index - rope.pairs, first ? index + rope.pairs : index - rope.pairs,
          first};
}

// Element `index` of (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), not rounded.
__device__ inline float Turned(const Turn& turn, bool first, float self, float other) {
  return fmaf(first ? -other : other, turn.sin, __fmul_rn(self, turn.cos));
}

// Element `index` of a stored row turned by the angle of `id`, rounded to the row's type as every
// backend does. Dimensions that do not turn pass through.
template <class Element>
__device__ inline float TurnedElement(const Element* row,
                                      int32_t index,
                                      const RopeRows& rope,
                                      int64_t id) {
  const float self = ToFloat(row[index]);
  if (index >= 2 * rope.pairs) {
    return self;
  }
  const TurnPlace place = PlaceOf(rope, index);
  return RoundTo<Element>(
      Turned(TurnOf(rope, id, place.pair), place.first, self, ToFloat(row[place.other])));
}

}  // namespace longshore::cuda
