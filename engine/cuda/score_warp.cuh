#pragma once

#include <cstdint>

#include "engine/cuda/decode_queries.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/log_sum.cuh"
#include "engine/cuda/ptx.cuh"

namespace longshore::cuda {

inline constexpr int32_t kColumns = 8;
inline constexpr int32_t kTileRows = 16;
inline constexpr int32_t kPassTiles = 64;

// Which tiles of 16 rows, keys or summaries, are whose. Rows are cut into units: tiles of whole
// candidates, or the tiles of a candidate that has more keys. Units go round the shares of a block
// and within one round its teams of warps. All sizes are powers of two: chunks divide a page.
struct TileOrder {
  int32_t key_shift;   // keys of a candidate, log2
  int32_t unit_shift;  // tiles of a unit, log2
  int32_t team_shift;  // teams, log2
  int32_t share;
  int32_t shares;
  int32_t units;  // of the block

  __device__ TileOrder(const PruneLaunch& launch, const StageLayout& layout, int32_t teams)
      : key_shift(launch.stage.selector == Selector::kBounds ? 0 : Log2(launch.stage.chunk_tokens)),
        unit_shift(max(0, key_shift - 4)),
        team_shift(Log2(teams)),
        share(static_cast<int32_t>(blockIdx.x)),
        shares(layout.shares) {
    const int64_t rows = int64_t{layout.candidates} << key_shift;
    units = static_cast<int32_t>((rows + (kTileRows << unit_shift) - 1) >> (4 + unit_shift));
  }
  __device__ static int32_t Log2(int32_t power_of_two) { return 31 - __clz(power_of_two); }

  // Tiles are counted in the order in which the share's teams take turns by units.
  __device__ int32_t TileOf(int32_t local) const {
    const int32_t unit = local >> unit_shift;
    const int32_t round = unit >> team_shift;
    const int32_t team = unit - (round << team_shift);
    return ((((round * shares + share) << team_shift) + team) << unit_shift) +
           (local - (unit << unit_shift));
  }
  // The share's tile that is number `count` of a team's.
  __device__ int32_t LocalOf(int32_t team, int32_t count) const {
    const int32_t round = count >> unit_shift;
    return (((round << team_shift) + team) << unit_shift) + (count - (round << unit_shift));
  }
  __device__ int32_t TilesOf(int32_t team) const {
    const int32_t step = shares << team_shift;
    const int32_t first = (share << team_shift) + team;
    return first >= units ? 0 : ((units - 1 - first) / step + 1) << unit_shift;
  }
  // All tiles of the share as if each team had as many as the first, which has most.
  __device__ int32_t LocalTiles() const { return TilesOf(0) << team_shift; }
};

// Where the rows of two passes over kPassTiles tiles are, for KV head 0: all heads look here.
struct RowPlaces {
  const std::byte* rows[2][kPassTiles * kTileRows];
  int32_t ids[2][kPassTiles * kTileRows];

  __device__ void Find(const PruneLaunch& launch,
                       const PruneBlock& prune,
                       const StageLayout& layout,
                       const TileOrder& order,
                       int32_t pass) {
    const int32_t first = pass * kPassTiles;
    const int32_t count = min(order.LocalTiles() - first, kPassTiles) * kTileRows;
    const KvView& kv = prune.block.kv;
    const SummaryKind kind =
        PruneKeysAreUnrotated(prune.rule.style) ? SummaryKind::kUnrotated : SummaryKind::kRotated;
    for (auto at = static_cast<int32_t>(threadIdx.x); at < count;
         at += static_cast<int32_t>(blockDim.x)) {
      // Rows behind the last stand for it, and lead nowhere.
      const int32_t row = min(order.TileOf(first + at / kTileRows) * kTileRows + at % kTileRows,
                              (layout.candidates << order.key_shift) - 1);
      const int32_t candidate = row >> order.key_shift;
      const int32_t token = prune.Candidate(candidate, launch.stage.chunk_tokens) + row -
                            (candidate << order.key_shift);
      const bool bounds = launch.stage.selector == Selector::kBounds;
      rows[pass % 2][at] = bounds ? kv.Summary(kind, token) : kv.Keys(token);
      ids[pass % 2][at] =
          bounds ? 0 : static_cast<int32_t>(PruneKeyId(prune.rule, 0, token, candidate));
    }
  }
};

// What becomes of one KV head's scores of a warp's tiles: best keys of candidates, written, and the
// log-sum-exp of each column.
struct ScoreSink {
  const AttentionShape& shape;
  int32_t key_shift;
  int32_t candidates;
  int32_t lane;
  bool used[2];      // whether a query has columns 2 (lane % 4) and the one after it
  float* scores[2];  // of these columns
  float best[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};  // [side][rows]
  LogSum sums[2];

