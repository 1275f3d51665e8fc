#pragma once

#include <cstdint>

namespace longshore::cuda {

// *to = max(*to, value), whoever else does the same.
__device__ inline void AtomicMax(float* to, float value) {
  const int32_t bits = __float_as_int(value + 0.0F);  // there is one zero
  if (bits >= 0) {
    atomicMax(reinterpret_cast<int32_t*>(to), bits);
  } else {
    atomicMin(reinterpret_cast<uint32_t*>(to), static_cast<uint32_t>(bits));
  }
}

}  // namespace longshore::cuda
