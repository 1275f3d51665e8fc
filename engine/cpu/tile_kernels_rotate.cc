#include "engine/cpu/tile_kernels_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/tile_kernels_rotate.cc"
#include <hwy/foreach_target.h>

#include <type_traits>

#include "engine/core/math.h"
#include "engine/cpu/tile_kernels-inl.h"
#include "engine/cpu/tile_kernels.h"
#include "engine/cpu/tile_kernels_rotate-inl.h"

HWY_BEFORE_NAMESPACE();

namespace longshore::cpu::HWY_NAMESPACE {

/// One row: x [depth] of Element turned by cos, sin [pairs]; out [depth]. What passes through is as
/// round as Rounded already.
template <class Element, class Rounded>
HWY_INLINE void RotateRow(const Element* HWY_RESTRICT x,
                          const float* HWY_RESTRICT cos,
                          const float* HWY_RESTRICT sin,
                          const TileRotation& rotation,
                          int64_t depth,
                          float* HWY_RESTRICT out) {
  const int64_t pairs = rotation.pairs;
  const auto turn = [=](auto d, const auto& x, int64_t i) HWY_ATTR {
    return Turn<Rounded>(d, x, hn::LoadU(d, cos + i), hn::LoadU(d, sin + i));
  };
  if (rotation.pairing == RopePairing::kHalf) {
    ForEachVector(FloatTag(), 0, pairs, [=](auto d, int64_t i) HWY_ATTR {
      const auto turned = turn(d, LoadPairs<RopePairing::kHalf>(d, x, pairs, i), i);
      hn::StoreU(turned.first, d, out + i);
      hn::StoreU(turned.second, d, out + pairs + i);
    });
  } else {
    ForEachVector(FloatTag(), 0, pairs, [=](auto d, int64_t i) HWY_ATTR {
      const auto turned = turn(d, LoadPairs<RopePairing::kInterleaved>(d, x, pairs, i), i);
      hn::StoreInterleaved2(turned.first, turned.second, d, out + 2 * i);
    });
  }
  ForEachVector(FloatTag(), 2 * pairs, depth, [=](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(LoadElements(d, x + i), d, out + i);
  });
}

template <class Element, class Rounded>
HWY_NOINLINE void RotateRows(const RowSource& source,
                             int64_t rows,
                             int64_t depth,
                             const TileRotation& rotation,
                             float* HWY_RESTRICT out) {
  const int64_t angle_stride = rotation.shared_angle ? 0 : rotation.pairs;
  for (int64_t row = 0; row < rows; ++row) {
    PrefetchNext(source, row, depth * static_cast<int64_t>(sizeof(Element)));
    RotateRow<Element, Rounded>(
        RowOf<Element>(source, row), rotation.angles.cos + row * angle_stride,
        rotation.angles.sin + row * angle_stride, rotation, depth, out + row * depth);
  }
}

template <class Rounded>
HWY_NOINLINE void RoundAll(float* at, int64_t count) {
  ForEachVector(FloatTag(), 0, count, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(RoundTo<Rounded>(d, hn::LoadU(d, at + i)), d, at + i);
  });
}

void LoadRotatedRows(RowSource source,
                     int32_t rows,
                     int32_t depth,
                     const TileRotation& rotation,
                     DType round_to,
                     float* out) {
  VisitElements(source.dtype, [&]<class Element>(const Element*) HWY_ATTR {
    if (round_to == source.dtype) {
      RotateRows<Element, Element>(source, rows, depth, rotation, out);
      return;
    }
    RotateRows<Element, float>(source, rows, depth, rotation, out);
    VisitElements(round_to, [&]<class Rounded>(const Rounded*) HWY_ATTR {
      RoundAll<Rounded>(out, static_cast<int64_t>(rows) * depth);
    });
  });
}

void LoadRows(RowSource source, int32_t rows, int32_t depth, float* out) {
  VisitElements(source.dtype, [&]<class Element>(const Element*) HWY_ATTR {
    for (int64_t row = 0; row < rows; ++row) {
      const Element* from = RowOf<Element>(source, row);
      PrefetchNext(source, row, depth * static_cast<int64_t>(sizeof(Element)));
      ForEachVector(FloatTag(), 0, depth, [&](auto d, int64_t i) HWY_ATTR {
        hn::StoreU(LoadElements(d, from + i), d, out + row * depth + i);
      });
    }
  });
}

/// One row of ComposeAngles.
HWY_INLINE void ComposeRow(Angles coarse,
                           Angles fine,
                           int64_t pairs,
                           float* HWY_RESTRICT cos,
                           float* HWY_RESTRICT sin) {
  ForEachVector(FloatTag(), 0, pairs, [&](auto d, int64_t i) HWY_ATTR {
    const auto coarse_cos = hn::LoadU(d, coarse.cos + i);
    const auto coarse_sin = hn::LoadU(d, coarse.sin + i);
    const auto fine_cos = hn::LoadU(d, fine.cos + i);
    const auto fine_sin = hn::LoadU(d, fine.sin + i);
    hn::StoreU(hn::NegMulAdd(coarse_sin, fine_sin, hn::Mul(coarse_cos, fine_cos)), d, cos + i);
    hn::StoreU(hn::MulAdd(coarse_cos, fine_sin, hn::Mul(coarse_sin, fine_cos)), d, sin + i);
  });
}

void ComposeAngles(Angles coarse,
                   Angles fine,
                   int32_t rows,
                   int32_t pairs,
                   float* cos,
                   float* sin) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = row * pairs;
    ComposeRow(coarse, {.cos = fine.cos + first, .sin = fine.sin + first}, pairs, cos + first,
               sin + first);
  }
}

}  // namespace longshore::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace longshore::cpu {

HWY_EXPORT(LoadRotatedRows);
HWY_EXPORT(LoadRows);
HWY_EXPORT(ComposeAngles);

void LoadRotatedRows(RowSource source,
                     int32_t rows,
                     int32_t depth,
                     const TileRotation& rotation,
                     DType round_to,
                     float* out) {
  HWY_DYNAMIC_DISPATCH(LoadRotatedRows)(source, rows, depth, rotation, round_to, out);
}

void LoadRows(RowSource source, int32_t rows, int32_t depth, float* out) {
  HWY_DYNAMIC_DISPATCH(LoadRows)(source, rows, depth, out);
}

void ComposeAngles(Angles coarse,
                   Angles fine,
                   int32_t rows,
                   int32_t pairs,
                   float* cos,
                   float* sin) {
  HWY_DYNAMIC_DISPATCH(ComposeAngles)(coarse, fine, rows, pairs, cos, sin);
}

}  // namespace longshore::cpu

#endif  // HWY_ONCE
