#include "engine/cpu/tile_kernels_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/tile_kernels_dot.cc"
#include <hwy/foreach_target.h>

#include <cstring>
#include <type_traits>

#include "engine/core/math.h"
#include "engine/cpu/tile_kernels-inl.h"
#include "engine/cpu/tile_kernels.h"
#include "engine/cpu/tile_kernels_dot-inl.h"
#include "engine/cpu/tile_kernels_dot_panel-inl.h"

HWY_BEFORE_NAMESPACE();

namespace longshore::cpu::HWY_NAMESPACE {

/// Adds the products of dimensions [dim, dim + kLanes).
///
///   queries  [kRows, depth]
///   keys     [kKeys] rows of [depth]
///   sums     [kRows, kKeys]
template <Half kHalf, int64_t kRows, int64_t kKeys, class Element>
HWY_INLINE void AddProducts(const float* HWY_RESTRICT queries,
                            const Element* const (&keys)[kKeys],
                            int64_t depth,
                            int64_t dim,
                            FloatVec (&sums)[kLanes]) {
  const FloatTag d;
  FloatVec key[kKeys];
#pragma GCC unroll 16
  for (int64_t k = 0; k < kKeys; ++k) {
    key[k] = LoadHalf<kHalf>(d, keys[k] + dim);
  }
#pragma GCC unroll 4
  for (int64_t row = 0; row < kRows; ++row) {
    const FloatVec query = hn::LoadU(d, queries + row * depth + dim);
#pragma GCC unroll 16
    for (int64_t k = 0; k < kKeys; ++k) {
      sums[row * kKeys + k] = hn::MulAdd(query, key[k], sums[row * kKeys + k]);
    }
  }
}

/// Dot products of kRows queries and kKeys keys, kRows * kKeys = kLanes, dimensions in the lanes.
///
///   queries  [kRows, depth]
///   keys     [kKeys] rows of [depth]
///   result   [kRows, kKeys]
template <int64_t kRows, int64_t kKeys, class Element>
HWY_INLINE FloatVec DotBlock(const float* HWY_RESTRICT queries,
                             const Element* const (&keys)[kKeys],
                             int64_t depth) {
  static_assert(kRows * kKeys == kLanes);
  const FloatTag d;
  FloatVec sums[kLanes];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kLanes; ++i) {
    sums[i] = hn::Zero(d);
  }
  int64_t dim = 0;
  for (; dim + 2 * kLanes <= depth; dim += 2 * kLanes) {
    AddProducts<Half::kLower, kRows, kKeys>(queries, keys, depth, dim, sums);
    AddProducts<Half::kUpper, kRows, kKeys>(queries, keys, depth, dim + kLanes, sums);
  }
  if (dim < depth) {
    AddProducts<Half::kAlone, kRows, kKeys>(queries, keys, depth, dim, sums);
  }
  return SumsOfLanes(sums);
}

/// The first kRows rows of a tile against all keys.
template <int64_t kRows, class Element>
HWY_INLINE void DotRows(const float* HWY_RESTRICT queries,
                        const RowSource& keys,
                        int64_t depth,
                        const ScoreTile& scores) {
  constexpr int64_t kKeys = kLanes / kRows;
  for (int64_t first = 0; first < scores.keys; first += kKeys) {
    const Element* block[kKeys];
#pragma GCC unroll 16
    for (int64_t k = 0; k < kKeys; ++k) {
      const int64_t key = Min(first + k, scores.keys - 1);
      block[k] = RowOf<Element>(keys, key);
      PrefetchNext(keys, key, depth * static_cast<int64_t>(sizeof(Element)));
    }
    StoreSums<kRows, kKeys>(DotBlock<kRows, kKeys>(queries, block, depth), first, scores);
  }
}

/// Few rows: bound by reading the keys, so they are used as they lie, and by all rows while they
/// are in the first-level cache.
template <class Element>
HWY_NOINLINE void DotFewRows(const float* HWY_RESTRICT queries,
                             const RowSource& keys,
                             int64_t depth,
                             const ScoreTile& scores) {
  constexpr int64_t kKeysAtOnce = 16;
  for (int64_t first = 0; first < scores.keys; first += kKeysAtOnce) {
    RowSource part = RowsFrom(keys, first);
    int64_t row = 0;
    const auto dot_rows = [&]<int64_t kRows>(std::integral_constant<int64_t, kRows>) HWY_ATTR {
      if constexpr (kRows <= kRowsAtOnce) {
        for (; row + kRows <= scores.rows; row += kRows) {
          DotRows<kRows, Element>(queries + row * depth, part, depth,
                                  PartOf(scores, row, first, kKeysAtOnce));
          part.next = nullptr;
        }
      }
    };
    dot_rows(std::integral_constant<int64_t, 4>());
    dot_rows(std::integral_constant<int64_t, 2>());
    dot_rows(std::integral_constant<int64_t, 1>());
  }
}

constexpr int64_t kMaxFewRows = 16;

void DotTile(const float* queries, RowSource keys, int32_t depth, ScoreTile scores) {
  VisitElements(keys.dtype, [&]<class Element>(const Element*) HWY_ATTR {
    if (scores.rows > kMaxFewRows) {
      DotManyRows<Element>(queries, keys, depth, scores);
    } else {
      DotFewRows<Element>(queries, keys, depth, scores);
    }
  });
}

}  // namespace longshore::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace longshore::cpu {

HWY_EXPORT(DotTile);

void DotTile(const float* queries, RowSource keys, int32_t depth, ScoreTile scores) {
  HWY_DYNAMIC_DISPATCH(DotTile)(queries, keys, depth, scores);
}

}  // namespace longshore::cpu

#endif  // HWY_ONCE
