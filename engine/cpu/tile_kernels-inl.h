// What the tile kernels share, compiled once per instruction set: the guard flips with each.
#if defined(LONGSHORE_ENGINE_CPU_TILE_KERNELS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_ENGINE_CPU_TILE_KERNELS_INL_H
#undef LONGSHORE_ENGINE_CPU_TILE_KERNELS_INL_H
#else
#define LONGSHORE_ENGINE_CPU_TILE_KERNELS_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/core/math.h"
#include "engine/cpu/tile_kernels.h"
#include "engine/cpu/tile_kernels_elements-inl.h"

HWY_BEFORE_NAMESPACE();

namespace longshore::cpu::HWY_NAMESPACE {

/// The first `count` lanes, the others 0. Reads nothing past them.
HWY_INLINE FloatVec LoadFirst(FloatTag d, int64_t count, const float* HWY_RESTRICT from) {
  if (HWY_LIKELY(count >= kLanes)) {
    return hn::LoadU(d, from);
  }
  const auto present = static_cast<size_t>(count < 0 ? 0 : count);
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN float lanes[kLanes] = {};
  std::memcpy(lanes, from, present * sizeof(float));
  return hn::Load(d, lanes);
#else
  return hn::MaskedLoad(hn::FirstN(d, present), d, from);
#endif
}

/// Stores the first `count` lanes. Touches nothing past them.
HWY_INLINE void StoreFirst(FloatTag d, FloatVec v, int64_t count, float* HWY_RESTRICT to) {
  if (HWY_LIKELY(count >= kLanes)) {
    hn::StoreU(v, d, to);
    return;
  }
  const auto present = static_cast<size_t>(count < 0 ? 0 : count);
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, d, lanes);
  std::memcpy(to, lanes, present * sizeof(float));
#else
  hn::BlendedStore(v, hn::FirstN(d, present), d, to);
#endif
}

/// Calls step(tag, first) over [first, count) with whole vectors of `d`, then halves, quarters...
template <class D, class Step>
HWY_INLINE void ForEachVector(D d, int64_t first, int64_t count, const Step& step) {
  constexpr int64_t kSize = hn::MaxLanes(D());
  for (; first + kSize <= count; first += kSize) {
    step(d, first);
  }
  if constexpr (kSize > 1) {
    if (first < count) {
      ForEachVector(hn::CappedTag<float, kSize / 2>(), first, count, step);
    }
  }
}

/// Row `row` of a source.
template <class Element>
HWY_INLINE const Element* RowOf(const RowSource& source, int64_t row) {
  return reinterpret_cast<const Element*>(static_cast<const std::byte*>(source.first) +
                                          row * source.stride_bytes);
}

/// The rows of a source from `row` on.
HWY_INLINE RowSource RowsFrom(RowSource source, int64_t row) {
  const int64_t bytes = row * source.stride_bytes;
  source.first = static_cast<const std::byte*>(source.first) + bytes;
  if (source.next != nullptr) {
    source.next = static_cast<const std::byte*>(source.next) + bytes;
  }
  return source;
}

/// The part of a tile from row `row` and key `key` on, at most `keys` keys.
HWY_INLINE ScoreTile PartOf(const ScoreTile& tile, int64_t row, int64_t key, int64_t keys) {
  return {.data = tile.data + row * tile.stride + key,
          .stride = tile.stride,
          .rows = tile.rows - static_cast<int32_t>(row),
          .keys = static_cast<int32_t>(Min(keys, tile.keys - key))};
}

constexpr int64_t kLineBytes = 64;

/// Asks for the first `bytes` of the next source's row. Into the second-level cache: by the time
/// they are read, the first one has been filled over.
HWY_INLINE void PrefetchNext(const RowSource& source, int64_t row, int64_t bytes) {
  if (source.next == nullptr) {
    return;
  }
  const auto* from = static_cast<const std::byte*>(source.next) + row * source.stride_bytes;
  for (int64_t byte = 0; byte < bytes; byte += kLineBytes) {
    __builtin_prefetch(from + byte, 0, 2);
  }
}

/// exp(x) for x <= 0; 0 below -87, where the result would not be a normal number.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; exp(r) is a polynomial of degree 6. The error over all fp32
/// arguments is at most 0.87 ulp, 1.14 without fused multiply-add (at most 1e-7 of the value).
template <class D>
HWY_INLINE hn::Vec<D> ExpOfNegative(D d, hn::Vec<D> x) {
  const BitsTag<D> du;
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits of the sum.
  const auto shift = hn::Set(d, 0x1.8p23F);
  const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504F), shift);
  const auto n = hn::Sub(shifted, shift);
  auto r = hn::NegMulAdd(n, hn::Set(d, 0x1.62e400p-1F), x);
  r = hn::NegMulAdd(n, hn::Set(d, 0x1.7f7d1cp-20F), r);
  auto p = hn::Set(d, 0x1.6a23dp-10F);
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.123a2p-7F));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.5558f2p-5F));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.555492p-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.fffffcp-2F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(du, shifted));
  const auto result = hn::BitCast(d, hn::Add(hn::BitCast(du, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0F)), result);
}

}  // namespace longshore::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif  // LONGSHORE_ENGINE_CPU_TILE_KERNELS_INL_H
