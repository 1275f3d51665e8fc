#include "tests/support/compare.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/host_tensor.h"

namespace longshore {
namespace {

using ::testing::HasSubstr;
using Numbers = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Tolerance kLoose = {.nmse = 1.0, .max_abs = 1e9};

std::string Failure(const Numbers& actual, const Numbers& expected, const Tolerance& tolerance) {
  const std::vector<int64_t> shape = {2, 3};
  const auto result = IsClose("out", shape, actual, expected, tolerance);
  return result ? "" : result.message();
}

TEST(IsClose, TakesWhatIsWithinTheTolerance) {
  const Numbers expected = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(Failure(expected, expected, {}), "");
  EXPECT_EQ(Failure({1, 2, 3, 4, 5, 6.01}, expected, {.nmse = 1e-4, .max_abs = 0.02}), "");
  EXPECT_EQ(Failure({}, {}, {}), "");
}

TEST(IsClose, SaysWhereAnomaliesDiffer) {
  const Numbers expected = {1, 2, kInfinity, 4, std::nan(""), 6};
  EXPECT_EQ(Failure({1, 2, kInfinity, 4, std::nan(""), 6}, expected, kLoose), "");
  EXPECT_THAT(Failure({1, 2, kInfinity, 4, 5, 6}, expected, kLoose), HasSubstr("at [1, 1]"));
  EXPECT_THAT(Failure({1, 2, -kInfinity, 4, std::nan(""), 6}, expected, kLoose),
              HasSubstr("at [0, 2]: actual -inf, expected inf"));
  EXPECT_THAT(Failure({std::nan(""), 2, kInfinity, 4, std::nan(""), 6}, expected, kLoose),
              HasSubstr("at [0, 0]: actual nan, expected 1"));
}

TEST(IsClose, SaysThatElementsAreMissing) {
  EXPECT_THAT(Failure({1, 2}, {1, 2, 3}, kLoose), HasSubstr("has 2 elements, expected 3"));
}

TEST(IsClose, SeesEachKindOfError) {
  const Numbers expected = {1, 2, 3, 4, 5, 6};
  const std::string largest =
      Failure({1, 2, 3, 4, 5.5, 6}, expected, {.nmse = 1.0, .max_abs = 0.25});
  EXPECT_THAT(largest, HasSubstr("largest difference 0.5 (at most 0.25) at [1, 1]: actual 5.5, "
                                 "expected 5 (seed "));
  EXPECT_THAT(Failure({1, 2, 3, 4, 5.5, 6}, expected, {.nmse = 1e-3, .max_abs = 1.0}),
              HasSubstr("NMSE"));
  // Twice too large is no other direction: only the NMSE sees it.
  EXPECT_THAT(Failure({2, 4, 6, 8, 10, 12}, expected, {.nmse = 0.99, .max_abs = 10.0}),
              HasSubstr("1 - cosine"));
  // All signs wrong: the cosine is -1 even where the NMSE were allowed to be 4.
  EXPECT_NE(Failure({-1, -2, -3, -4, -5, -6}, expected, {.nmse = 1.9, .max_abs = 100.0}), "");
}

TEST(IsSameBytes, CountsWhatDiffers) {
  const std::vector<std::byte> left = {std::byte{1}, std::byte{2}, std::byte{3}};
  const std::vector<std::byte> right = {std::byte{1}, std::byte{9}, std::byte{8}};
  EXPECT_TRUE(IsSameBytes("out", left, left));
  const auto result = IsSameBytes("out", left, right);
  EXPECT_FALSE(result);
  EXPECT_THAT(result.message(), HasSubstr("2 of 3 bytes differ, the first at 1: actual 2, "
                                          "expected 9"));
  EXPECT_FALSE(IsSameBytes("out", std::span(left).first(2), left));
}

TEST(HostTensor, RoundsAndGivesBack) {
  const Numbers values = {1.0, -2.5, 1.00390625, 65504.0};
  EXPECT_EQ(HostTensor(DType::kF32, {2, 2}, values).Values(), values);
  EXPECT_EQ(HostTensor(DType::kBf16, {2, 2}, values).Values(), (Numbers{1.0, -2.5, 1.0, 65536.0}));
  EXPECT_EQ(HostTensor(DType::kF16, {2, 2}, values).Values(),
            (Numbers{1.0, -2.5, 1.00390625, 65504.0}));
  HostTensor zeros(DType::kF16, {3, 4});
  EXPECT_EQ(zeros.Bytes().size(), 24U);
  EXPECT_EQ(zeros.Ref().Bytes(), 24);
  EXPECT_EQ(zeros.Values(), Numbers(12, 0.0));
}

TEST(HostTensor, SeesWritesBehindTheLastElement) {
  HostTensor tensor(DType::kF32, {5});
  auto* elements = static_cast<float*>(tensor.Ref().data);
  elements[4] = 1.0F;
  EXPECT_TRUE(tensor.GuardIsIntact());
  elements[5] = 0.0F;  // the guard
  EXPECT_FALSE(tensor.GuardIsIntact());
}

}  // namespace
}  // namespace longshore
