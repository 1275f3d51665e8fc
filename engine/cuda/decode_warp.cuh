#pragma once

#include <cstdint>

#include "engine/cuda/decode_queries.cuh"
#include "engine/cuda/ptx.cuh"
#include "engine/cuda/scale.cuh"
#include "engine/cuda/staged_rows.cuh"

namespace longshore::cuda {

inline constexpr int32_t kWarpKeys = 16;

// How a warp attends with 16 staged keys, transposed: S^T = K Q^T and O^T = V^T P^T, so that keys
// and then dimensions fill the 16 rows of the tensor cores' tiles, and the few queries of a decode
// step their 8 columns. Exponents are in base 2.
template <class Element, int32_t kDepth, int32_t kTiles>
struct WarpAttention {
  static constexpr int32_t kColumns = 8 * kTiles;
  static constexpr int32_t kDim = kDepth;
  static constexpr int32_t kHalves = kDepth / 64;  // 128 bytes of a value row each
  using Queries = DecodeQueries<Element, kDepth, kColumns>;
  using Keys = StagedRows<kDepth, true>;
  using Values = StagedRows<kDepth, false>;

  // What a row sees of a tile.
  struct Sight {
    int32_t tokens[2];  // of this lane's rows i and i + 8
    int32_t count;      // keys of the tile
    int64_t first_position;
    int64_t sliding_window_tokens;
    int32_t group;
  };
  // Of 16 keys, as columns of B for both halves of the keys, each as the sum of two elements, so
  // that it keeps 16 bits and more.
  struct Probabilities {
    uint32_t high[2];
    uint32_t low[2];
  };

  int32_t columns;  // in use
  int32_t lane;
  Accumulator acc[kTiles][kDepth / 16];  // [pairs of a lane's dimensions, columns]
  float max[kTiles][2];
  float sum[kTiles][2];

  __device__ explicit WarpAttention(int32_t columns_in_use)
      : columns(columns_in_use),
        lane(static_cast<int32_t>(threadIdx.x) % 32) {
    for (int32_t tile = 0; tile < kTiles; ++tile) {
      for (int32_t side = 0; side < 2; ++side) {
        max[tile][side] = -INFINITY;
        sum[tile][side] = 0.0F;
      }
    }
  }

  // scores += the dimensions of 16 keys from 32 g on, rows i and i + 8, with all columns.
  __device__ void Score(const Queries& queries,
                        int32_t g,
                        const uint4& upper,
                        const uint4& lower,
                        Accumulator (&scores)[kTiles]) const {
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile) {
      if (8 * tile < columns) {
        const uint4 query = queries.Fragment(tile, g, lane);
        Multiply<Element>(upper.x, lower.x, upper.y, lower.y, query.x, query.y, &scores[tile]);
        Multiply<Element>(upper.z, lower.z, upper.w, lower.w, query.z, query.w, &scores[tile]);
      }
    }
  }

  // Probabilities of all columns; what was summed before is rescaled.
  __device__ void Softmax(const AttentionShape& shape,
                          const Sight& sight,
                          Accumulator (&scores)[kTiles],
                          Probabilities (&probabilities)[kTiles]) {
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile) {
      if (8 * tile < columns) {
        Exponentiate(shape, sight, tile, &scores[tile]);
        probabilities[tile] = SplitOf(scores[tile]);
      }
    }
  }

  __device__ void Exponentiate(const AttentionShape& shape,
                               const Sight& sight,
                               int32_t tile,
                               Accumulator* scores) {
#pragma unroll
    for (int32_t side = 0; side < 2; ++side) {
      const int32_t column = 8 * tile + 2 * (lane % 4) + side;
      const int64_t position = sight.first_position + column / sight.group;
      float best = max[tile][side];
#pragma unroll
      for (int32_t row = 0; row < 2; ++row) {
        const int32_t key = lane / 4 + 8 * row;
        const int64_t token = sight.tokens[row];
        const bool seen =
            key < sight.count && token <= position &&
            (sight.sliding_window_tokens == 0 || token > position - sight.sliding_window_tokens);
        float* score = &scores->c[2 * row + side];
        const float scaled = shape.logit_soft_cap > 0.0F
                                 ? shape.logit_soft_cap * kLog2E *
                                       tanhf(*score * (shape.softmax_scale / shape.logit_soft_cap))
                                 : *score * (shape.softmax_scale * kLog2E);
        *score = seen ? scaled : -INFINITY;
        best = fmaxf(best, *score);
      }
      for (int32_t step = 4; step < 32; step *= 2) {
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, step));
      }
      // Differences of infinities are not numbers: nothing has been seen yet.
      const float shift = best == -INFINITY ? 0.0F : best;
      const float rescale = Exp2(max[tile][side] - shift);
      max[tile][side] = best;
      sum[tile][side] *= rescale;
