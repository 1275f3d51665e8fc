#include "engine/cpu/tile_kernels_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/tile_kernels_dot_rotated.cc"
#include <hwy/foreach_target.h>

#include "engine/core/math.h"
#include "engine/cpu/tile_kernels-inl.h"
#include "engine/cpu/tile_kernels.h"
#include "engine/cpu/tile_kernels_dot-inl.h"
#include "engine/cpu/tile_kernels_rotate-inl.h"

HWY_BEFORE_NAMESPACE();

namespace longshore::cpu::HWY_NAMESPACE {

/// Keys of a block, their angles, and how far it is to the next of each.
template <class Element>
struct KeyBlock {
  const Element* keys;  // [kKeys] rows of [depth]
  const float* cos;     // [kKeys] rows of [pairs]
  const float* sin;     // [kKeys] rows of [pairs]
  int64_t key_stride;
  int64_t angle_stride;
  int64_t pairs;
  int64_t depth;
  int64_t next_bytes;  // from a key to the one to prefetch
};

/// Prefetches where pairs [i, i + kLanes), and for Half::kLower as many more, of the next key lie.
/// One line after the other between the multiplications: a burst would fill the miss buffers.
template <RopePairing kPairing, Half kHalf, class Element>
HWY_INLINE void PrefetchPairs(const Element* key, int64_t pairs, int64_t i, int64_t next_bytes) {
  static_assert(2 * kLanes * sizeof(Element) <= kLineBytes);
  if constexpr (kHalf == Half::kUpper) {
    return;  // the same lines as the lower half
  }
  constexpr bool kApart = kPairing == RopePairing::kHalf;
  const Element* first = key + (kApart ? i : 2 * i);
  const Element* second = first + (kApart ? pairs : 2 * kLanes);
  __builtin_prefetch(reinterpret_cast<const std::byte*>(first) + next_bytes, 0, 2);
  __builtin_prefetch(reinterpret_cast<const std::byte*>(second) + next_bytes, 0, 2);
}

/// Adds the products of pairs [i, i + kLanes).
///
///   queries  [kRows, depth]  pairs (j, j + pairs) whatever the keys' pairing
///   sums     [kRows, kKeys]
template <RopePairing kPairing, Half kHalf, int64_t kRows, int64_t kKeys, class Element>
HWY_INLINE void AddTurnedPairs(const float* HWY_RESTRICT queries,
                               const KeyBlock<Element>& block,
                               int64_t i,
                               FloatVec (&sums)[kLanes]) {
  const FloatTag d;
  Pair<FloatVec> query[kRows];
#pragma GCC unroll 4
  for (int64_t row = 0; row < kRows; ++row) {
    const float* at = queries + row * block.depth + i;
    query[row] = {hn::LoadU(d, at), hn::LoadU(d, at + block.pairs)};
  }
#pragma GCC unroll 16
  for (int64_t k = 0; k < kKeys; ++k) {
    const Element* at = block.keys + k * block.key_stride;
    PrefetchPairs<kPairing, kHalf>(at, block.pairs, i, block.next_bytes);
    const auto x = LoadPairs<kPairing, kHalf>(d, at, block.pairs, i);
    const int64_t angle = k * block.angle_stride + i;
    const auto key =
        Turn<Element>(d, x, hn::LoadU(d, block.cos + angle), hn::LoadU(d, block.sin + angle));
#pragma GCC unroll 4
    for (int64_t row = 0; row < kRows; ++row) {
      FloatVec& sum = sums[row * kKeys + k];
      sum = hn::MulAdd(query[row].first, key.first, sum);
      sum = hn::MulAdd(query[row].second, key.second, sum);
    }
  }
}

/// Dot products of kRows queries and kKeys keys that are turned on the way.
///
///   queries  [kRows, depth]  pairs (i, i + pairs) whatever the keys' pairing
///   result   [kRows, kKeys]
template <RopePairing kPairing, int64_t kRows, int64_t kKeys, class Element>
HWY_INLINE FloatVec DotTurnedBlock(const float* HWY_RESTRICT queries,
                                   const KeyBlock<Element>& block) {
  static_assert(kRows * kKeys == kLanes);
  const FloatTag d;
  FloatVec sums[kLanes];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kLanes; ++i) {
    sums[i] = hn::Zero(d);
  }
  int64_t i = 0;
  for (; i + 2 * kLanes <= block.pairs; i += 2 * kLanes) {
    AddTurnedPairs<kPairing, Half::kLower, kRows, kKeys>(queries, block, i, sums);
    AddTurnedPairs<kPairing, Half::kUpper, kRows, kKeys>(queries, block, i + kLanes, sums);
  }
  if (i < block.pairs) {
    AddTurnedPairs<kPairing, Half::kAlone, kRows, kKeys>(queries, block, i, sums);
  }
  for (int64_t dim = 2 * block.pairs; dim < block.depth; dim += kLanes) {
#pragma GCC unroll 16
    for (int64_t k = 0; k < kKeys; ++k) {
      const FloatVec key = LoadElements(d, block.keys + k * block.key_stride + dim);
#pragma GCC unroll 4
      for (int64_t row = 0; row < kRows; ++row) {
        const FloatVec query = hn::LoadU(d, queries + row * block.depth + dim);
        sums[row * kKeys + k] = hn::MulAdd(query, key, sums[row * kKeys + k]);
      }
    }
  }
  return SumsOfLanes(sums);
}

