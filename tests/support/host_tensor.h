#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/tensor_ref.h"

namespace longshore {

/// A tensor in memory of its own, for tests: values go in and come out as doubles. Behind its last
/// element lies a guard that nobody may touch.
class HostTensor {
 public:
  /// Zeros.
  HostTensor(DType dtype, std::vector<int64_t> shape);
  /// `values`, row-major, each rounded to the nearest element of dtype.
  HostTensor(DType dtype, std::vector<int64_t> shape, std::span<const double> values);

  /// Valid as long as this object.
  TensorRef Ref();
  /// The elements, without the guard.
  std::span<const std::byte> Bytes() const;
  /// Every element; exact.
  std::vector<double> Values() const;
  /// Whether nothing was written behind the last element.
  bool GuardIsIntact() const;

 private:
  DType dtype_;
  std::vector<int64_t> shape_;
  int64_t elements_;
  std::vector<std::byte> storage_;  // elements, then the guard
};

}  // namespace longshore
