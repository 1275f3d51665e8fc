#pragma once

#include <cstdint>

#include "engine/core/dtype.h"
#include "engine/core/rope_pairing.h"

/// The inner loops of CPU attention, for the widest vectors that the machine has.
///
/// A *row* is one query of one head; the rows of a call share a KV head. A *tile* is a few keys, at
/// best 64. All arithmetic is fp32. Head sizes (`depth`) are multiples of 16, dtypes f32, bf16 or
/// f16. Pointers need no alignment, but query, angle and score rows on 64-byte boundaries are up to
/// 20 % faster. Pure functions of their arguments, callable from any thread: no allocation, no
/// state.
namespace longshore::cpu {

/// Rows of one head in storage dtype, as they lie in a page.
struct RowSource {
  const void* first = nullptr;  ///< [rows, depth], stride_bytes between rows
  int64_t stride_bytes = 0;
  DType dtype = DType::kF32;
  const void* next = nullptr;  ///< rows that will be read soon, as many and as far apart, which are
                               ///< prefetched on the way; null: none. Strided rows need it:
                               ///< without, decoding from memory is three times slower
};

/// Scores, or after SoftmaxTile probabilities, of `rows` queries against `keys` keys.
struct ScoreTile {
  float* data = nullptr;  ///< [rows, keys], stride floats between rows
  int64_t stride = 0;
  int32_t rows = 0;
  int32_t keys = 0;
};

/// cos and sin of rotary angles, of the same shape.
struct Angles {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

/// How the first 2 * pairs dimensions of rows turn; the others pass through.
struct TileRotation {
  Angles angles;  ///< [rows, pairs], or [pairs] if shared
  int32_t pairs = 0;
  RopePairing pairing = RopePairing::kHalf;
  bool shared_angle = false;  ///< all rows turn by the same angles
};

/// Running softmax of each row over the tiles seen so far.
struct SoftmaxRows {
  float* max = nullptr;  ///< [rows] in and out, -infinity before the first tile
  float* sum = nullptr;  ///< [rows] in and out, of exp(s - max), 0 before the first tile
  float* rescale =
      nullptr;  ///< [rows] out, exp(max before - max after): for what was summed before
};

/// Angles of consecutive positions from a two-level table: position = 64 b + r.
///
/// cos = cc cf - cs sf, sin = cs cf + cc sf, with c the coarse row b and f the fine rows r.
///
///   coarse    [pairs]
///   fine      [rows, pairs]
///   cos, sin  [rows, pairs] out
void ComposeAngles(Angles coarse, Angles fine, int32_t rows, int32_t pairs, float* cos, float* sin);

/// Rows as fp32: out [rows, depth].
void LoadRows(RowSource source, int32_t rows, int32_t depth, float* out);

/// Rows turned by their angles, rounded to the nearest `round_to` (ties to even, as half.h) and
/// kept as fp32: out [rows, depth].
///
/// (x1, x2) becomes (x1 cos - x2 sin, x2 cos + x1 sin). Angles are finite.
void LoadRotatedRows(RowSource source,
                     int32_t rows,
                     int32_t depth,
                     const TileRotation& rotation,
                     DType round_to,
                     float* out);

/// Raw scores: scores[r, k] = queries[r] . keys[k]. Exact where every partial sum is (integers).
///
/// A score depends on its query and key and on whether the tile has more than 16 rows (then the
/// keys are laid out anew), not on the place in the tile.
///
///   queries  [scores.rows, depth]
///   keys     [scores.keys, depth]
void DotTile(const float* queries, RowSource keys, int32_t depth, ScoreTile scores);

/// DotTile of keys turned by their angles and rounded to their dtype.
///
/// Up to 4 rows and at least 4 keys of 2-byte dtypes: keys are turned between registers, and a
/// pair's two products are added one after the other. Otherwise LoadRotatedRows, then DotTile.
///
///   queries  [scores.rows, depth], depth <= 256
///   keys     [scores.keys, depth]
void DotRotatedTile(const float* queries,
                    RowSource keys,
                    const TileRotation& rotation,
                    int32_t depth,
                    ScoreTile scores);

/// s = scale s, then soft_cap tanh(s / soft_cap) where soft_cap > 0.
void ScaleTile(ScoreTile scores, float scale, float soft_cap);

/// One step of the running softmax: scores in, exp(s - max) out.
///
/// max' = max(max, tile), rescale = exp(max - max'), sum' = sum rescale + sum of exp(s - max').
/// Row r sees the first visible[r] keys; the others get probability 0. A row that sees nothing, or
/// only -infinity, keeps its state and gets probabilities 0 and rescale 1. exp is right to 1e-7 of
/// its value, and 0 below exp(-87).
///
///   visible  [scores.rows], null: every key
void SoftmaxTile(ScoreTile scores, const int32_t* visible, SoftmaxRows state);

/// acc[r] = acc[r] rescale[r] + sum over keys k, in order, of probabilities[r, k] values[k].
///
///   rescale  [probabilities.rows]
///   values   [probabilities.keys, depth]
///   acc      [probabilities.rows, depth] in and out
void AccumulateTile(ScoreTile probabilities,
                    const float* rescale,
                    RowSource values,
                    int32_t depth,
                    float* acc);

/// Queries for upper bounds, out [rows, 2 * depth] = max(q, 0), then min(q, 0): DotTile of them and
/// of summaries [2, depth] (maximum, then minimum) gives sum over d of max(q_d max_d, q_d min_d).
void SplitSigns(const float* queries, int32_t rows, int32_t depth, float* out);

/// Elementwise maximum [depth] and minimum [depth] of source [rows, depth], rows >= 1.
void MinMaxRows(const float* source, int32_t rows, int32_t depth, float* maximum, float* minimum);

/// Maximum of each chunk of keys: out [scores.rows, scores.keys / chunk_tokens], out_stride floats
/// between rows. chunk_tokens is a power of two up to 64 and divides scores.keys.
void ChunkMaxTile(ScoreTile scores, int32_t chunk_tokens, float* out, int64_t out_stride);

/// log(sum of exp(values [count])); -infinity for none or only -infinity. Summed in an order that
/// depends only on count.
float LogSumExp(const float* values, int64_t count);

/// to[i] = max(to[i], from[i] - shift) for [count]; nothing where shift is -infinity.
void MaxOfShifted(const float* from, float shift, int64_t count, float* to);

/// sums[i] += exp(power (from[i] - shift - max[i])) for [count]; nothing where shift is -infinity.
/// max[i] >= from[i] - shift, as MaxOfShifted leaves it.
void AddPowers(const float* from,
               float shift,
               const float* max,
               float power,
               int64_t count,
               float* sums);

/// max[i] = power max[i] + log(sums[i]) for [count]: the log of the whole sum of powers.
void LogOfPowers(const float* sums, float power, int64_t count, float* max);

/// from [count] to the nearest element of dtype, ties to even.
void StoreRows(const float* from, int64_t count, DType dtype, void* to);

/// Index of the first element in data [count] of dtype whose magnitude is not at most `limit`, a
/// finite number of 0 or more (of a NaN it is not); -1 if there is none.
int64_t FirstAbove(const void* data, DType dtype, int64_t count, float limit);

}  // namespace longshore::cpu
