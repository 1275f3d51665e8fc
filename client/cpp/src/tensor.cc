#include "longshore/client/tensor.h"

#include <algorithm>
#include <bit>

namespace longshore::client {

float ToFloat(Bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

float ToFloat(F16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000U) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fU;
  const uint32_t fraction = value.bits & 0x3ffU;
  if (exponent == 0) {  // a multiple of 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide_exponent = exponent == 0x1fU ? 0xffU : exponent + 127 - 15;
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (fraction << 13));
}

Bf16 ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) {
    return {static_cast<uint16_t>((bits >> 16) | 0x40U)};  // quiet, so that it stays a NaN
  }
  const uint32_t odd = (bits >> 16) & 1U;
  return {static_cast<uint16_t>((bits + 0x7fffU + odd) >> 16)};
}

F16 ToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  uint32_t half = 0;
  if (value != value) {
    half = 0x7e00U;
  } else if (magnitude >= std::bit_cast<uint32_t>(65520.0F)) {
    half = 0x7c00U;
  } else if (magnitude < std::bit_cast<uint32_t>(0x1p-14F)) {
    // fp32 numbers from 1/2 on are multiples of 2^-24, as fp16's subnormal ones are: adding rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    half = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5F);
  } else {
    const uint32_t odd = (magnitude >> 13) & 1U;
    half = (magnitude + 0xfffU + odd - ((127U - 15U) << 23)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

Values Values::Part(int64_t begin, int64_t size) const {
  Values part = *this;
  part.data_ = static_cast<const char*>(data_) + begin * SizeOf(dtype_);
  part.size_ = size;
  return part;
}

namespace {

template <typename T>
std::vector<float> Converted(std::span<const T> values) {
  std::vector<float> floats(values.size());
  std::transform(values.begin(), values.end(), floats.begin(),
                 [](T value) { return ToFloat(value); });
  return floats;
}

}  // namespace

std::vector<float> Tensor::ToFloats() const {
  switch (dtype_) {
    case DType::kF32: {
      const std::span<const float> values = As<float>();
      return {values.begin(), values.end()};
    }
    case DType::kBf16: return Converted(As<Bf16>());
    case DType::kF16: return Converted(As<F16>());
  }
  return {};
}

}  // namespace longshore::client