  __device__ ScoreSink(const PruneLaunch& launch,
                       const StageLayout& layout,
                       int32_t order_key_shift,
                       int32_t kv_head)
      : shape(launch.shape),
        key_shift(order_key_shift),
        candidates(layout.candidates),
        lane(static_cast<int32_t>(threadIdx.x) % 32) {
    const int32_t columns = layout.scored * shape.GroupSize();
    for (int32_t side = 0; side < 2; ++side) {
      const int32_t column = 2 * (lane % 4) + side;
      used[side] = column < columns;
      scores[side] = launch.workspace + layout.scores +
                     (int64_t{kv_head} * columns + column) * layout.score_stride;
    }
  }

  // The best key of each candidate: those of lanes i that are equal up to a candidate's size, then
  // of both halves of a tile, then of several tiles.
  __device__ void Add(const Accumulator& tile_scores, int32_t tile) {
    const int32_t i = lane / 4;
    const int32_t row = tile * kTileRows;
    const bool ends = key_shift <= 4 || ((row + kTileRows) & ((1 << key_shift) - 1)) == 0;
    const int32_t lane_shift = min(key_shift, 3);
    const bool mine = (i & ((1 << lane_shift) - 1)) == 0;
#pragma unroll
    for (int32_t side = 0; side < 2; ++side) {
      float upper = tile_scores.c[side];
      float lower = tile_scores.c[2 + side];
      if (key_shift > 4) {
        upper = best[side][0] = fmaxf(best[side][0], upper);
        lower = best[side][1] = fmaxf(best[side][1], lower);
        if (!ends) {
          continue;
        }
        best[side][0] = -INFINITY;
        best[side][1] = -INFINITY;
      }
      for (int32_t step = 0; step < lane_shift; ++step) {
        upper = fmaxf(upper, __shfl_xor_sync(0xffffffffu, upper, 4 << step));
        lower = fmaxf(lower, __shfl_xor_sync(0xffffffffu, lower, 4 << step));
      }
      if (key_shift >= 4) {
        Write(side, mine && used[side], row >> key_shift, fmaxf(upper, lower), candidates, 0.0F);
      } else {
        const int32_t first = (row + i) >> key_shift;
        Write(side, mine && used[side], first, upper, first + (8 >> key_shift), lower);
      }
    }
  }

  // Sums of all lanes that have a column, to partial number `partial` of its row.
  __device__ void WriteSums(const PruneLaunch& launch,
                            const StageLayout& layout,
                            int32_t kv_head,
                            int32_t partial) {
#pragma unroll
    for (int32_t side = 0; side < 2; ++side) {
      for (int32_t step = 4; step < 32; step *= 2) {
        sums[side].Merge({__shfl_xor_sync(0xffffffffu, sums[side].max, step),
                          __shfl_xor_sync(0xffffffffu, sums[side].sum, step)});
      }
      if (lane < 4 && used[side]) {
        const int64_t row = int64_t{kv_head} * layout.scored * shape.GroupSize() + 2 * lane + side;
        const int64_t at = row * layout.partials + partial;
        launch.workspace[layout.partial_max + at] = sums[side].max;
        launch.workspace[layout.partial_sum + at] = sums[side].sum;
      }
    }
  }

 private:
  __device__ void Write(int32_t side,
                        bool mine,
                        int32_t candidate0,
                        float raw0,
                        int32_t candidate1,
                        float raw1) {
    float scaled[2] = {-INFINITY, -INFINITY};
    if (mine && candidate0 < candidates) {
      scaled[0] = Scaled(shape, raw0);
      scores[side][candidate0] = scaled[0];
    }
    if (mine && candidate1 < candidates) {
      scaled[1] = Scaled(shape, raw1);
      scores[side][candidate1] = scaled[1];
    }
    sums[side].Add(scaled, kLog2E);
  }
};

}  // namespace longshore::cuda
