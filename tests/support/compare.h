#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <absl/strings/string_view.h>
#include <gtest/gtest.h>

namespace longshore {

/// How far results may be from what is expected.
struct Tolerance {
  double nmse = 0.0;     ///< of sum (actual - expected)^2 / sum expected^2
  double max_abs = 0.0;  ///< of |actual - expected|
};

/// Compares in the order that tells most: pattern of NaN and infinity, number of elements, NMSE,
/// cosine (1 - cosine may be as large as the NMSE), largest difference. A failure says the index,
/// both values and the seed.
///
///   actual, expected  [shape], row-major
::testing::AssertionResult IsClose(absl::string_view what,
                                   std::span<const int64_t> shape,
                                   std::span<const double> actual,
                                   std::span<const double> expected,
                                   const Tolerance& tolerance);

/// Whether two byte strings are equal. A failure says how many bytes differ and which is the first.
::testing::AssertionResult IsSameBytes(absl::string_view what,
                                       std::span<const std::byte> actual,
                                       std::span<const std::byte> expected);

/// Row-major position of `index` in an array of `shape`: "[2, 0, 17]".
std::string IndexText(std::span<const int64_t> shape, int64_t index);

}  // namespace longshore
