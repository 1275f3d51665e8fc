#include "engine/cpu/tile_kernels_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/tile_kernels_softmax.cc"
#include <hwy/foreach_target.h>

#include <cmath>
#include <limits>

#include "engine/core/math.h"
#include "engine/cpu/tile_kernels-inl.h"
#include "engine/cpu/tile_kernels.h"

HWY_BEFORE_NAMESPACE();

namespace longshore::cpu::HWY_NAMESPACE {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

/// tanh to fp32 accuracy: an odd polynomial near 0 (Cephes tanhf), elsewhere 1 - 2 / (e^2x + 1).
HWY_INLINE FloatVec Tanh(FloatTag d, FloatVec x) {
  const FloatVec magnitude = hn::Abs(x);
  const FloatVec square = hn::Mul(x, x);
  auto p = hn::Set(d, -5.70498872745e-3F);
  p = hn::MulAdd(p, square, hn::Set(d, 2.06390887954e-2F));
  p = hn::MulAdd(p, square, hn::Set(d, -5.37397155531e-2F));
  p = hn::MulAdd(p, square, hn::Set(d, 1.33314422036e-1F));
  p = hn::MulAdd(p, square, hn::Set(d, -3.33332819422e-1F));
  const FloatVec near_zero = hn::MulAdd(hn::Mul(p, square), x, x);
  const FloatVec one = hn::Set(d, 1.0F);
  const FloatVec e = ExpOfNegative(d, hn::Mul(magnitude, hn::Set(d, -2.0F)));
  const FloatVec far = hn::Div(hn::Sub(one, e), hn::Add(one, e));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625F)), near_zero, hn::CopySign(far, x));
}

void ScaleTile(ScoreTile scores, float scale, float soft_cap) {
  const FloatTag d;
  const FloatVec cap = hn::Set(d, soft_cap);
  const FloatVec factor = hn::Set(d, soft_cap > 0.0F ? scale / soft_cap : scale);
  for (int64_t row = 0; row < scores.rows; ++row) {
    float* at = scores.data + row * scores.stride;
    for (int64_t key = 0; key < scores.keys; key += kLanes) {
      FloatVec s = hn::Mul(LoadFirst(d, scores.keys - key, at + key), factor);
      if (soft_cap > 0.0F) {
        s = hn::Mul(cap, Tanh(d, s));
      }
      StoreFirst(d, s, scores.keys - key, at + key);
    }
  }
}

/// The largest of `count` values, at least `floor`.
HWY_INLINE float MaxOf(const float* values, int64_t count, float floor) {
  const FloatTag d;
  FloatVec max = hn::Set(d, floor);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    max = hn::Max(max, hn::LoadU(d, values + i));
  }
  if (i < count) {
    const auto present = hn::FirstN(d, static_cast<size_t>(count - i));
    max = hn::Max(max, hn::IfThenElse(present, LoadFirst(d, count - i, values + i), max));
  }
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

/// values = exp(values - max) for the first `count`, 0 up to `size`. Returns their sum.
HWY_INLINE float ExpOfShifted(float* values, int64_t count, int64_t size, float max) {
  const FloatTag d;
  const FloatVec shift = hn::Set(d, max);
  FloatVec sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const FloatVec p = ExpOfNegative(d, hn::Sub(hn::LoadU(d, values + i), shift));
    sum = hn::Add(sum, p);
    hn::StoreU(p, d, values + i);
  }
  if (i < count) {
    const auto present = hn::FirstN(d, static_cast<size_t>(count - i));
    const FloatVec x = hn::Sub(LoadFirst(d, count - i, values + i), shift);
    const FloatVec p = hn::IfThenElseZero(present, ExpOfNegative(d, x));
    sum = hn::Add(sum, p);
    StoreFirst(d, p, size - i, values + i);
    i += kLanes;
  }
  for (; i < size; i += kLanes) {
    StoreFirst(d, hn::Zero(d), size - i, values + i);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void SoftmaxTile(ScoreTile scores, const int32_t* visible, SoftmaxRows state) {
  const hn::CappedTag<float, 1> d1;
  for (int64_t row = 0; row < scores.rows; ++row) {
    float* at = scores.data + row * scores.stride;
    const int64_t count = visible == nullptr ? scores.keys : Min(visible[row], scores.keys);
    const float old_max = state.max[row];
    const float max = MaxOf(at, count, old_max);
    // Equal maxima can be -infinity, whose difference is not a number.
    const float change = max == old_max ? 0.0F : old_max - max;
    const float rescale = hn::GetLane(ExpOfNegative(d1, hn::Set(d1, change)));
    const bool seen = max > kNegativeInfinity;
    const float sum = ExpOfShifted(at, seen ? count : 0, scores.keys, max);
    state.max[row] = max;
    state.sum[row] = state.sum[row] * rescale + sum;
    state.rescale[row] = rescale;
  }
}

/// to[i] = max(from[2 i], from[2 i + 1]); may be in place.
HWY_INLINE void MaxOfPairs(const float* from, int64_t count, float* to) {
  const FloatTag d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const FloatVec low = hn::LoadU(d, from + 2 * i);
    const FloatVec high = hn::LoadU(d, from + 2 * i + kLanes);
    hn::StoreU(hn::Max(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low)), d, to + i);
  }
  for (; i < count; ++i) {
    to[i] = from[2 * i] > from[2 * i + 1] ? from[2 * i] : from[2 * i + 1];
  }
}

