// DotTile for many rows, compiled once per instruction set: the guard flips with each.
#if defined(LONGSHORE_ENGINE_CPU_TILE_KERNELS_DOT_PANEL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSHORE_ENGINE_CPU_TILE_KERNELS_DOT_PANEL_INL_H
#undef LONGSHORE_ENGINE_CPU_TILE_KERNELS_DOT_PANEL_INL_H
#else
#define LONGSHORE_ENGINE_CPU_TILE_KERNELS_DOT_PANEL_INL_H
#endif

#include "engine/core/math.h"
#include "engine/cpu/tile_kernels-inl.h"
#include "engine/cpu/tile_kernels.h"

HWY_BEFORE_NAMESPACE();

namespace longshore::cpu::HWY_NAMESPACE {

constexpr int64_t kPanelKeys = 64;
constexpr int64_t kPanelDepth = 64;

/// Stores 128-bit blocks `stride` floats apart.
template <class D>
HWY_INLINE void StoreBlocks(D d, hn::Vec<D> v, int64_t stride, float* HWY_RESTRICT to) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    StoreBlocks(half, hn::LowerHalf(half, v), stride, to);
    StoreBlocks(half, hn::UpperHalf(half, v), stride, to + stride * (hn::MaxLanes(half) / 4));
  }
}

/// Keys as columns, the last one repeated up to a multiple of kLanes.
///
///   from   rows from `first_key` on, of which `dims` dimensions from `first_dim` on
///   panel  [dims, kPanelKeys] out
template <class Element>
HWY_INLINE void TransposeKeys(const RowSource& from,
                              int64_t first_key,
                              int64_t keys,
                              int64_t first_dim,
                              int64_t dims,
                              float* HWY_RESTRICT panel) {
  const FloatTag d;
  const hn::Repartition<double, FloatTag> d64;
  for (int64_t first = 0; first < RoundUp(keys, kLanes); first += 4) {
    const Element* row[4];
    for (int64_t k = 0; k < 4; ++k) {
      row[k] = RowOf<Element>(from, first_key + Min(first + k, keys - 1)) + first_dim;
    }
    for (int64_t dim = 0; dim < dims; dim += kLanes) {
      const auto a = LoadElements(d, row[0] + dim);
      const auto b = LoadElements(d, row[1] + dim);
      const auto c = LoadElements(d, row[2] + dim);
      const auto e = LoadElements(d, row[3] + dim);
      // Each 128-bit block of 4 keys x 4 dimensions turns by itself.
      const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d, a, b));
      const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d, a, b));
      const auto ce_low = hn::BitCast(d64, hn::InterleaveLower(d, c, e));
      const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
      float* to = panel + dim * kPanelKeys + first;
      const int64_t stride = 4 * kPanelKeys;
      StoreBlocks(d, hn::BitCast(d, hn::InterleaveLower(d64, ab_low, ce_low)), stride, to);
      to += kPanelKeys;
      StoreBlocks(d, hn::BitCast(d, hn::InterleaveUpper(d64, ab_low, ce_low)), stride, to);
      to += kPanelKeys;
      StoreBlocks(d, hn::BitCast(d, hn::InterleaveLower(d64, ab_high, ce_high)), stride, to);
      to += kPanelKeys;
      StoreBlocks(d, hn::BitCast(d, hn::InterleaveUpper(d64, ab_high, ce_high)), stride, to);
    }
  }
}

/// What the blocks of a panel share.
struct Panel {
  const float* queries;  // [rows, depth], from the panel's first dimension on
  int64_t depth;
  const float* keys;  // [dims, kPanelKeys]
  int64_t dims;
  float* scores;  // [rows, keys]
  int64_t stride;
  int64_t num_rows;
  int64_t num_keys;
  bool continues;  // the scores hold the sums over earlier dimensions
};

/// Dot products of kRows queries and kVectors vectors of keys, keys in the lanes.
template <int64_t kRows, int64_t kVectors>
HWY_INLINE void DotPanelBlock(const Panel& panel, int64_t first_row, int64_t first_key) {
  const FloatTag d;
  const float* HWY_RESTRICT queries = panel.queries + first_row * panel.depth;
  const float* HWY_RESTRICT keys = panel.keys + first_key;
  float* HWY_RESTRICT scores = panel.scores + first_row * panel.stride + first_key;
  FloatVec acc[kRows][kVectors];
#pragma GCC unroll 6
  for (int64_t row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) {
      const int64_t present = panel.num_keys - first_key - v * kLanes;
      acc[row][v] = panel.continues
                        ? LoadFirst(d, present, scores + row * panel.stride + v * kLanes)
                        : hn::Zero(d);
    }
  }
  for (int64_t dim = 0; dim < panel.dims; ++dim) {
    FloatVec key[kVectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) {
      key[v] = hn::Load(d, keys + dim * kPanelKeys + v * kLanes);
    }
#pragma GCC unroll 6
    for (int64_t row = 0; row < kRows; ++row) {
      const FloatVec query = hn::Set(d, queries[row * panel.depth + dim]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v) {
        acc[row][v] = hn::MulAdd(query, key[v], acc[row][v]);
      }
    }
  }
#pragma GCC unroll 6
  for (int64_t row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) {
      const int64_t present = panel.num_keys - first_key - v * kLanes;
      StoreFirst(d, acc[row][v], present, scores + row * panel.stride + v * kLanes);
    }
  }
}

/// kVectors vectors of keys from `first_key` on against all rows.
template <int64_t kVectors>
HWY_NOINLINE void DotPanelKeys(const Panel& panel, int64_t first_key) {
  int64_t row = 0;
  for (; row + 6 <= panel.num_rows; row += 6) {
    DotPanelBlock<6, kVectors>(panel, row, first_key);
  }
  for (; row + 2 <= panel.num_rows; row += 2) {
    DotPanelBlock<2, kVectors>(panel, row, first_key);
  }
  if (row < panel.num_rows) {
    DotPanelBlock<1, kVectors>(panel, row, first_key);
  }
}

/// Vectors of keys that six rows leave registers for.
constexpr int64_t kPanelVectors = kLanes == 16 ? 4 : 2;

/// Many rows: bound by multiplications, so the keys are laid out for them.
template <class Element>
HWY_NOINLINE void DotManyRows(const float* HWY_RESTRICT queries,
                              const RowSource& keys,
                              int64_t depth,
                              const ScoreTile& scores) {
  HWY_ALIGN float columns[kPanelDepth * kPanelKeys];
  for (int64_t first = 0; first < scores.keys; first += kPanelKeys) {
    const int64_t num_keys = Min(kPanelKeys, scores.keys - first);
    for (int64_t dim = 0; dim < depth; dim += kPanelDepth) {
      const int64_t dims = Min(kPanelDepth, depth - dim);
      TransposeKeys<Element>(keys, first, num_keys, dim, dims, columns);
      const Panel panel = {.queries = queries + dim,
                           .depth = depth,
                           .keys = columns,
                           .dims = dims,
                           .scores = scores.data + first,
                           .stride = scores.stride,
                           .num_rows = scores.rows,
                           .num_keys = num_keys,
                           .continues = dim > 0};
      int64_t key = 0;
      for (; key + (kPanelVectors - 1) * kLanes < num_keys; key += kPanelVectors * kLanes) {
        DotPanelKeys<kPanelVectors>(panel, key);
      }
      for (; key < num_keys; key += kLanes) {
        DotPanelKeys<1>(panel, key);
      }
    }
  }
}

}  // namespace longshore::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif  // LONGSHORE_ENGINE_CPU_TILE_KERNELS_DOT_PANEL_INL_H
