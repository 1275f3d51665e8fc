#include "longshore/client/tensor.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "engine/core/half.h"

namespace longshore::client {
namespace {

// The client has its own conversions, since it includes nothing of engine/; they must be the same.
TEST(Tensor, ConvertsAsTheEngineDoes) {
  for (uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float f16 = ToFloat(F16{half});
    ASSERT_EQ(std::bit_cast<uint32_t>(f16),
              std::bit_cast<uint32_t>(longshore::ToFloat(longshore::F16{half})))
        << bits;
    ASSERT_EQ(std::bit_cast<uint32_t>(ToFloat(Bf16{half})),
              std::bit_cast<uint32_t>(longshore::ToFloat(longshore::Bf16{half})))
        << bits;
    if (!std::isnan(f16)) {
      ASSERT_EQ(ToF16(f16).bits, half);
    }
  }
  std::mt19937 random(5);
  for (int draw = 0; draw < 200000; ++draw) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    ASSERT_EQ(ToF16(value).bits, longshore::ToF16(value).bits) << value;
    ASSERT_EQ(ToBf16(value).bits, longshore::ToBf16(value).bits) << value;
  }
}

TEST(Tensor, KnowsItsType) {
  const Tensor tensor(DType::kBf16, {2}, std::string("\x80\x3f\x00\x40", 4));  // 1, 2
  EXPECT_EQ(tensor.size(), 2);
  EXPECT_EQ(tensor.As<Bf16>().size(), 2U);
  EXPECT_TRUE(tensor.As<float>().empty()) << "nothing is reinterpreted";
  EXPECT_EQ(tensor.ToFloats(), (std::vector<float>{1.0F, 2.0F}));
}

TEST(Values, AreAViewOfWhatTheCallerHas) {
  const std::vector<Bf16> values(6);
  const Values view = values;
  EXPECT_EQ(view.dtype(), DType::kBf16);
  EXPECT_EQ(view.bytes(), 12);
  EXPECT_EQ(view.Part(2, 3).data(), &values[2]);
  EXPECT_EQ(view.Part(2, 3).size(), 3);
}

}  // namespace
}  // namespace longshore::client
