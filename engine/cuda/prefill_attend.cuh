#pragma once

#include <cstdint>

#include "engine/cuda/launch_shape.h"
#include "engine/cuda/panels.cuh"
#include "engine/cuda/ptx.cuh"
#include "engine/cuda/scale.cuh"
#include "engine/cuda/warpgroup.cuh"

namespace longshore::cuda {

// What rows of a tile of queries see of a tile of keys.
struct TileSight {
  const int32_t* tokens;  // [kTileKeys] in shared memory
  int32_t keys;           // of the tile
  bool all;               // every row sees every key: no need to look
  int32_t first_row;      // of the tile of queries, in the block
  int32_t first_position;
  int32_t sliding_window_tokens;  // 0: no bound
};

// The attention of 32 rows of queries, by a warp, of which each four are a group with 128 rows:
// warp w of a group has rows 64 t + 16 w to 64 t + 16 w + 15, t 0 and 1. Half of them, t 0, where
// warps multiply alone: registers are fewer there. With i = lane / 4 and
// j = lane % 4 the lane has rows i and i + 8 of these, and of each the dimensions 8 n + 2 j and
// 8 n + 2 j + 1.
//
// Maxima are of scores as they come out of the product, which Scale() takes to their size. kSplits:
// probabilities are two elements that add up to them, else one.
template <class Element, int32_t kDepth, int32_t kTileRows, bool kSplits>
struct WarpRows {
  using Queries = Panels<kTileRows, kDepth>;
  using Keys = Panels<kTileKeys, kDepth>;
  static constexpr int32_t kRowTiles = kHasWarpgroups ? 2 : 1;
  // As registers allow.
  static constexpr int32_t kKeysAtOnce = kHasWarpgroups ? kTileKeys : kSplits ? 16 : 32;
  static constexpr int32_t kKeyTiles = kKeysAtOnce / 8;
  static constexpr int32_t kDimTiles = kDepth / 8;
  static constexpr int32_t kKeySteps = kKeysAtOnce / 16;
  using Scores = Accumulator[kKeyTiles];
  struct Probabilities {  // of 16 keys, as A of a product
    uint32_t high[4];
    uint32_t low[4];  // kSplits
  };

  const AttentionShape& shape;
  float max[kRowTiles][2];
  float sum[kRowTiles][2];
  Accumulator acc[kRowTiles][kDimTiles];

  __device__ explicit WarpRows(const AttentionShape& of_call) : shape(of_call) {
#pragma unroll
    for (int32_t at = 0; at < 2 * kRowTiles; ++at) {
      max[at / 2][at % 2] = -INFINITY;
      sum[at / 2][at % 2] = 0.0F;
    }
  }

  // The first of the warp's group, and of the warp.
  __device__ static int32_t GroupRow() {
    return static_cast<int32_t>(threadIdx.x) / 128 * 64 * kRowTiles;
  }
  __device__ static int32_t WarpRow() {
    return GroupRow() + static_cast<int32_t>(threadIdx.x) / 32 % 4 * 16;
  }

  // Scores with a cap are scaled already.
  __device__ float Scale() const {
    return shape.logit_soft_cap > 0.0F ? 1.0F : shape.softmax_scale;
  }

  // A tile of keys: Begin() asks for products, End() takes them and asks for others, which are
  // there after Finish(). Products of one half of the rows run beside the exponentials of the
  // other, where registers are for both.
  __device__ void Begin(Queries* queries, Keys* keys, Scores (&scores)[kRowTiles]) const {
    if constexpr (kHasWarpgroups && !kSplits) {
      BeginProducts();
      ScoreByGroup(0, queries, keys, scores[0]);
      ScoreByGroup(1, queries, keys, scores[1]);
    }
  }
  // await_values() before values are looked at, keys_done() when keys no longer are.
  template <class AwaitValues, class KeysDone>
  __device__ void End(const TileSight& sight,
                      Queries* queries,
                      Keys* keys,
                      Keys* values,
                      const AwaitValues& await_values,
                      const KeysDone& keys_done,
                      Scores (&scores)[kRowTiles]) {
    if constexpr (!kHasWarpgroups) {
      await_values();
#pragma unroll
      for (int32_t tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll 1
        for (int32_t key = 0; key < kTileKeys; key += kKeysAtOnce) {
          Score(tile, key, queries, keys, scores[0]);
          Softmax(sight, tile, key, scores[0]);
          AddValues(scores[0], key, values, acc[tile]);
        }
      }
      keys_done();
    } else if constexpr (kSplits) {
      await_values();
#pragma unroll
      for (int32_t tile = 0; tile < kRowTiles; ++tile) {
        BeginProducts();
        ScoreByGroup(tile, queries, keys, scores[0]);
        WaitProducts<0>();
        Softmax(sight, tile, 0, scores[0]);
        AddValuesByGroup(scores[0], values, acc[tile]);
        WaitProducts<0>();
      }
      keys_done();
    } else {
      WaitProducts<1>();
      Softmax(sight, 0, 0, scores[0]);
      await_values();
      AddValuesByGroup(scores[0], values, acc[0]);
      WaitProducts<1>();
      keys_done();
      Softmax(sight, 1, 0, scores[1]);
      AddValuesByGroup(scores[1], values, acc[1]);
    }
  }

