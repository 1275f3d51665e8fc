#include "engine/core/half.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "tests/support/random_tokens.h"

namespace longshore {
namespace {

// The value of a bit pattern, from the format's definition.
double ValueOf(uint16_t bits, int32_t exponent_bits, int32_t mantissa_bits) {
  const int32_t bias = (1 << (exponent_bits - 1)) - 1;
  const int32_t exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int32_t mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  const int32_t hidden = exponent == 0 ? 0 : 1 << mantissa_bits;
  return sign * std::ldexp(hidden + mantissa, std::max(exponent, 1) - bias - mantissa_bits);
}

TEST(F16, ToFloatIsExactForEveryElement) {
  for (int32_t bits = 0; bits < 0x10000; ++bits) {
    const auto element = static_cast<uint16_t>(bits);
    const double expected = ValueOf(element, 5, 10);
    const float value = ToFloat(F16{element});
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(double{value}, expected) << bits;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
    }
  }
}

TEST(Bf16, ToFloatIsExactForEveryElement) {
  for (int32_t bits = 0; bits < 0x10000; ++bits) {
    const auto element = static_cast<uint16_t>(bits);
    const double expected = ValueOf(element, 8, 7);
    const float value = ToFloat(Bf16{element});
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(double{value}, expected) << bits;
    }
  }
}

// Every element, the middle between every two neighbours, and the fp32 numbers beside the middle.
TEST(F16, RoundsToNearestEven) {
  constexpr uint16_t kInfinity = 0x7c00;
  for (uint16_t bits = 0; bits < kInfinity; ++bits) {
    const auto next = static_cast<uint16_t>(bits + 1);
    const float value = ToFloat(F16{bits});
    const float next_value = next == kInfinity ? 65536.0F : ToFloat(F16{next});
    const float middle = (value + next_value) / 2.0F;  // exact
    const uint16_t even = (bits & 1) == 0 ? bits : next;
    ASSERT_EQ(ToF16(value).bits, bits);
    ASSERT_EQ(ToF16(middle).bits, even) << bits;
    ASSERT_EQ(ToF16(std::nextafter(middle, 0.0F)).bits, bits) << bits;
    ASSERT_EQ(ToF16(std::nextafter(middle, INFINITY)).bits, next) << bits;
    ASSERT_EQ(ToF16(-value).bits, 0x8000 | bits);
    ASSERT_EQ(ToF16(-middle).bits, 0x8000 | even) << bits;
  }
  EXPECT_EQ(ToF16(INFINITY).bits, kInfinity);
  EXPECT_EQ(ToF16(-INFINITY).bits, 0x8000 | kInfinity);
  EXPECT_EQ(ToF16(std::numeric_limits<float>::max()).bits, kInfinity);
  EXPECT_EQ(ToF16(std::numeric_limits<float>::denorm_min()).bits, 0x0000);
  EXPECT_EQ(ToF16(-std::numeric_limits<float>::denorm_min()).bits, 0x8000);
  for (const uint32_t nan : {0x7fc00000u, 0x7f800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(ToFloat(ToF16(std::bit_cast<float>(nan)))));
  }
}

TEST(Bf16, RoundsToNearestEven) {
  for (uint32_t magnitude = 0; magnitude < 0x7f7f; ++magnitude) {
    const auto bits = static_cast<uint16_t>(magnitude);
    const float middle = std::bit_cast<float>((magnitude << 16) + 0x8000u);
    ASSERT_EQ(ToBf16(ToFloat(Bf16{bits})).bits, bits);
    ASSERT_EQ(ToBf16(middle).bits, (magnitude & 1) == 0 ? magnitude : magnitude + 1);
    ASSERT_EQ(ToBf16(std::nextafter(middle, 0.0F)).bits, magnitude);
    ASSERT_EQ(ToBf16(std::nextafter(middle, INFINITY)).bits, magnitude + 1);
    ASSERT_EQ(ToBf16(-middle).bits, 0x8000 | ((magnitude & 1) == 0 ? magnitude : magnitude + 1));
  }
  EXPECT_EQ(ToBf16(std::bit_cast<float>(0x7f7f7fffu)).bits, 0x7f7f);
  EXPECT_EQ(ToBf16(std::bit_cast<float>(0x7f7f8000u)).bits, 0x7f80);
  EXPECT_EQ(ToBf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(ToBf16(-INFINITY).bits, 0xff80);
  EXPECT_TRUE(std::isnan(ToFloat(ToBf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(ToFloat(ToBf16(std::bit_cast<float>(0xffffffffu)))));
}

TEST(Bf16, RoundsRandomNumbersToTheNearest) {
  std::mt19937 random(TestSeed());
  for (int32_t sample = 0; sample < 200000; ++sample) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isfinite(value)) {
      continue;
    }
    const uint16_t bits = ToBf16(value).bits;
    if ((bits & 0x7fff) == 0x7f80) {
      continue;  // overflow, seen above
    }
    const double error = std::abs(double{ToFloat(Bf16{bits})} - double{value});
    for (const int32_t step : {-1, 1}) {
      const auto neighbour = static_cast<uint16_t>(bits + step);
      const double other = double{ToFloat(Bf16{neighbour})};
      if (std::isfinite(other) && std::signbit(other) == std::signbit(value)) {
        ASSERT_LE(error, std::abs(other - double{value})) << value << ", seed " << TestSeed();
      }
    }
  }
}

}  // namespace
}  // namespace longshore