/// kRows rows of queries against all keys, of which there are at least kLanes / kRows.
template <RopePairing kPairing, int64_t kRows, class Element>
HWY_NOINLINE void DotTurnedRows(const float* HWY_RESTRICT queries,
                                const RowSource& keys,
                                const TileRotation& rotation,
                                int64_t depth,
                                const ScoreTile& scores) {
  constexpr int64_t kKeys = kLanes / kRows;
  KeyBlock<Element> block;
  block.key_stride = keys.stride_bytes / static_cast<int64_t>(sizeof(Element));
  block.angle_stride = rotation.shared_angle ? 0 : rotation.pairs;
  block.pairs = rotation.pairs;
  block.depth = depth;
  block.next_bytes = keys.next == nullptr ? 0
                                          : static_cast<const std::byte*>(keys.next) -
                                                static_cast<const std::byte*>(keys.first);
  for (int64_t begin = 0; begin < scores.keys; begin += kKeys) {
    // The last block repeats some keys of the one before.
    const int64_t first = Min(begin, scores.keys - kKeys);
    block.keys = RowOf<Element>(keys, first);
    block.cos = rotation.angles.cos + first * block.angle_stride;
    block.sin = rotation.angles.sin + first * block.angle_stride;
    StoreSums<kRows, kKeys>(DotTurnedBlock<kPairing, kRows, kKeys>(queries, block), first, scores);
  }
}

constexpr int64_t kMaxDepth = 256;

/// Queries as DotTurnedRows wants them: the last row repeated up to kRows, and neighbours that turn
/// together at (i, i + pairs).
///
///   from  [rows, depth]
///   to    [kRows, depth] out
template <RopePairing kPairing, int64_t kRows>
HWY_INLINE void PrepareQueries(const float* from,
                               int64_t rows,
                               int64_t pairs,
                               int64_t depth,
                               float* HWY_RESTRICT to) {
  const FloatTag d;
  for (int64_t row = 0; row < kRows; ++row) {
    const float* query = from + Min(row, rows - 1) * depth;
    int64_t dim = 0;
    if constexpr (kPairing == RopePairing::kInterleaved) {
      for (; dim < pairs; dim += kLanes) {
        const auto x = LoadNeighbours(d, query + 2 * dim);
        hn::Store(x.first, d, to + dim);
        hn::Store(x.second, d, to + pairs + dim);
      }
      dim = 2 * pairs;
    }
    for (; dim < depth; dim += kLanes) {
      hn::Store(hn::LoadU(d, query + dim), d, to + dim);
    }
    to += depth;
  }
}

