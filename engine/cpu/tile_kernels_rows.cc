#include "engine/cpu/tile_kernels_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/tile_kernels_rows.cc"
#include <hwy/foreach_target.h>

#include <type_traits>

#include "engine/core/math.h"
#include "engine/cpu/tile_kernels-inl.h"
#include "engine/cpu/tile_kernels.h"

HWY_BEFORE_NAMESPACE();

namespace longshore::cpu::HWY_NAMESPACE {

void SplitSigns(const float* queries, int32_t rows, int32_t depth, float* out) {
  const FloatTag d;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = queries + row * depth;
    float* to = out + row * 2 * depth;
    for (int64_t dim = 0; dim < depth; dim += kLanes) {
      const FloatVec q = hn::LoadU(d, from + dim);
      hn::StoreU(hn::Max(q, hn::Zero(d)), d, to + dim);
      hn::StoreU(hn::Min(q, hn::Zero(d)), d, to + depth + dim);
    }
  }
}

void MinMaxRows(const float* source, int32_t rows, int32_t depth, float* maximum, float* minimum) {
  const FloatTag d;
  for (int64_t dim = 0; dim < depth; dim += kLanes) {
    FloatVec max = hn::LoadU(d, source + dim);
    FloatVec min = max;
    for (int64_t row = 1; row < rows; ++row) {
      const FloatVec x = hn::LoadU(d, source + row * depth + dim);
      max = hn::Max(max, x);
      min = hn::Min(min, x);
    }
    hn::StoreU(max, d, maximum + dim);
    hn::StoreU(min, d, minimum + dim);
  }
}

void StoreRows(const float* from, int64_t count, DType dtype, void* to) {
  VisitElements(dtype, [&]<class Element>(const Element*) HWY_ATTR {
    auto* HWY_RESTRICT elements = static_cast<Element*>(to);
    ForEachVector(FloatTag(), 0, count, [&](auto d, int64_t i) HWY_ATTR {
      StoreElements(d, hn::LoadU(d, from + i), elements + i);
    });
  });
}

// The bits of the largest Element that is at most `limit`.
HWY_INLINE uint32_t LimitBits(const float* /*element*/, float limit) { return BitsOf(limit); }
HWY_INLINE uint16_t LimitBits(const Bf16* /*element*/, float limit) {
  return static_cast<uint16_t>(BitsOf(limit) >> 16);
}
HWY_INLINE uint16_t LimitBits(const F16* /*element*/, float limit) {
  const F16 nearest = ToF16(limit);
  return static_cast<uint16_t>(nearest.bits - (ToFloat(nearest) > limit ? 1 : 0));
}

/// Index of the first of `count` elements whose bits without the sign are above `limit`, -1 if
/// there is none. Such bits order as magnitudes do, with NaN above infinity.
///
/// Reads blocks without a branch and looks closer only where the largest of one is above the limit.
template <class Bits>
HWY_NOINLINE int64_t FirstAboveBits(const Bits* HWY_RESTRICT data, Bits limit, int64_t count) {
  const hn::ScalableTag<Bits> d;
  constexpr int64_t kSize = hn::MaxLanes(d);
  constexpr int64_t kBlock = 16 * kSize;
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  const auto magnitude = hn::Set(d, kMagnitude);
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t size = Min(kBlock, count - first);
    if (HWY_LIKELY(size == kBlock)) {
      auto largest = hn::Zero(d);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kBlock; i += kSize) {
        largest = hn::Max(largest, hn::And(magnitude, hn::LoadU(d, data + first + i)));
      }
      if (HWY_LIKELY(hn::AllFalse(d, hn::Gt(largest, hn::Set(d, limit))))) {
        continue;
      }
    }
    for (int64_t i = first; i < first + size; ++i) {
      if ((data[i] & kMagnitude) > limit) {
        return i;
      }
    }
  }
  return -1;
}

int64_t FirstAbove(const void* data, DType dtype, int64_t count, float limit) {
  int64_t index = -1;
  VisitElements(dtype, [&]<class Element>(const Element* element) HWY_ATTR {
    const auto bits = LimitBits(element, limit);
    index =
        FirstAboveBits(static_cast<const decltype(LimitBits(element, limit))*>(data), bits, count);
  });
  return index;
}

}  // namespace longshore::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace longshore::cpu {

HWY_EXPORT(SplitSigns);
HWY_EXPORT(MinMaxRows);
HWY_EXPORT(StoreRows);
HWY_EXPORT(FirstAbove);

void SplitSigns(const float* queries, int32_t rows, int32_t depth, float* out) {
  HWY_DYNAMIC_DISPATCH(SplitSigns)(queries, rows, depth, out);
}

void MinMaxRows(const float* source, int32_t rows, int32_t depth, float* maximum, float* minimum) {
  HWY_DYNAMIC_DISPATCH(MinMaxRows)(source, rows, depth, maximum, minimum);
}

void StoreRows(const float* from, int64_t count, DType dtype, void* to) {
  HWY_DYNAMIC_DISPATCH(StoreRows)(from, count, dtype, to);
}

int64_t FirstAbove(const void* data, DType dtype, int64_t count, float limit) {
  return HWY_DYNAMIC_DISPATCH(FirstAbove)(data, dtype, count, limit);
}

}  // namespace longshore::cpu

#endif  // HWY_ONCE
