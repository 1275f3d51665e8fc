#pragma once

#include <cstdint>

#include "engine/cuda/kernels.h"
#include "engine/cuda/prefill_queries.cuh"
#include "engine/cuda/prefill_score.cuh"
#include "engine/cuda/shared_copy.cuh"
#include "engine/cuda/turn_panels.cuh"

// How keys or summaries meet the queries of a prefill: what a thread block has in shared memory,
// and the way from there to scores, whatever is done with them.
namespace longshore::cuda {

inline constexpr int32_t kSlotColumns = 16;  // of a warp

// What a kernel is made for.
template <class ElementType, int32_t kHeadDim, bool kOfBounds, bool kTurnsKeys>
struct ScoreKind {
  using Element = ElementType;
  static constexpr int32_t kDepth = kHeadDim;
  static constexpr bool kBounds = kOfBounds;
  static constexpr bool kTurns = kTurnsKeys;
  static constexpr int32_t kRowDepth = kBounds ? 2 * kDepth : kDepth;
  // Summaries are shared by neighbouring blocks, keys are a block's own.
  static constexpr int32_t kColumns = kBounds ? 128 : 64;
  static constexpr int32_t kSlots = kColumns / kSlotColumns;
  static constexpr int32_t kThreads = 32 * kSlots;
  // Rows and elements that are on their way together: of keys that turn, whole rows, and as many
  // thread blocks as hide one another's turning.
  static constexpr int32_t kTileRows = kTurns ? 64 : 128;
  static constexpr int32_t kStageDepth = kTurns ? kDepth : 64;
  static constexpr int32_t kStagesOfTile = kRowDepth / kStageDepth;
  static constexpr int32_t kStages = kBounds || kTurns ? 2 : 3;
  static constexpr int32_t kBlocksOfSm = !kHasWarpgroups ? 1 : kBounds ? 2 : kTurns ? 4 : 3;
};

// 16 columns of one block.
struct ColumnSlot {
  int32_t block;  // of the launch; -1: none
  int32_t first_column;
  int32_t columns;
  int32_t candidates;
};

template <class K>
struct SpanShared {
  using Rows = Panels<K::kTileRows, K::kStageDepth>;

  Panels<K::kColumns, K::kRowDepth> queries;
  Rows rows[K::kStages];
  // Of four tiles: where rows are, and their ids.
  const std::byte* places[4][K::kTileRows];
  int32_t ids[K::kTurns ? 4 : 1][K::kTileRows];
  float best[K::kBounds ? 2 : 1][K::kSlots][K::kBounds ? K::kTileRows : 1];  // of RankScores
  float shifts[K::kColumns];
  ColumnSlot slots[K::kSlots];
  Uninitialized<PruneBlock> prune;  // the first of the tile's
};

// Columns of one KV head against a span of the candidates.
template <class K>
struct SpanScores {
  using Element = typename K::Element;
  using Scores = WarpScores<Element, K::kTileRows>;
  static constexpr int32_t kCopyRows = K::kThreads / 8;  // by all threads at once
  static constexpr int32_t kCopySteps = K::kTileRows / kCopyRows;

  const PruneLaunch& launch;
  const PrefillTile& tile;
  SpanShared<K>& shared;
  int32_t kv_head;
  int32_t keys;  // of a candidate
  int32_t first_row;
  int32_t end_row;
  int32_t thread = static_cast<int32_t>(threadIdx.x);

  __device__ int32_t Stages() const {
    return (end_row - first_row + K::kTileRows - 1) / K::kTileRows * K::kStagesOfTile;
  }

  // Each 16 columns' block: every block begins a slot.
  __device__ void FindSlots() const {
    if (thread >= K::kSlots) {
      return;
    }
    int32_t block = tile.first_block;
    int32_t slot = tile.first_slot + thread;
    const int32_t group = launch.shape.GroupSize();
    while (thread < tile.slots) {
      const int32_t slots =
          (launch.layouts[block].scored * group + kSlotColumns - 1) / kSlotColumns;
      if (slot < slots) {
        break;
      }
      slot -= slots;
      ++block;
    }
    ColumnSlot& found = shared.slots[thread];
    found.block = thread < tile.slots ? block : -1;
    if (found.block >= 0) {
      const StageLayout& layout = launch.layouts[block];
      found.first_column = slot * kSlotColumns;
      found.columns = min(kSlotColumns, layout.scored * group - found.first_column);
      found.candidates = layout.candidates;
    } else {
      found.columns = 0;
      found.candidates = 0;
    }
  }

  __device__ void LoadQueries() const {
    const PruneBlock& prune = *shared.prune;
    const int32_t group = launch.shape.GroupSize();
    const float angle_scale =
        PruneKeysAreUnrotated(prune.rule.style) ? prune.block.rope.attention_scaling : 1.0F;
    LoadTileQueries<Element, K::kDepth>(
        launch.q, prune.block.rope, angle_scale, K::kColumns,
        [&](int32_t at) {
          const ColumnSlot& slot = shared.slots[at / kSlotColumns];
          if (at % kSlotColumns >= slot.columns) {
            return TileQuery{};
          }
          const int32_t of_block = slot.first_column + at % kSlotColumns;
          const PruneBlock& block = launch.blocks[slot.block];
          const int32_t row =
              launch.layouts[slot.block].first_row + of_block / group * launch.query_stride;
          return TileQuery{
              int64_t{block.block.first_row + row} * launch.shape.num_heads + kv_head * group +
                  of_block % group,
              PruneQueryId(block.rule, block.block.first_position + row, slot.candidates)};
        },
        [&](int32_t row, int32_t index, float4 v) {
          if constexpr (K::kBounds) {
            // The maximum of a chunk's keys goes with what is positive, the minimum with the rest.
            StoreFourAt<Element>(
                &shared.queries, row, index,
                {fmaxf(v.x, 0.0F), fmaxf(v.y, 0.0F), fmaxf(v.z, 0.0F), fmaxf(v.w, 0.0F)});
            StoreFourAt<Element>(
                &shared.queries, row, K::kDepth + index,
                {fminf(v.x, 0.0F), fminf(v.y, 0.0F), fminf(v.z, 0.0F), fminf(v.w, 0.0F)});
          } else {
            StoreFourAt<Element>(&shared.queries, row, index, v);
          }
        });
  }

