#include "tests/support/compare.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tests/support/random_tokens.h"

namespace longshore {
namespace {

using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

bool IsSameAnomaly(double actual, double expected) {
  return (std::isfinite(actual) && std::isfinite(expected)) || actual == expected ||
         (std::isnan(actual) && std::isnan(expected));
}

// Sums over the finite elements.
struct Moments {
  double actual_squares = 0.0;
  double expected_squares = 0.0;
  double products = 0.0;
  double error_squares = 0.0;
  int64_t worst = 0;  // index of the largest difference
  double largest = 0.0;
};

Moments Measure(std::span<const double> actual, std::span<const double> expected) {
  Moments moments;
  for (size_t index = 0; index < actual.size(); ++index) {
    if (!std::isfinite(actual[index])) {
      continue;
    }
    const double error = actual[index] - expected[index];
    moments.actual_squares += actual[index] * actual[index];
    moments.expected_squares += expected[index] * expected[index];
    moments.products += actual[index] * expected[index];
    moments.error_squares += error * error;
    if (std::abs(error) > moments.largest) {
      moments.largest = std::abs(error);
      moments.worst = static_cast<int64_t>(index);
    }
  }
  return moments;
}

std::string Values(double actual, double expected) {
  return absl::StrCat(": actual ", actual, ", expected ", expected, " (seed ", TestSeed(), ")");
}

}  // namespace

std::string IndexText(std::span<const int64_t> shape, int64_t index) {
  std::vector<int64_t> indices(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    indices[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return absl::StrCat("[", absl::StrJoin(indices, ", "), "]");
}

AssertionResult IsClose(absl::string_view what,
                        std::span<const int64_t> shape,
                        std::span<const double> actual,
                        std::span<const double> expected,
                        const Tolerance& tolerance) {
  for (size_t index = 0; index < std::min(actual.size(), expected.size()); ++index) {
    if (!IsSameAnomaly(actual[index], expected[index])) {
      return AssertionFailure() << what << " at " << IndexText(shape, static_cast<int64_t>(index))
                                << Values(actual[index], expected[index]);
    }
  }
  if (actual.size() != expected.size()) {
    return AssertionFailure() << what << " has " << actual.size() << " elements, expected "
                              << expected.size();
  }
  const Moments moments = Measure(actual, expected);
  const double scale = std::max(moments.expected_squares, 1e-30);
  const double nmse = moments.error_squares / scale;
  const double norms = std::sqrt(moments.actual_squares * moments.expected_squares);
  const double cosine = norms > 0.0 ? moments.products / norms : 1.0;
  // 1e-15: what the sums here may err by.
  const bool close = nmse <= tolerance.nmse && 1.0 - cosine <= tolerance.nmse + 1e-15 &&
                     moments.largest <= tolerance.max_abs;
  if (close || actual.empty()) {
    return AssertionSuccess();
  }
  const auto worst = static_cast<size_t>(moments.worst);
  return AssertionFailure() << what << ": NMSE " << nmse << " (at most " << tolerance.nmse
                            << "), 1 - cosine " << 1.0 - cosine << ", largest difference "
                            << moments.largest << " (at most " << tolerance.max_abs << ") at "
                            << IndexText(shape, moments.worst)
                            << Values(actual[worst], expected[worst]);
}

AssertionResult IsSameBytes(absl::string_view what,
                            std::span<const std::byte> actual,
                            std::span<const std::byte> expected) {
  if (actual.size() != expected.size()) {
    return AssertionFailure() << what << " has " << actual.size() << " bytes, expected "
                              << expected.size();
  }
  int64_t different = 0;
  size_t first = actual.size();
  for (size_t index = actual.size(); index-- > 0;) {
    if (actual[index] != expected[index]) {
      ++different;
      first = index;
    }
  }
  if (different == 0) {
    return AssertionSuccess();
  }
  return AssertionFailure() << what << ": " << different << " of " << actual.size()
                            << " bytes differ, the first at " << first << ": actual "
                            << static_cast<int>(actual[first]) << ", expected "
                            << static_cast<int>(expected[first]) << " (seed " << TestSeed() << ")";
}

}  // namespace longshore
