// How a rotary angle turns vectors, compiled once per instruction set: the guard flips with each.
#if defined(LONGSHORE_ENGINE_CPU_TILE_KERNELS_ROTATE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_ENGINE_CPU_TILE_KERNELS_ROTATE_INL_H
#undef LONGSHORE_ENGINE_CPU_TILE_KERNELS_ROTATE_INL_H
#else
#define LONGSHORE_ENGINE_CPU_TILE_KERNELS_ROTATE_INL_H
#endif

#include <type_traits>

#include "engine/cpu/tile_kernels-inl.h"
#include "engine/cpu/tile_kernels.h"

HWY_BEFORE_NAMESPACE();

namespace longshore::cpu::HWY_NAMESPACE {

/// Two dimensions that turn together, a vector of such pairs.
template <class V>
struct Pair {
  V first;
  V second;
};

/// Rounds what Turn makes of finite angles to Element and keeps it as fp32.
template <class Element, class D, class V = hn::Vec<D>>
HWY_INLINE V RoundTurned(D d, V value) {
  if constexpr (std::is_same_v<Element, Bf16>) {
    // No test for NaN: from bf16 operands, or made by the processor, it has a zero lower half, so
    // that nothing carries into its upper half.
    const BitsTag<D> du;
    const auto bits = RoundUpBf16Bits(du, hn::BitCast(du, value));
    return hn::BitCast(d, hn::And(bits, hn::Set(du, 0xffff0000u)));
  } else {
    return RoundTo<Element>(d, value);
  }
}

/// (x1 cos - x2 sin, x2 cos + x1 sin), rounded to Rounded, which is the type x came from or float.
template <class Rounded, class D, class V = hn::Vec<D>>
HWY_INLINE Pair<V> Turn(D d, const Pair<V>& x, V cos, V sin) {
  const V first = hn::NegMulAdd(x.second, sin, hn::Mul(x.first, cos));
  const V second = hn::MulAdd(x.first, sin, hn::Mul(x.second, cos));
  return {RoundTurned<Rounded>(d, first), RoundTurned<Rounded>(d, second)};
}

/// Pairs `i` on of a row whose pairs are (2i, 2i + 1).
template <class D>
HWY_INLINE Pair<hn::Vec<D>> LoadNeighbours(D d, const float* HWY_RESTRICT from) {
  Pair<hn::Vec<D>> x;
  hn::LoadInterleaved2(d, from, x.first, x.second);
  return x;
}

/// The 32-bit lanes of two neighbouring 16-bit elements each.
template <class D>
HWY_INLINE hn::Vec<BitsTag<D>> LoadPairBits(D /*d*/, const uint16_t* HWY_RESTRICT from) {
  const hn::Repartition<uint16_t, BitsTag<D>> d16;
  return hn::BitCast(BitsTag<D>(), hn::LoadU(d16, from));
}

template <class D>
HWY_INLINE Pair<hn::Vec<D>> LoadNeighbours(D d, const Bf16* HWY_RESTRICT from) {
  const auto bits = LoadPairBits(d, &from->bits);
  return {hn::BitCast(d, hn::ShiftLeft<16>(bits)),
          hn::BitCast(d, hn::And(bits, hn::Set(BitsTag<D>(), 0xffff0000u)))};
}

template <class D>
HWY_INLINE Pair<hn::Vec<D>> LoadNeighbours(D d, const F16* HWY_RESTRICT from) {
  const auto bits = LoadPairBits(d, &from->bits);
  const auto first = hn::And(bits, hn::Set(BitsTag<D>(), 0xffffu));
  return {FromHalf(d, hn::TruncateTo(HalfTag<D>(), first)),
          FromHalf(d, hn::TruncateTo(HalfTag<D>(), hn::ShiftRight<16>(bits)))};
}

/// Pairs `i` on of a row.
template <RopePairing kPairing, class Element, class D>
HWY_INLINE Pair<hn::Vec<D>> LoadPairs(D d,
                                      const Element* HWY_RESTRICT row,
                                      int64_t pairs,
                                      int64_t i) {
  if constexpr (kPairing == RopePairing::kHalf) {
    return {LoadElements(d, row + i), LoadElements(d, row + pairs + i)};
  } else {
    return LoadNeighbours(d, row + 2 * i);
  }
}

/// The same where the vector before or after is there to be read too.
template <RopePairing kPairing, Half kHalf, class Element>
HWY_INLINE Pair<FloatVec> LoadPairs(FloatTag d,
                                    const Element* HWY_RESTRICT row,
                                    int64_t pairs,
                                    int64_t i) {
  if constexpr (kPairing == RopePairing::kHalf) {
    return {LoadHalf<kHalf>(d, row + i), LoadHalf<kHalf>(d, row + pairs + i)};
  } else {
    return LoadNeighbours(d, row + 2 * i);
  }
}

}  // namespace longshore::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif  // LONGSHORE_ENGINE_CPU_TILE_KERNELS_ROTATE_INL_H