  // Where the rows of a tile are, a thread a row. Rows behind the end stand for the last, and do
  // not count.
  __device__ void FindPlaces(int32_t tile_index) const {
    const int32_t first = first_row + tile_index * K::kTileRows;
    if (thread >= K::kTileRows || first >= end_row) {
      return;
    }
    const PruneBlock& prune = *shared.prune;
    const KvView& kv = prune.block.kv;
    const int32_t chunk = launch.stage.chunk_tokens;
    const int32_t row = min(first + thread, end_row - 1);
    const int32_t candidate = row / keys;
    int32_t token = prune.Candidate(candidate, chunk);
    if constexpr (K::kBounds) {
      const SummaryKind kind =
          PruneKeysAreUnrotated(prune.rule.style) ? SummaryKind::kUnrotated : SummaryKind::kRotated;
      shared.places[tile_index % 4][thread] =
          kv.Summary(kind, token) + int64_t{2} * kv_head * kv.head_bytes;
    } else {
      const int32_t key = row % keys;
      token +=
          launch.stage.selector == Selector::kProbes ? (2 * key + 1) * chunk / (2 * keys) : key;
      shared.places[tile_index % 4][thread] = kv.Keys(token) + int64_t{kv_head} * kv.head_bytes;
      if constexpr (K::kTurns) {
        shared.ids[tile_index % 4][thread] =
            static_cast<int32_t>(PruneKeyId(prune.rule, 0, token, candidate));
      }
    }
  }

  // Stage `stage` of the span: some elements of a tile's rows, eight threads a row.
  __device__ void Send(int32_t stage) const {
    if (stage < Stages()) {
      const std::byte* const* places = shared.places[stage / K::kStagesOfTile % 4] + thread / 8;
      const int32_t offset = stage % K::kStagesOfTile * K::kStageDepth * 2 + thread % 8 * 16;
      // Rows that are eight apart are swapped alike.
      uint4* to = shared.rows[stage % K::kStages].At(thread / 8, thread % 8);
#pragma unroll
      for (int32_t step = 0; step < kCopySteps; ++step) {
#pragma unroll
        for (int32_t panel = 0; panel < K::kStageDepth / 64; ++panel) {
          CopyAsync(to + panel * (8 * K::kTileRows) + step * (8 * kCopyRows),
                    places[step * kCopyRows] + offset + 128 * panel);
        }
      }
    }
    CommitAsync();
  }

  __device__ void Turn(int32_t stage) const {
    if constexpr (K::kTurns) {
      TurnPanels<Element, K::kThreads>(shared.prune.get()->block.rope,
                                       shared.ids[stage / K::kStagesOfTile % 4], thread,
                                       &shared.rows[stage % K::kStages]);
      FenceForProducts();
      __syncthreads();
    }
  }

  // take(first row, scores) for each tile of the span.
  template <class Take>
  __device__ void Run(const Take& take) const {
#pragma unroll 1
    for (int32_t tile_index = 0; tile_index < 3; ++tile_index) {
      FindPlaces(tile_index);
    }
    __syncthreads();
#pragma unroll
    for (int32_t stage = 0; stage < K::kStages - 1; ++stage) {
      Send(stage);
    }
    LoadQueries();
    Scores scores;
    const int32_t stages = Stages();
    for (int32_t stage = 0; stage < stages; ++stage) {
      WaitAsync<K::kStages - 2>();
      FenceForProducts();
      __syncthreads();  // and nobody needs what the next copies go over
      Send(stage + K::kStages - 1);
      const int32_t part = stage % K::kStagesOfTile;
      if (part == 0) {
        FindPlaces(stage / K::kStagesOfTile + 3);
      }
      Turn(stage);
      scores.template Add<K::kStageDepth>(part == 0, part * (K::kStageDepth / 64), &shared.queries,
                                          &shared.rows[stage % K::kStages]);
      if (part == K::kStagesOfTile - 1) {
        take(first_row + stage / K::kStagesOfTile * K::kTileRows, scores);
      }
    }
    WaitAsync<0>();
  }

  __device__ const ColumnSlot& OwnSlot() const { return shared.slots[thread / 32]; }
  // Of the columns of a block and KV head, and -1 for what is none.
  __device__ int32_t ColumnOf(const ColumnSlot& slot, int32_t of_slot) const {
    return of_slot < slot.columns ? slot.first_column + of_slot : -1;
  }
  __device__ int64_t RowOf(const ColumnSlot& slot, int32_t column) const {
    return int64_t{kv_head} * launch.layouts[slot.block].scored * launch.shape.GroupSize() + column;
  }
};

}  // namespace longshore::cuda
