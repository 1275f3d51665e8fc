#pragma once

#include <cstdint>

#include "engine/cuda/decode_queries.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/scale.cuh"
#include "engine/cuda/turn_staged.cuh"

namespace longshore::cuda {

inline constexpr int32_t kColumns = 8;
inline constexpr int32_t kTileRows = 16;
inline constexpr int32_t kStagedBytes = 16384;  // of a warp, on their way

// Running log-sum-exp, in base 2.
struct LogSum {
  float max = -INFINITY;
  float sum = 0.0F;

  __device__ void Add(float score) {
    const float larger = fmaxf(max, score);
    sum = sum * exp2f((max - larger) * kLog2E) + exp2f((score - larger) * kLog2E);
    max = larger;
  }
  __device__ void Merge(const LogSum& other) {
    const float larger = fmaxf(max, other.max);
    if (larger == -INFINITY) {
      return;  // differences of infinities are not numbers
    }
    sum = sum * exp2f((max - larger) * kLog2E) + other.sum * exp2f((other.max - larger) * kLog2E);
    max = larger;
  }
};

// Which tiles of 16 rows a warp scores: every so many units of whole candidates.
struct WarpShare {
  int32_t unit;  // the first of this warp
  int32_t unit_step;
  int32_t units;  // of the block
  int32_t tiles_of_unit;
};

// The scores of one KV head's queries against the rows of one tile: summaries of 16 chunks, or 16
// keys. Rows are copied kStages ahead.
template <class Element, int32_t kRowDepth, bool kTurns>
struct WarpScores {
  static constexpr int32_t kStages = kStagedBytes / (kTileRows * kRowDepth * 2);
  using Rows = StagedRows<kRowDepth, true>;
  using Queries = DecodeQueries<Element, kRowDepth, kColumns>;

  const PruneLaunch& launch;
  const PruneBlock& prune;
  const StageLayout& layout;
  int32_t kv_head;
  int32_t keys_of_candidate;
  int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;

  // The row of a tile that this lane finds: key or summary.
  struct Place {
    const std::byte* row;
    int32_t id;
  };
  __device__ Place Find(int32_t tile) const {
    const int32_t index =
        min(tile * kTileRows + lane % kTileRows, layout.candidates * keys_of_candidate - 1);
    const int32_t candidate = index / keys_of_candidate;
    const int32_t token =
        prune.Candidate(candidate, launch.stage.chunk_tokens) + index % keys_of_candidate;
    const KvView& kv = prune.block.kv;
    if (launch.stage.selector == Selector::kBounds) {
      const SummaryKind kind =
          PruneKeysAreUnrotated(prune.rule.style) ? SummaryKind::kUnrotated : SummaryKind::kRotated;
      return {kv.Summary(kind, token) + int64_t{2} * kv_head * kv.head_bytes, 0};
    }
    return {kv.Keys(token) + int64_t{kv_head} * kv.head_bytes,
            static_cast<int32_t>(PruneKeyId(prune.rule, 0, token, candidate))};
  }

  __device__ void Send(const Place& place, Rows* to) const {
#pragma unroll 8
    for (int32_t step = 0; step < Rows::kSteps; ++step) {
      const int32_t at = 32 * step + lane;
      const int32_t row = at / Rows::kChunks;
      const int32_t chunk = at % Rows::kChunks;
      const auto from = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(place.row), row);
      CopyAsync(to->At(row, chunk), reinterpret_cast<const std::byte*>(from) + 16 * chunk);
    }
  }

  __device__ void FindAngles(int32_t id, FourTurns* angles) const {
    constexpr int32_t kFours = kRowDepth / 8;
#pragma unroll 4
    for (int32_t step = 0; step < kTileRows * kFours / 32; ++step) {
      const int32_t at = 32 * step + lane;
      const int32_t row_id = __shfl_sync(0xffffffffu, id, at / kFours);
      angles[at] = FourTurnsOf(prune.block.rope, row_id, at % kFours * 4);
    }
  }

  __device__ Accumulator Score(const Queries& queries, Rows* rows) const {
    Accumulator scores;
#pragma unroll
    for (int32_t g = 0; g < kRowDepth / 32; ++g) {
      const uint4 upper = *rows->At(lane / 4, 4 * g + lane % 4);
      const uint4 lower = *rows->At(lane / 4 + 8, 4 * g + lane % 4);
      const uint4 query = queries.Fragment(0, g, lane);
      Multiply<Element>(upper.x, lower.x, upper.y, lower.y, query.x, query.y, &scores);
      Multiply<Element>(upper.z, lower.z, upper.w, lower.w, query.z, query.w, &scores);
    }
    return scores;
  }