#pragma unroll
      for (int32_t row = 0; row < 2; ++row) {
        float* score = &scores->c[2 * row + side];
        *score = Exp2(*score - shift);
        sum[tile][side] += *score;
      }
#pragma unroll
      for (Accumulator& sums : acc[tile]) {
        sums.c[side] *= rescale;
        sums.c[2 + side] *= rescale;
      }
    }
  }

  __device__ static Probabilities SplitOf(const Accumulator& scores) {
    Probabilities split;
#pragma unroll
    for (int32_t row = 0; row < 2; ++row) {
      const float* p = scores.c + 2 * row;
      const uint32_t rounded = PackPair<Element>(p[0], p[1]);
      const float2 part = UnpackPair<Element>(rounded);
      split.high[row] = Transpose(rounded);
      split.low[row] = Transpose(PackPair<Element>(p[0] - part.x, p[1] - part.y));
    }
    return split;
  }

  // acc += V^T P^T. A lane reads eight dimensions of keys 2j, 2j + 1, 2j + 8 and 2j + 9, and pairs
  // up the keys of each dimension.
  __device__ void AddValues(Values* values, const Probabilities (&probabilities)[kTiles]) {
    const int32_t i = lane / 4;
    const int32_t j = lane % 4;
#pragma unroll
    for (int32_t half = 0; half < kHalves; ++half) {
      uint32_t rows[4][4];
#pragma unroll
      for (int32_t row = 0; row < 4; ++row) {
        const uint4 chunk = *values->At(2 * j + row % 2 + row / 2 * 8, 8 * half + i);
        rows[row][0] = chunk.x;
        rows[row][1] = chunk.y;
        rows[row][2] = chunk.z;
        rows[row][3] = chunk.w;
      }
#pragma unroll
      for (int32_t word = 0; word < 4; ++word) {
        const uint32_t a0 = __byte_perm(rows[0][word], rows[1][word], 0x5410);
        const uint32_t a1 = __byte_perm(rows[0][word], rows[1][word], 0x7632);
        const uint32_t a2 = __byte_perm(rows[2][word], rows[3][word], 0x5410);
        const uint32_t a3 = __byte_perm(rows[2][word], rows[3][word], 0x7632);
#pragma unroll
        for (int32_t tile = 0; tile < kTiles; ++tile) {
          if (8 * tile < columns) {
            const Probabilities& p = probabilities[tile];
            Accumulator* sums = &acc[tile][4 * half + word];
            Multiply<Element>(a0, a1, a2, a3, p.high[0], p.high[1], sums);
            Multiply<Element>(a0, a1, a2, a3, p.low[0], p.low[1], sums);
          }
        }
      }
    }
  }

  // put(column, maximum, sum) once and put_acc(column, dimension, value) for what is held.
  template <class Put, class PutAcc>
  __device__ void Give(const Put& put, const PutAcc& put_acc) const {
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int32_t side = 0; side < 2; ++side) {
        const int32_t column = 8 * tile + 2 * (lane % 4) + side;
        float all = sum[tile][side];
        for (int32_t step = 4; step < 32; step *= 2) {
          all += __shfl_xor_sync(0xffffffffu, all, step);
        }
        if (column >= columns) {
          continue;
        }
        if (lane / 4 == 0) {
          put(column, max[tile][side], all);
        }
#pragma unroll
        for (int32_t index = 0; index < kDepth / 16; ++index) {
          const int32_t dim = 64 * (index / 4) + 8 * (lane / 4) + 2 * (index % 4);
          put_acc(column, dim, float2{acc[tile][index].c[side], acc[tile][index].c[2 + side]});
        }
      }
    }
  }
};

}  // namespace longshore::cuda
