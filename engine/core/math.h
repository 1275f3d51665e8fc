#pragma once

#include <cstdint>
#include <optional>

#include "engine/core/hd.h"

namespace longshore {

/// ceil(a / b) for a >= 0, b > 0.
HD constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The smallest multiple of `b` that is at least `a`, for a >= 0, b > 0.
HD constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

/// floor(a / b) for any a and b > 0; C++ division rounds towards zero.
HD constexpr int64_t FloorDiv(int64_t a, int64_t b) { return a >= 0 ? a / b : -CeilDiv(-a, b); }

HD constexpr int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
HD constexpr int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }

/// a * b for a, b >= 0, or nothing where that overflows. For sizes that come from the wire.
constexpr std::optional<int64_t> CheckedMul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) {
    return std::nullopt;
  }
  return product;
}

}  // namespace longshore
