#pragma once

#include <cstdint>

#include "engine/policy.h"

namespace longshore::cuda {

// Tokens [first, last] of a chunk that are left on a head's way down.
struct Branch {
  int32_t first;
  int32_t last;

  // The halves [first, m - 1] and [m, last] with m = floor((first + last) / 2). The left one of two
  // tokens is empty: there the way ends.
  __device__ bool Ended() const { return last - first < 2; }
  __device__ int32_t Middle() const { return (first + last) >> 1; }
  __device__ Branch Half(bool left) const {
    return left ? Branch{first, Middle() - 1} : Branch{Middle(), last};
  }
  // The token that stands for them.
  __device__ int32_t Representative(DescentRepresentative kind) const {
    return kind == DescentRepresentative::kFirst ? first : Middle();
  }
};

}  // namespace longshore::cuda
