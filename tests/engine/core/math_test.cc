#include "engine/core/math.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

constexpr int64_t kLargest = INT64_MAX;

TEST(Math, CeilDivRoundsUp) {
  EXPECT_EQ(CeilDiv(0, 64), 0);
  EXPECT_EQ(CeilDiv(1, 64), 1);
  EXPECT_EQ(CeilDiv(64, 64), 1);
  EXPECT_EQ(CeilDiv(65, 64), 2);
  EXPECT_EQ(CeilDiv(7, 1), 7);
}

TEST(Math, RoundUpGivesTheNextMultiple) {
  EXPECT_EQ(RoundUp(0, 16), 0);
  EXPECT_EQ(RoundUp(1, 16), 16);
  EXPECT_EQ(RoundUp(16, 16), 16);
  EXPECT_EQ(RoundUp(17, 16), 32);
}

TEST(Math, FloorDivRoundsTowardsMinusInfinity) {
  EXPECT_EQ(FloorDiv(7, 8), 0);
  EXPECT_EQ(FloorDiv(8, 8), 1);
  EXPECT_EQ(FloorDiv(0, 8), 0);
  EXPECT_EQ(FloorDiv(-1, 8), -1);
  EXPECT_EQ(FloorDiv(-8, 8), -1);
  EXPECT_EQ(FloorDiv(-9, 8), -2);
}

TEST(Math, MinAndMaxOfSignedNumbers) {
  EXPECT_EQ(Min(-3, 2), -3);
  EXPECT_EQ(Max(-3, 2), 2);
  EXPECT_EQ(Min(5, 5), 5);
}

TEST(Math, CheckedMulSeesOverflow) {
  EXPECT_EQ(CheckedMul(0, kLargest), 0);
  EXPECT_EQ(CheckedMul(3, 5), 15);
  EXPECT_EQ(CheckedMul(1, kLargest), kLargest);
  EXPECT_EQ(CheckedMul(2, kLargest / 2), kLargest - 1);
  EXPECT_FALSE(CheckedMul(2, kLargest / 2 + 1).has_value());
  EXPECT_FALSE(CheckedMul(int64_t{1} << 32, int64_t{1} << 31).has_value());
  EXPECT_FALSE(CheckedMul(-1, 1).has_value());
  EXPECT_FALSE(CheckedMul(1, -1).has_value());
}

}  // namespace
}  // namespace longshore