void ChunkMaxTile(ScoreTile scores, int32_t chunk_tokens, float* out, int64_t out_stride) {
  constexpr int64_t kGroup = 64;
  HWY_ALIGN float maxima[kGroup];
  for (int64_t row = 0; row < scores.rows; ++row) {
    for (int64_t first = 0; first < scores.keys; first += kGroup) {
      const float* from = scores.data + row * scores.stride + first;
      int64_t count = Min(kGroup, scores.keys - first);
      for (int64_t width = chunk_tokens; width > 1; width /= 2) {
        count /= 2;
        MaxOfPairs(from, count, maxima);
        from = maxima;
      }
      std::memcpy(out + row * out_stride + first / chunk_tokens, from,
                  static_cast<size_t>(count) * sizeof(float));
    }
  }
}

/// Sum of exp(values - max), in kSums vectors of sums.
HWY_INLINE float SumOfExp(const float* values, int64_t count, float max) {
  constexpr int64_t kSums = 4;
  const FloatTag d;
  const FloatVec shift = hn::Set(d, max);
  FloatVec sums[kSums] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t i = 0;
  for (; i + kSums * kLanes <= count; i += kSums * kLanes) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kSums; ++v) {
      const FloatVec x = hn::LoadU(d, values + i + v * kLanes);
      sums[v] = hn::Add(sums[v], ExpOfNegative(d, hn::Sub(x, shift)));
    }
  }
  for (; i < count; i += kLanes) {
    const auto present = hn::FirstN(d, static_cast<size_t>(Min(count - i, kLanes)));
    const FloatVec x = hn::Sub(LoadFirst(d, count - i, values + i), shift);
    sums[0] = hn::Add(sums[0], hn::IfThenElseZero(present, ExpOfNegative(d, x)));
  }
  const FloatVec sum = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

float LogSumExp(const float* values, int64_t count) {
  const float max = MaxOf(values, count, kNegativeInfinity);
  if (std::isinf(max)) {
    return max;
  }
  constexpr int64_t kBlock = 4096;  // longer sums in fp32 would lose digits
  double sum = 0.0;
  for (int64_t first = 0; first < count; first += kBlock) {
    sum += static_cast<double>(SumOfExp(values + first, Min(kBlock, count - first), max));
  }
  return static_cast<float>(static_cast<double>(max) + std::log(sum));
}

void MaxOfShifted(const float* from, float shift, int64_t count, float* to) {
  if (shift == kNegativeInfinity) {
    return;
  }
  const FloatTag d;
  const FloatVec minus = hn::Set(d, shift);
  for (int64_t i = 0; i < count; i += kLanes) {
    const FloatVec shifted = hn::Sub(LoadFirst(d, count - i, from + i), minus);
    const FloatVec max = hn::Max(LoadFirst(d, count - i, to + i), shifted);
    StoreFirst(d, max, count - i, to + i);
  }
}

void AddPowers(const float* from,
               float shift,
               const float* max,
               float power,
               int64_t count,
               float* sums) {
  if (shift == kNegativeInfinity) {
    return;
  }
  const FloatTag d;
  const FloatVec minus = hn::Set(d, shift);
  const FloatVec factor = hn::Set(d, power);
  for (int64_t i = 0; i < count; i += kLanes) {
    const FloatVec shifted = hn::Sub(LoadFirst(d, count - i, from + i), minus);
    const FloatVec below = hn::Sub(shifted, LoadFirst(d, count - i, max + i));
    const FloatVec add = ExpOfNegative(d, hn::Mul(factor, below));
    StoreFirst(d, hn::Add(LoadFirst(d, count - i, sums + i), add), count - i, sums + i);
  }
}

}  // namespace longshore::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace longshore::cpu {

HWY_EXPORT(ScaleTile);
HWY_EXPORT(SoftmaxTile);
HWY_EXPORT(ChunkMaxTile);
HWY_EXPORT(LogSumExp);
HWY_EXPORT(MaxOfShifted);
HWY_EXPORT(AddPowers);

void ScaleTile(ScoreTile scores, float scale, float soft_cap) {
  HWY_DYNAMIC_DISPATCH(ScaleTile)(scores, scale, soft_cap);
}

void SoftmaxTile(ScoreTile scores, const int32_t* visible, SoftmaxRows state) {
  HWY_DYNAMIC_DISPATCH(SoftmaxTile)(scores, visible, state);
}

void ChunkMaxTile(ScoreTile scores, int32_t chunk_tokens, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(ChunkMaxTile)(scores, chunk_tokens, out, out_stride);
}

float LogSumExp(const float* values, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(LogSumExp)(values, count);
}

void MaxOfShifted(const float* from, float shift, int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(MaxOfShifted)(from, shift, count, to);
}

void AddPowers(const float* from,
               float shift,
               const float* max,
               float power,
               int64_t count,
               float* sums) {
  HWY_DYNAMIC_DISPATCH(AddPowers)(from, shift, max, power, count, sums);
}

void LogOfPowers(const float* sums, float power, int64_t count, float* max) {
  for (int64_t i = 0; i < count; ++i) {
    max[i] = power * max[i] + std::log(sums[i]);
  }
}

}  // namespace longshore::cpu

#endif  // HWY_ONCE
