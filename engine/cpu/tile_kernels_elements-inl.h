// How vectors of fp32 are loaded from and rounded to storage dtypes, compiled once per instruction
// set: the guard flips with each.
#if defined(LONGSHORE_ENGINE_CPU_TILE_KERNELS_ELEMENTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_ENGINE_CPU_TILE_KERNELS_ELEMENTS_INL_H
#undef LONGSHORE_ENGINE_CPU_TILE_KERNELS_ELEMENTS_INL_H
#else
#define LONGSHORE_ENGINE_CPU_TILE_KERNELS_ELEMENTS_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>

#include "engine/core/dtype.h"
#include "engine/core/half.h"
#include "engine/core/status.h"

HWY_BEFORE_NAMESPACE();

namespace longshore::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
constexpr int64_t kLanes = HWY_LANES(float);

template <class D>
using BitsTag = hn::RebindToUnsigned<D>;

template <class D>
HWY_INLINE hn::Vec<D> LoadElements(D d, const float* HWY_RESTRICT from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadElements(D d, const Bf16* HWY_RESTRICT from) {
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::PromoteTo(BitsTag<D>(), hn::LoadU(d16, &from->bits));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

/// The bits of fp16 numbers, one a lane.
template <class D>
using HalfTag = hn::Rebind<uint16_t, D>;

#if HWY_TARGET == HWY_SSE4

// Without F16C Highway truncates and knows no infinity: these two follow half.h.
template <class D>
HWY_INLINE hn::Vec<D> FromHalf(D d, hn::Vec<HalfTag<D>> half) {
  const BitsTag<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::PromoteTo(du, half);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffu));
  const auto infinite = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7bff));
  const auto normal = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x03ff));
  const auto bias = hn::IfThenElse(hn::RebindMask(du, infinite), hn::Set(du, 224u << 23),
                                   hn::Set(du, 112u << 23));
  const auto shifted = hn::Add(hn::ShiftLeft<13>(magnitude), bias);
  const auto subnormal =
      hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, 0x1p-24F));
  const auto value = hn::IfThenElse(hn::RebindMask(d, normal), hn::BitCast(d, shifted), subnormal);
  return hn::Or(value, hn::BitCast(d, sign));
}

template <class D>
HWY_INLINE hn::Vec<HalfTag<D>> ToHalf(D d, hn::Vec<D> value) {
  const BitsTag<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, value);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const auto nan = hn::Gt(signed_magnitude, hn::Set(di, 0x7f800000));
  const auto overflow = hn::Gt(signed_magnitude, hn::Set(di, 0x477fefff));
  const auto tiny = hn::Lt(signed_magnitude, hn::Set(di, 0x38800000));
  const auto last_bit = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const auto rounded = hn::Add(hn::Add(magnitude, last_bit), hn::Set(du, 0xfffu - (112u << 23)));
  const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F));
  const auto subnormal = hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3f000000u));
  const auto finite =
      hn::IfThenElse(hn::RebindMask(du, tiny), subnormal, hn::ShiftRight<13>(rounded));
  const auto special =
      hn::IfThenElse(hn::RebindMask(du, nan), hn::Set(du, 0x7e00u), hn::Set(du, 0x7c00u));
  const auto half = hn::Or(sign, hn::IfThenElse(hn::RebindMask(du, overflow), special, finite));
  return hn::TruncateTo(HalfTag<D>(), half);
}

#else

template <class D>
HWY_INLINE hn::Vec<D> FromHalf(D d, hn::Vec<HalfTag<D>> half) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
}

template <class D>
HWY_INLINE hn::Vec<HalfTag<D>> ToHalf(D /*d*/, hn::Vec<D> value) {
  return hn::BitCast(HalfTag<D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), value));
}

#endif

template <class D>
HWY_INLINE hn::Vec<D> LoadElements(D d, const F16* HWY_RESTRICT from) {
  return FromHalf(d, hn::LoadU(HalfTag<D>(), &from->bits));
}

