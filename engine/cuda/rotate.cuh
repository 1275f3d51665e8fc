#pragma once

#include <cstdint>

#include "engine/backend_args.h"
#include "engine/cuda/elements.cuh"

namespace longshore::cuda {

struct Turn {
  float cos;
  float sin;
};

// Two angles added. What is rounded, and where, is here and in TurnedFirst() and TurnedSecond()
// alone, and as the CPU backend does it.
__device__ inline Turn Compose(const Turn& coarse, const Turn& fine) {
  return {fmaf(-coarse.sin, fine.sin, __fmul_rn(coarse.cos, fine.cos)),
          fmaf(coarse.cos, fine.sin, __fmul_rn(coarse.sin, fine.cos))};
}

// An angle whose turn also multiplies.
__device__ inline Turn Times(const Turn& turn, float factor) {
  return {__fmul_rn(turn.cos, factor), __fmul_rn(turn.sin, factor)};
}

// (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)
__device__ inline float TurnedFirst(const Turn& turn, float x1, float x2) {
  return fmaf(-x2, turn.sin, __fmul_rn(x1, turn.cos));
}
__device__ inline float TurnedSecond(const Turn& turn, float x1, float x2) {
  return fmaf(x1, turn.sin, __fmul_rn(x2, turn.cos));
}

// The angle of a rotary id, composed of the two levels of its table (RopeTable).
__device__ inline Turn TurnOf(const RopeRows& rope, int64_t id, int32_t pair) {
  const int64_t coarse = (id >> 6) * rope.pairs + pair;
  const int64_t fine = (id & 63) * rope.pairs + pair;
  return Compose({rope.coarse_cos[coarse], rope.coarse_sin[coarse]},
                 {rope.fine_cos[fine], rope.fine_sin[fine]});
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

// An element that is the first or the second of its pair.
__device__ inline float Turned(const Turn& turn, bool first, float self, float other) {
  return first ? TurnedFirst(turn, self, other) : TurnedSecond(turn, other, self);
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