/// At most kRows rows.
template <RopePairing kPairing, int64_t kRows>
HWY_INLINE void DotTurned(const float* queries,
                          const RowSource& keys,
                          const TileRotation& rotation,
                          int64_t depth,
                          const ScoreTile& scores) {
  HWY_ALIGN float prepared[kRows * kMaxDepth];
  if (kPairing == RopePairing::kInterleaved || scores.rows < kRows) {
    PrepareQueries<kPairing, kRows>(queries, scores.rows, rotation.pairs, depth, prepared);
    queries = prepared;
  }
  if (keys.dtype == DType::kBf16) {
    DotTurnedRows<kPairing, kRows, Bf16>(queries, keys, rotation, depth, scores);
  } else {
    DotTurnedRows<kPairing, kRows, F16>(queries, keys, rotation, depth, scores);
  }
}

template <int64_t kRows>
HWY_INLINE void DotTurned(const float* queries,
                          const RowSource& keys,
                          const TileRotation& rotation,
                          int64_t depth,
                          const ScoreTile& scores) {
  if (rotation.pairing == RopePairing::kHalf) {
    DotTurned<RopePairing::kHalf, kRows>(queries, keys, rotation, depth, scores);
  } else {
    DotTurned<RopePairing::kInterleaved, kRows>(queries, keys, rotation, depth, scores);
  }
}

/// Turns a few keys at a time, once for all rows.
HWY_NOINLINE void DotLoadedRows(const float* HWY_RESTRICT queries,
                                const RowSource& keys,
                                const TileRotation& rotation,
                                int32_t depth,
                                const ScoreTile& scores) {
  constexpr int64_t kMaxKeys = 64;
  HWY_ALIGN float turned[kMaxKeys * kMaxDepth];
  // Few rows: what is turned stays in the first-level cache. Many: DotTile's panels are full.
  const int64_t keys_at_once = scores.rows > 16 ? kMaxKeys : 16;
  const int64_t angle_stride = rotation.shared_angle ? 0 : rotation.pairs;
  for (int64_t first = 0; first < scores.keys; first += keys_at_once) {
    TileRotation part = rotation;
    part.angles.cos += first * angle_stride;
    part.angles.sin += first * angle_stride;
    const ScoreTile tile = PartOf(scores, 0, first, keys_at_once);
    cpu::LoadRotatedRows(RowsFrom(keys, first), tile.keys, depth, part, keys.dtype, turned);
    cpu::DotTile(queries, {.first = turned, .stride_bytes = depth * SizeOf(DType::kF32)}, depth,
                 tile);
  }
}

void DotRotatedTile(const float* queries,
                    RowSource keys,
                    const TileRotation& rotation,
                    int32_t depth,
                    ScoreTile scores) {
  const bool whole_vectors = SizeOf(keys.dtype) == 2 && rotation.pairs % kLanes == 0;
  if (whole_vectors && scores.rows == 1 && scores.keys >= kLanes) {
    DotTurned<1>(queries, keys, rotation, depth, scores);
  } else if (whole_vectors && scores.rows <= kRowsAtOnce && scores.keys >= kLanes / kRowsAtOnce) {
    DotTurned<kRowsAtOnce>(queries, keys, rotation, depth, scores);
  } else {
    DotLoadedRows(queries, keys, rotation, depth, scores);
  }
}

}  // namespace longshore::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace longshore::cpu {

HWY_EXPORT(DotRotatedTile);

void DotRotatedTile(const float* queries,
                    RowSource keys,
                    const TileRotation& rotation,
                    int32_t depth,
                    ScoreTile scores) {
  HWY_DYNAMIC_DISPATCH(DotRotatedTile)(queries, keys, rotation, depth, scores);
}

}  // namespace longshore::cpu

#endif  // HWY_ONCE