/// Where a vector of elements lies, for loads that are better done two vectors at a time.
enum class Half : uint8_t {
  kAlone,  ///< no more than this vector may be read
  kLower,  ///< the next vector may be read too
  kUpper,  ///< the one before may be read too
};

template <Half kHalf, class Element>
HWY_INLINE FloatVec LoadHalf(FloatTag d, const Element* HWY_RESTRICT from) {
  return LoadElements(d, from);
}

#if HWY_TARGET == HWY_AVX3
// Widening and shifting are two instructions for the pipes that multiply and shift; one permutation
// puts 16 of 32 elements into the upper halves of their lanes.
template <Half kHalf>
HWY_INLINE FloatVec LoadHalf(FloatTag d, const Bf16* HWY_RESTRICT from) {
  if constexpr (kHalf == Half::kAlone) {
    return LoadElements(d, from);
  } else {
    constexpr int kFirst = kHalf == Half::kUpper ? 16 : 0;
    const hn::ScalableTag<uint32_t> du;
    const auto index = hn::ShiftLeft<16>(hn::Iota(du, kFirst));
    const auto elements = _mm512_loadu_si512(from - kFirst);
    return FloatVec{
        _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, index.raw, elements))};
  }
}
#endif

/// The bits of finite fp32 numbers, moved so that their upper half is the nearest bf16.
template <class DU, class V = hn::Vec<DU>>
HWY_INLINE V RoundUpBf16Bits(DU du, V bits) {
  const V last_bit = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  return hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), last_bit);
}

/// The same for all numbers; NaN stays NaN.
template <class DU, class V>
HWY_INLINE hn::Vec<DU> RoundBf16Bits(DU du, V value) {
  const auto bits = hn::BitCast(du, value);
  const auto nan = hn::Or(bits, hn::Set(du, 0x00400000u));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), nan, RoundUpBf16Bits(du, bits));
}

/// Rounds each lane to the nearest Element, ties to even, and keeps it as fp32.
template <class Element, class D>
HWY_INLINE hn::Vec<D> RoundTo(D d, hn::Vec<D> value) {
  if constexpr (sizeof(Element) == sizeof(float)) {
    return value;
  } else if constexpr (std::is_same_v<Element, Bf16>) {
    return hn::BitCast(
        d, hn::And(RoundBf16Bits(BitsTag<D>(), value), hn::Set(BitsTag<D>(), 0xffff0000u)));
  } else {
    return FromHalf(d, ToHalf(d, value));
  }
}

template <class D>
HWY_INLINE void StoreElements(D d, hn::Vec<D> value, float* HWY_RESTRICT to) {
  hn::StoreU(value, d, to);
}

template <class D>
HWY_INLINE void StoreElements(D /*d*/, hn::Vec<D> value, Bf16* HWY_RESTRICT to) {
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::ShiftRight<16>(RoundBf16Bits(BitsTag<D>(), value));
  hn::StoreU(hn::TruncateTo(d16, bits), d16, &to->bits);
}

template <class D>
HWY_INLINE void StoreElements(D d, hn::Vec<D> value, F16* HWY_RESTRICT to) {
  hn::StoreU(ToHalf(d, value), HalfTag<D>(), &to->bits);
}

/// Calls visit(const Element*) with the element type of `dtype`. fp8 has no kernels.
template <class Visit>
HWY_INLINE void VisitElements(DType dtype, const Visit& visit) {
  LONGSHORE_CHECK(dtype != DType::kF8E4M3);
  switch (dtype) {
    case DType::kF32: return visit(static_cast<const float*>(nullptr));
    case DType::kBf16: return visit(static_cast<const Bf16*>(nullptr));
    case DType::kF16: return visit(static_cast<const F16*>(nullptr));
    case DType::kF8E4M3: return;
  }
}

}  // namespace longshore::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif  // LONGSHORE_ENGINE_CPU_TILE_KERNELS_ELEMENTS_INL_H
