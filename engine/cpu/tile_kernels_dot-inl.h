// How sums of products become scores, compiled once per instruction set: the guard flips with each.
#if defined(LONGSHORE_ENGINE_CPU_TILE_KERNELS_DOT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_ENGINE_CPU_TILE_KERNELS_DOT_INL_H
#undef LONGSHORE_ENGINE_CPU_TILE_KERNELS_DOT_INL_H
#else
#define LONGSHORE_ENGINE_CPU_TILE_KERNELS_DOT_INL_H
#endif

#include <cstring>

#include "engine/core/math.h"
#include "engine/cpu/tile_kernels-inl.h"
#include "engine/cpu/tile_kernels.h"

HWY_BEFORE_NAMESPACE();

namespace longshore::cpu::HWY_NAMESPACE {

/// Sums of kLanes vectors: lane i of the result is the sum of the lanes of v[i].
///
/// Each level adds neighbours at twice the distance and interleaves two vectors, so that every sum
/// is the same tree whatever its lane.
HWY_INLINE FloatVec SumsOfLanes(FloatVec (&v)[kLanes]) {
  const FloatTag d;
  const hn::Repartition<double, FloatTag> d64;
  const auto blend_pairs = [d, d64](FloatVec odd, FloatVec even) HWY_ATTR {
    return hn::BitCast(d, hn::OddEven(hn::BitCast(d64, odd), hn::BitCast(d64, even)));
  };
#pragma GCC unroll 8
  for (int64_t i = 0; i < kLanes / 2; ++i) {
    const FloatVec a = v[2 * i];
    const FloatVec b = v[2 * i + 1];
    v[i] = hn::Add(hn::OddEven(b, a), hn::Reverse2(d, hn::OddEven(a, b)));
  }
#pragma GCC unroll 4
  for (int64_t i = 0; i < kLanes / 4; ++i) {
    const FloatVec a = v[2 * i];
    const FloatVec b = v[2 * i + 1];
    v[i] = hn::Add(blend_pairs(b, a), hn::Shuffle1032(blend_pairs(a, b)));
  }
#if HWY_CAP_GE256
#pragma GCC unroll 2
  for (int64_t i = 0; i < kLanes / 8; ++i) {
    const FloatVec a = v[2 * i];
    const FloatVec b = v[2 * i + 1];
    v[i] = hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
  }
#endif
#if HWY_CAP_GE512
  v[0] = hn::Add(hn::ConcatUpperLower(d, v[1], v[0]), hn::ConcatLowerUpper(d, v[1], v[0]));
#endif
  return v[0];
}

/// Rows that are multiplied with four keys at once: their sums fill a vector.
constexpr int64_t kRowsAtOnce = kLanes / 4;

/// Stores the sums [kRows, kKeys] of a block as the scores of keys `first` on, as far as they
/// exist.
template <int64_t kRows, int64_t kKeys>
HWY_INLINE void StoreSums(FloatVec sums, int64_t first, const ScoreTile& scores) {
  HWY_ALIGN float lanes[kLanes];
  hn::Store(sums, FloatTag(), lanes);
  const int64_t present = Min(kKeys, scores.keys - first);
  for (int64_t row = 0; row < Min(kRows, scores.rows); ++row) {
    float* to = scores.data + row * scores.stride + first;
    if (HWY_LIKELY(present == kKeys)) {
      std::memcpy(to, lanes + row * kKeys, kKeys * sizeof(float));
    } else {
      std::memcpy(to, lanes + row * kKeys, static_cast<size_t>(present) * sizeof(float));
    }
  }
}

}  // namespace longshore::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif  // LONGSHORE_ENGINE_CPU_TILE_KERNELS_DOT_INL_H