  __device__ static void Finish() {
    if constexpr (kHasWarpgroups) {
      WaitProducts<0>();
    }
  }

  __device__ void ScoreByGroup(int32_t tile, Queries* queries, Keys* keys, Scores& scores) const {
    const uint64_t left = MatrixAt(&queries->chunks[0][GroupRow() + 64 * tile][0], 16);
    const uint64_t right = MatrixAt(&keys->chunks[0][0][0], 16);
    MultiplyFirst(Columns<kTileKeys>{}, Element{}, left, right, scores);
#pragma unroll
    for (int32_t chunk = 2; chunk < kDepth / 8; chunk += 2) {
      MultiplyShared(Columns<kTileKeys>{}, Element{}, left + ChunksOn<Queries>(chunk),
                     right + ChunksOn<Keys>(chunk), 1, scores);
    }
    CommitProducts();
  }

  // Those of keys [16 step, 16 step + 16).
  __device__ static Probabilities Rounded(const Scores& scores, int32_t step) {
    Probabilities out;
#pragma unroll
    for (int32_t word = 0; word < 4; ++word) {
      const float* two = scores[2 * step + word / 2].c + word % 2 * 2;
      out.high[word] = PackPair<Element>(two[0], two[1]);
      if constexpr (kSplits) {
        const float2 part = UnpackPair<Element>(out.high[word]);
        out.low[word] = PackPair<Element>(two[0] - part.x, two[1] - part.y);
      }
    }
    return out;
  }

  __device__ void AddValuesByGroup(const Scores& scores, Keys* values, Accumulator* sums) const {
    constexpr uint32_t kPanelBytes = sizeof(Keys::chunks[0]);
    Probabilities probabilities[kKeySteps];
#pragma unroll
    for (int32_t step = 0; step < kKeySteps; ++step) {
      probabilities[step] = Rounded(scores, step);
    }
    const uint64_t first = MatrixAt(&values->chunks[0][0][0], kPanelBytes);
    BeginProducts();
#pragma unroll
    for (int32_t step = 0; step < kKeySteps; ++step) {
      const uint64_t at = first + 16 * 128 / 16 * step;
      MultiplyRows(Columns<kDepth>{}, Element{}, probabilities[step].high, at, sums);
      if constexpr (kSplits) {
        MultiplyRows(Columns<kDepth>{}, Element{}, probabilities[step].low, at, sums);
      }
    }
    CommitProducts();
  }

  __device__ void Score(int32_t tile,
                        int32_t first_key,
                        Queries* queries,
                        Keys* keys,
                        Scores& scores) const {
    const Fragments<Queries, Side::kLeft> left_of(queries, WarpRow() + 64 * tile);
    const Fragments<Keys, Side::kRight> right_of(keys, first_key);
#pragma unroll
    for (Accumulator& sums : scores) {
      sums = {};
    }
#pragma unroll 2
    for (int32_t chunk = 0; chunk < kDepth / 8; chunk += 2) {
      const uint4 left = left_of.Load(0, chunk);
#pragma unroll
      for (int32_t key = 0; key < kKeyTiles; key += 2) {
        const uint4 r = right_of.Load(8 * key, chunk);
        Multiply<Element>(left.x, left.y, left.z, left.w, r.x, r.y, &scores[key]);
        Multiply<Element>(left.x, left.y, left.z, left.w, r.z, r.w, &scores[key + 1]);
      }
    }
  }

  __device__ void AddValues(const Scores& scores,
                            int32_t first_key,
                            Keys* values,
                            Accumulator* sums) const {
    const Fragments<Keys, Side::kRightTransposed> right_of(values, first_key);
#pragma unroll
    for (int32_t step = 0; step < kKeySteps; ++step) {
      const Probabilities probabilities = Rounded(scores, step);
      const uint32_t* high = probabilities.high;
      const uint32_t* low = probabilities.low;
#pragma unroll
      for (int32_t chunk = 0; chunk < kDepth / 8; chunk += 2) {
        const uint4 r = right_of.Load(16 * step, chunk);
        Multiply<Element>(high[0], high[1], high[2], high[3], r.x, r.y, &sums[chunk]);
        Multiply<Element>(high[0], high[1], high[2], high[3], r.z, r.w, &sums[chunk + 1]);
        if constexpr (kSplits) {
          Multiply<Element>(low[0], low[1], low[2], low[3], r.x, r.y, &sums[chunk]);
          Multiply<Element>(low[0], low[1], low[2], low[3], r.z, r.w, &sums[chunk + 1]);
        }
      }
    }
  }

