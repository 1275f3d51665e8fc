#pragma once

#include <bit>
#include <cstdint>

#include "engine/core/hd.h"

namespace longshore {

/// The upper half of an IEEE fp32 number: 8 exponent bits, 7 mantissa bits.
struct Bf16 {
  uint16_t bits = 0;
};

/// IEEE fp16: 5 exponent bits, 10 mantissa bits.
struct F16 {
  uint16_t bits = 0;
};

/// std::bit_cast, which device code may not call.
HD inline uint32_t BitsOf(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  return std::bit_cast<uint32_t>(value);
#endif
}
HD inline float FloatOf(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

HD inline float ToFloat(float value) { return value; }

HD inline float ToFloat(Bf16 value) { return FloatOf(static_cast<uint32_t>(value.bits) << 16); }

/// Exact: every fp16 number is an fp32 number.
HD inline float ToFloat(F16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity and NaN keep their payload
    return FloatOf(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude >= 0x0400u) {
    return FloatOf(sign | ((magnitude << 13) + (112u << 23)));
  }
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24F;
  return FloatOf(sign | BitsOf(subnormal));
}

/// Rounds to the nearest element, ties to even; NaN stays NaN, overflow becomes infinity.
HD inline Bf16 ToBf16(float value) {
  const uint32_t bits = BitsOf(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return Bf16{static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  }
  return Bf16{static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

/// Rounds to the nearest element, ties to even; NaN stays NaN, overflow becomes infinity.
HD inline F16 ToF16(float value) {
  const uint32_t bits = BitsOf(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return F16{static_cast<uint16_t>(sign | 0x7e00u)};
  }
  if (magnitude >= 0x477ff000u) {  // 65520 and more round to infinity
    return F16{static_cast<uint16_t>(sign | 0x7c00u)};
  }
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds at the last subnormal bit
    const float shifted = FloatOf(magnitude) + 0.5F;
    return F16{static_cast<uint16_t>(sign | (BitsOf(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23);
  return F16{static_cast<uint16_t>(sign | (rounded >> 13))};
}

}  // namespace longshore
