#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/core/dtype.h"

namespace longshore {

/// Where bytes are, as seen by the code that touches them.
enum class MemorySpace : uint8_t {
  kHost,        ///< ordinary memory
  kHostMapped,  ///< host memory that the device of this backend can also read and write
  kDevice,      ///< memory of the backend's device; equal to kHost on the CPU backend
};

/// A dense row-major array of up to four axes, whatever brought it here. Never owns.
struct TensorRef {
  void* data = nullptr;  ///< [shape[0], ..., shape[rank - 1]] elements of dtype
  DType dtype = DType::kF32;
  MemorySpace space = MemorySpace::kHost;
  int32_t rank = 0;
  std::array<int64_t, 4> shape = {0, 0, 0, 0};

  int64_t NumElements() const { return ElementsFrom(0); }
  int64_t Bytes() const { return NumElements() * SizeOf(dtype); }
  /// Where row `row` of the first axis begins.
  const std::byte* Row(int64_t row) const {
    return static_cast<const std::byte*>(data) + row * ElementsFrom(1) * SizeOf(dtype);
  }

 private:
  int64_t ElementsFrom(int32_t first_axis) const {
    int64_t count = 1;
    for (int32_t axis = first_axis; axis < rank; ++axis) {
      count *= shape[static_cast<size_t>(axis)];
    }
    return count;
  }
};

}  // namespace longshore