  // Scores of a tile of rows and kKeysAtOnce keys become probabilities; what was added up before is
  // rescaled where a maximum has moved.
  __device__ void Softmax(const TileSight& sight, int32_t tile, int32_t first_key, Scores& scores) {
    if (shape.logit_soft_cap > 0.0F) {
      const float within = shape.softmax_scale / shape.logit_soft_cap;
#pragma unroll
      for (int32_t at = 0; at < 4 * kKeyTiles; ++at) {
        float* score = &scores[at / 4].c[at % 4];
        *score = shape.logit_soft_cap * FastTanh(*score * within);
      }
    }
    if (!__all_sync(0xffffffffu, sight.all)) {
      Hide(sight, tile, first_key, scores);
    }
    const float exponent = Scale() * kLog2E;
    float shift[2];
    float rescale[2];
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      float best = max[tile][half];
#pragma unroll
      for (int32_t key = 0; key < kKeyTiles; ++key) {
        best = fmaxf(best, fmaxf(scores[key].c[2 * half], scores[key].c[2 * half + 1]));
      }
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
      // Differences of infinities are not numbers: of a row that has seen nothing yet.
      shift[half] = best == -INFINITY ? 0.0F : best;
      rescale[half] = Exp2((max[tile][half] - shift[half]) * exponent);
      max[tile][half] = best;
      sum[tile][half] *= rescale[half];
    }
    if (__any_sync(0xffffffffu, rescale[0] != 1.0F || rescale[1] != 1.0F)) {
#pragma unroll
      for (Accumulator& sums : acc[tile]) {
        sums.c[0] *= rescale[0];
        sums.c[1] *= rescale[0];
        sums.c[2] *= rescale[1];
        sums.c[3] *= rescale[1];
      }
    }
#pragma unroll
    for (int32_t at = 0; at < 4 * kKeyTiles; ++at) {
      // The difference first: a product that is rounded on one side alone may be far from zero.
      float* score = &scores[at / 4].c[at % 4];
      *score = Exp2((*score - shift[at % 4 / 2]) * exponent);
      sum[tile][at % 4 / 2] += *score;
    }
  }

  __device__ void Hide(const TileSight& sight,
                       int32_t tile,
                       int32_t first_key,
                       Scores& scores) const {
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t row = sight.first_row + WarpRow() + 64 * tile + lane / 4;
    const int32_t positions[2] = {row / shape.GroupSize(), (row + 8) / shape.GroupSize()};
#pragma unroll
    for (int32_t at = 0; at < 2 * kKeyTiles; ++at) {
      const int32_t key = first_key + at / 2 * 8 + lane % 4 * 2 + at % 2;
      const int32_t behind = sight.tokens[key] - sight.first_position;
#pragma unroll
      for (int32_t half = 0; half < 2; ++half) {
        const bool seen = key < sight.keys && behind <= positions[half] &&
                          (sight.sliding_window_tokens == 0 ||
                           behind > positions[half] - sight.sliding_window_tokens);
        float* score = &scores[at / 2].c[2 * half + at % 2];
        *score = seen ? *score : -INFINITY;
      }
    }
  }

  // put(row, maximum, sum) for each row, by four lanes, gives what its values are to be multiplied
  // by; put_acc(row, dimension, two values): rows count from the tile's first.
  template <class Put, class PutAcc>
  __device__ void Give(const Put& put, const PutAcc& put_acc) const {
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
#pragma unroll
    for (int32_t at = 0; at < 2 * kRowTiles; ++at) {
      const int32_t tile = at / 2;
      const int32_t half = at % 2;
      float all = sum[tile][half];
      all += __shfl_xor_sync(0xffffffffu, all, 1);
      all += __shfl_xor_sync(0xffffffffu, all, 2);
      const int32_t row = WarpRow() + 64 * tile + 8 * half + lane / 4;
      const float factor = put(row, max[tile][half] * Scale(), all);
#pragma unroll
      for (int32_t dims = 0; dims < kDimTiles; ++dims) {
        const float* two = acc[tile][dims].c + 2 * half;
        put_acc(row, 8 * dims + lane % 4 * 2, float2{two[0] * factor, two[1] * factor});
      }
    }
  }
};

}  // namespace longshore::cuda
