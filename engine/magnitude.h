#pragma once

#include "engine/core/dtype.h"

namespace longshore {

/// What NormalizeModelShape holds a model to, so that LargestInputs can promise what it does.
/// Models are far from these numbers.
inline constexpr float kMaxSoftmaxScale = 1000.0F;
inline constexpr float kMinLogitSoftCap = 0.001F;  ///< where there is one
inline constexpr float kMaxLogitSoftCap = 1e6F;
inline constexpr float kMinAttentionScaling = 0.01F;
inline constexpr float kMaxAttentionScaling = 100.0F;
/// An angle of id 2^24 is then right to 2^-23, as fp32's cosine is.
inline constexpr double kMaxInvFreq = 64.0;

/// The largest magnitude of an element of each input.
struct InputLimits {
  float q = 0.0F;
  float k = 0.0F;
  float v = 0.0F;
};

/// Inputs within these limits give finite outputs and log-sum-exps; larger ones are refused.
///
/// With a = attention_scaling, A = max(1, a), R = min(2^48, largest number of kv_dtype), heads of
/// at most 2^8 elements and contexts below 2^31 tokens:
///
/// * Rotation: |x1 cos - x2 sin| <= sqrt(2) a |x| (1 + 2^-20) < 2 A |x|. A query that meets keys as
///   they are stored carries their factor too: 2 A^2 |x|. So k <= R / 2A and q <= R / 2A^2 are
///   within R once turned, and stay there when rounded to kv_dtype, since R is one of its numbers.
///   Where nothing turns, R itself is the limit.
/// * Scores: every partial sum of q.k, and of its upper bound, is at most 2^8 R^2 <= 2^104; times
///   softmax_scale / logit_soft_cap < 2^20 it is below 2^125, and so is any difference of scores.
/// * Sums: fp32 adds at most twice a term, so |sum of p v| <= 2 * 2^31 * 2^90 for p <= 1, v <=
/// 2^90.
///   The denominator is at least 1: the largest score adds exp(0).
/// * Output: a mean of values, so v is at most the largest number of the output's type; backends
/// cut
///   off what rounding adds to the mean.
///
/// `attention_scaling` 0: the layer has no rotary embedding. Storage and output types bound the
/// limits, so no conversion overflows either.
constexpr InputLimits LargestInputs(DType query_dtype, DType kv_dtype, float attention_scaling) {
  const float turned = LargestOf(kv_dtype) < 0x1p48F ? LargestOf(kv_dtype) : 0x1p48F;
  const float mean = LargestOf(query_dtype) < 0x1p90F ? LargestOf(query_dtype) : 0x1p90F;
  const float factor = attention_scaling > 1.0F ? attention_scaling : 1.0F;
  const float turns = attention_scaling > 0.0F ? 2.0F : 1.0F;
  return {.q = turned / (turns * factor * factor),
          .k = turned / (turns * factor),
          .v = LargestOf(kv_dtype) < mean ? LargestOf(kv_dtype) : mean};
}

}  // namespace longshore