  // The tile with number `count` of this warp's share.
  __device__ static int32_t TileOf(const WarpShare& share, int32_t count) {
    return (share.unit + count / share.tiles_of_unit * share.unit_step) * share.tiles_of_unit +
           count % share.tiles_of_unit;
  }

  // All tiles of the share; what is found of each column in `sums`.
  __device__ void Run(const WarpShare& share,
                      const Queries& queries,
                      Rows (&rows)[kStages],
                      FourTurns* angles,
                      LogSum (&sums)[2]) const {
    const int32_t tiles =
        share.unit >= share.units
            ? 0
            : ((share.units - 1 - share.unit) / share.unit_step + 1) * share.tiles_of_unit;
    int32_t ids[kStages];
#pragma unroll
    for (int32_t stage = 0; stage < kStages; ++stage) {
      if (stage < tiles) {
        const Place place = Find(TileOf(share, stage));
        Send(place, &rows[stage]);
        ids[stage] = place.id;
      }
      CommitAsync();
    }
    float best[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};  // [side][rows]
    for (int32_t first = 0; first < tiles; first += kStages) {
#pragma unroll
      for (int32_t stage = 0; stage < kStages; ++stage) {
        const int32_t count = first + stage;
        if (count >= tiles) {
          break;
        }
        // What is looked up for later is on its way while this tile is waited for.
        const bool more = count + kStages < tiles;
        const Place next = Find(TileOf(share, more ? count + kStages : count));
        if constexpr (kTurns) {
          FindAngles(ids[stage], angles);
        }
        WaitAsync<kStages - 1>();
        __syncwarp();
        if constexpr (kTurns) {
          TurnStaged<Element, kRowDepth>(prune.block.rope, angles, &rows[stage]);
          __syncwarp();
        }
        const Accumulator scores = Score(queries, &rows[stage]);
        __syncwarp();
        if (more) {
          Send(next, &rows[stage]);
          ids[stage] = next.id;
        }
        CommitAsync();
        Keep(scores, TileOf(share, count), best, sums);
      }
    }
  }

  // The best key of each candidate: those of lanes i that are equal up to a candidate's size, then
  // of both halves of a tile, then of several tiles.
  __device__ void Keep(const Accumulator& scores,
                       int32_t tile,
                       float (&best)[2][2],
                       LogSum (&sums)[2]) const {
    const int32_t i = lane / 4;
    const bool ends = (tile + 1) * kTileRows % keys_of_candidate == 0;
    const int32_t lanes = min(keys_of_candidate, 8);
#pragma unroll
    for (int32_t side = 0; side < 2; ++side) {
      float upper = fmaxf(best[side][0], scores.c[side]);
      float lower = fmaxf(best[side][1], scores.c[2 + side]);
      if (!ends) {
        best[side][0] = upper;
        best[side][1] = lower;
        continue;
      }
      best[side][0] = -INFINITY;
      best[side][1] = -INFINITY;
      for (int32_t step = 1; step < lanes; step *= 2) {
        upper = fmaxf(upper, __shfl_xor_sync(0xffffffffu, upper, 4 * step));
        lower = fmaxf(lower, __shfl_xor_sync(0xffffffffu, lower, 4 * step));
      }
      const int32_t column = 2 * (lane % 4) + side;
      const bool mine = i % lanes == 0 && column < layout.scored * launch.shape.GroupSize();
      if (keys_of_candidate >= 16) {
        Write(mine, column, (tile * kTileRows) / keys_of_candidate, fmaxf(upper, lower),
              &sums[side]);
      } else {
        const int32_t first = tile * (kTileRows / keys_of_candidate) + i / lanes;
        Write(mine, column, first, upper, &sums[side]);
        Write(mine, column, first + 8 / lanes, lower, &sums[side]);
      }
    }
  }

  __device__ void Write(bool mine,
                        int32_t column,
                        int32_t candidate,
                        float raw,
                        LogSum* sum) const {
    if (!mine || candidate >= layout.candidates) {
      return;
    }
    const float score = Scaled(launch.shape, raw);
    const int64_t row = int64_t{kv_head} * layout.scored * launch.shape.GroupSize() + column;
    launch.workspace[layout.scores + row * layout.score_stride + candidate] = score;
    sum->Add(score);
  }
};

}  // namespace longshore::cuda
