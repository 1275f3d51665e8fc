#include "engine/cpu/tile_kernels_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/tile_kernels_accumulate.cc"
#include <hwy/foreach_target.h>

#include <type_traits>

#include "engine/core/math.h"
#include "engine/cpu/tile_kernels-inl.h"
#include "engine/cpu/tile_kernels.h"

HWY_BEFORE_NAMESPACE();

namespace longshore::cpu::HWY_NAMESPACE {

/// What the blocks of one call share.
struct Accumulation {
  ScoreTile probabilities;  // [rows, keys]
  const float* rescale;     // [rows], null: 1
  int64_t depth;
  float* acc = nullptr;  // [rows, depth]
};

/// kRows rows and kVectors vectors of dimensions, over all keys.
///
///   values  [keys] rows from dimension `dim` on
template <int64_t kRows, int64_t kVectors, class Element>
HWY_INLINE void AccumulateBlock(const Accumulation& sum,
                                const RowSource& values,
                                int64_t first_row,
                                int64_t dim) {
  const FloatTag d;
  const ScoreTile& tile = sum.probabilities;
  const float* HWY_RESTRICT probabilities = tile.data + first_row * tile.stride;
  float* HWY_RESTRICT to = sum.acc + first_row * sum.depth + dim;
  FloatVec acc[kRows][kVectors];
#pragma GCC unroll 6
  for (int64_t row = 0; row < kRows; ++row) {
    const FloatVec rescale =
        hn::Set(d, sum.rescale == nullptr ? 1.0F : sum.rescale[first_row + row]);
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) {
      acc[row][v] = hn::Mul(hn::LoadU(d, to + row * sum.depth + v * kLanes), rescale);
    }
  }
  for (int64_t key = 0; key < tile.keys; ++key) {
    const Element* HWY_RESTRICT from = RowOf<Element>(values, key);
    PrefetchNext(values, key, kVectors * kLanes * static_cast<int64_t>(sizeof(Element)));
    FloatVec value[kVectors];
    if constexpr (kVectors == 1) {
      value[0] = LoadElements(d, from);
    } else {
#pragma GCC unroll 2
      for (int64_t v = 0; v < kVectors; v += 2) {
        value[v] = LoadHalf<Half::kLower>(d, from + v * kLanes);
        value[v + 1] = LoadHalf<Half::kUpper>(d, from + (v + 1) * kLanes);
      }
    }
#pragma GCC unroll 6
    for (int64_t row = 0; row < kRows; ++row) {
      const FloatVec probability = hn::Set(d, probabilities[row * tile.stride + key]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v) {
        acc[row][v] = hn::MulAdd(probability, value[v], acc[row][v]);
      }
    }
  }
#pragma GCC unroll 6
  for (int64_t row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) {
      hn::StoreU(acc[row][v], d, to + row * sum.depth + v * kLanes);
    }
  }
}

/// kVectors vectors of dimensions, all rows.
template <int64_t kVectors, class Element>
HWY_NOINLINE void AccumulateRows(const Accumulation& sum, RowSource values, int64_t dim) {
  int64_t row = 0;
  const auto blocks = [&]<int64_t kRows>(std::integral_constant<int64_t, kRows>) HWY_ATTR {
    for (; row + kRows <= sum.probabilities.rows; row += kRows) {
      AccumulateBlock<kRows, kVectors, Element>(sum, values, row, dim);
      values.next = nullptr;
    }
  };
  blocks(std::integral_constant<int64_t, 6>());
  blocks(std::integral_constant<int64_t, 4>());
  blocks(std::integral_constant<int64_t, 2>());
  blocks(std::integral_constant<int64_t, 1>());
}

template <class Element>
HWY_INLINE RowSource DimsFrom(RowSource source, int64_t dim) {
  const int64_t bytes = dim * static_cast<int64_t>(sizeof(Element));
  source.first = static_cast<const std::byte*>(source.first) + bytes;
  if (source.next != nullptr) {
    source.next = static_cast<const std::byte*>(source.next) + bytes;
  }
  return source;
}

/// Vectors of dimensions that six rows leave registers for.
constexpr int64_t kVectorsAtOnce = kLanes == 16 ? 4 : 2;

/// `dims` dimensions of acc from `first_dim` on.
///
///   values  [keys, dims]
template <class Element>
HWY_INLINE void AccumulateDims(const Accumulation& sum,
                               const RowSource& values,
                               int64_t first_dim,
                               int64_t dims) {
  int64_t dim = 0;
  for (; dim + kVectorsAtOnce * kLanes <= dims; dim += kVectorsAtOnce * kLanes) {
    AccumulateRows<kVectorsAtOnce, Element>(sum, DimsFrom<Element>(values, dim), first_dim + dim);
  }
  for (; dim < dims; dim += kLanes) {
    AccumulateRows<1, Element>(sum, DimsFrom<Element>(values, dim), first_dim + dim);
  }
}

constexpr int64_t kConvertedDims = 64;
constexpr int64_t kConvertedKeys = 64;

/// Many rows: converts each value once, 64 keys by 64 dimensions.
template <class Element>
HWY_NOINLINE void AccumulateConverted(const Accumulation& sum, const RowSource& values) {
  const FloatTag d;
  HWY_ALIGN float converted[kConvertedKeys * kConvertedDims];
  const RowSource block = {.first = converted,
                           .stride_bytes = kConvertedDims * static_cast<int64_t>(sizeof(float)),
                           .dtype = DType::kF32};
  for (int64_t first = 0; first < sum.probabilities.keys; first += kConvertedKeys) {
    Accumulation part = sum;
    part.probabilities = PartOf(sum.probabilities, 0, first, kConvertedKeys);
    part.rescale = first == 0 ? sum.rescale : nullptr;
    for (int64_t dim = 0; dim < sum.depth; dim += kConvertedDims) {
      const int64_t dims = Min(kConvertedDims, sum.depth - dim);
      const RowSource source = DimsFrom<Element>(RowsFrom(values, first), dim);
      for (int64_t key = 0; key < part.probabilities.keys; ++key) {
        PrefetchNext(source, key, dims * static_cast<int64_t>(sizeof(Element)));
        for (int64_t i = 0; i < dims; i += kLanes) {
          hn::Store(LoadElements(d, RowOf<Element>(source, key) + i), d,
                    converted + key * kConvertedDims + i);
        }
      }
      AccumulateDims<float>(part, block, dim, dims);
    }
  }
}

constexpr int64_t kMaxDirectRows = 16;

void AccumulateTile(ScoreTile probabilities,
                    const float* rescale,
                    RowSource values,
                    int32_t depth,
                    float* acc) {
  Accumulation sum = {.probabilities = probabilities, .rescale = rescale, .depth = depth};
  sum.acc = acc;
  VisitElements(values.dtype, [&]<class Element>(const Element*) HWY_ATTR {
    if (std::is_same_v<Element, float> || probabilities.rows <= kMaxDirectRows) {
      AccumulateDims<Element>(sum, values, 0, depth);
    } else {
      AccumulateConverted<Element>(sum, values);
    }
  });
}

}  // namespace longshore::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace longshore::cpu {

HWY_EXPORT(AccumulateTile);

void AccumulateTile(ScoreTile probabilities,
                    const float* rescale,
                    RowSource values,
                    int32_t depth,
                    float* acc) {
  HWY_DYNAMIC_DISPATCH(AccumulateTile)(probabilities, rescale, values, depth, acc);
}

}  // namespace longshore::cpu

#endif  // HWY_ONCE
