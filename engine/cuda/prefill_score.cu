#include "engine/cuda/atomic_max.cuh"
#include "engine/cuda/launch.cuh"
#include "engine/cuda/log_sum.cuh"
#include "engine/cuda/prefill_span.cuh"

namespace longshore::cuda {
namespace {

// Scores of a column, as they come out of the product, to the running sum and, where there is a
// place, to memory. row_of(index): in the tile, of a candidate's first row; negative: not this
// lane's. What is not below `left` does not count. `all`: there is neither.
template <int32_t kCount, class RowOf>
__device__ void TakeScores(const AttentionShape& shape,
                           int32_t keys,
                           int32_t left,
                           bool all,
                           const RowOf& row_of,
                           float* to,
                           float (&scores)[kCount],
                           LogSum* sum) {
  const bool capped = shape.logit_soft_cap > 0.0F;
  const float scale = capped ? 1.0F : shape.softmax_scale;
  if (capped) {
    const float within = shape.softmax_scale / shape.logit_soft_cap;
#pragma unroll
    for (float& score : scores) {
      score = shape.logit_soft_cap * FastTanh(score * within);
    }
  }
  if (!all) {
#pragma unroll
    for (int32_t at = 0; at < kCount; ++at) {
      const int32_t row = row_of(at);
      scores[at] = row < 0 || row >= left ? -INFINITY : scores[at];
    }
  }
  if (to != nullptr) {
#pragma unroll
    for (int32_t at = 0; at < kCount; ++at) {
      const int32_t row = row_of(at);
      if (all || (row >= 0 && row < left)) {
        to[row / keys] = scores[at] * scale;
      }
    }
  }
  sum->Add(scores, scale * kLog2E);
}

// One column of a tile.
template <class Scores>
__device__ void TakeColumn(const AttentionShape& shape,
                           const Scores& scores,
                           int32_t keys,
                           int32_t half,
                           int32_t left,  // rows of the tile that count
                           float* to,     // [candidates of the tile] or null
                           LogSum* sum) {
  constexpr int32_t kRowTiles = Scores::kRowTiles;
  const int32_t j = static_cast<int32_t>(threadIdx.x) % 4;
  const bool all = left >= 8 * kRowTiles;
  if (keys == 1) {
    constexpr int32_t kAtOnce = 16;  // as registers allow
#pragma unroll
    for (int32_t first = 0; first < kRowTiles; first += kAtOnce / 2) {
      float values[kAtOnce];
      scores.CopyTo(half, first, values);
      TakeScores(
          shape, keys, left, all, [&](int32_t at) { return 8 * (first + at / 2) + 2 * j + at % 2; },
          to, values, sum);
    }
    return;
  }
  float best[kRowTiles];
  scores.Fold(keys, half, best);
  if (keys == 8) {
    float mine[kRowTiles / 4];
    TakeFourth(best, mine);
    TakeScores(
        shape, keys, left, all, [&](int32_t at) { return 8 * (j * (kRowTiles / 4) + at); }, to,
        mine, sum);
    return;
  }
  TakeScores(
      shape, keys, left, false,
      [&](int32_t at) { return (8 * at + 2 * j) % keys == 0 ? 8 * at + 2 * j : -1; }, to, best,
      sum);
}

// Column tiles (x), spans of candidates (y), KV heads (z): partial sums of each column's
// log-sum-exp; kStores: and the scores themselves.
template <class K, bool kStores>
__global__ void __launch_bounds__(K::kThreads, K::kBounds&& kStores ? 1 : K::kBlocksOfSm)
    SumScores(const __grid_constant__ PruneLaunch launch, int32_t keys_of_candidate) {
  const int32_t keys = K::kBounds ? 1 : keys_of_candidate;
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SpanShared<K>*>(shared_bytes);
  const PrefillTile& tile = launch.tiles[blockIdx.x];
  const auto span = static_cast<int32_t>(blockIdx.y);
  const int32_t first = span * kSpanRows;
  if (first >= tile.candidates * keys) {
    return;
  }
  const SpanScores<K> work{launch,
                           tile,
                           shared,
                           static_cast<int32_t>(blockIdx.z),
                           keys,
                           first,
                           min(first + kSpanRows, tile.candidates * keys)};
  CopyToShared(launch.blocks + tile.first_block, shared.prune.get());
  work.FindSlots();
  __syncthreads();
  const ColumnSlot slot = work.OwnSlot();
  const int32_t lane = work.thread % 32;
  LogSum sums[2];
  work.Run([&](int32_t row, const auto& scores) {
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      const int32_t column = work.ColumnOf(slot, 8 * half + lane / 4);
      float* to = nullptr;
      if (kStores && column >= 0) {
        const StageLayout& layout = launch.layouts[slot.block];
        to = launch.workspace + layout.scores + work.RowOf(slot, column) * layout.score_stride +
             row / keys;
      }
      TakeColumn(launch.shape, scores, keys, half, slot.candidates * keys - row, to, &sums[half]);
    }
  });
  const float scale = launch.shape.logit_soft_cap > 0.0F ? 1.0F : launch.shape.softmax_scale;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    sums[half].max *= scale;
    for (int32_t step = 1; step < 4; step *= 2) {
      sums[half].Merge({__shfl_xor_sync(0xffffffffu, sums[half].max, step),
                        __shfl_xor_sync(0xffffffffu, sums[half].sum, step)});
    }
    const int32_t column = work.ColumnOf(slot, 8 * half + lane / 4);
    if (lane % 4 == 0 && column >= 0 && first < slot.candidates * keys) {
      const StageLayout& layout = launch.layouts[slot.block];
      const int64_t at = work.RowOf(slot, column) * layout.partials + span;
      launch.workspace[layout.partial_max + at] = sums[half].max;
      launch.workspace[layout.partial_sum + at] = sums[half].sum;
    }
  }
}

// What each column's scores are less by: its log-sum-exp, of columns that are none infinity.
template <class K>
__device__ void FindShifts(const SpanScores<K>& work) {
  const PruneLaunch& launch = work.launch;
  const int32_t at = work.thread;
  if (at >= K::kColumns) {
    return;
  }
  const ColumnSlot& slot = work.shared.slots[at / kSlotColumns];
  const int32_t column = work.ColumnOf(slot, at % kSlotColumns);
  if (column < 0 || launch.ranking == Ranking::kScoreMax) {
    work.shared.shifts[at] = column < 0 ? INFINITY : 0.0F;
    return;
  }
  const StageLayout& layout = launch.layouts[slot.block];
  const int64_t parts = work.RowOf(slot, column) * layout.partials;
  LogSum sum;
  for (int64_t part = parts; part < parts + layout.partials; ++part) {
    sum.Merge(
        {launch.workspace[layout.partial_max + part], launch.workspace[layout.partial_sum + part]});
  }
  work.shared.shifts[at] = sum.max + logf(sum.sum);
}

// The largest of a tile's maxima by warp, for each row and block, to memory: of a group of four
// warps, a thread a row.
template <class K>
__device__ void PutRanks(const SpanScores<K>& work,
                         const float (&best)[K::kSlots][K::kTileRows],
                         int32_t row) {
  const int32_t of_tile = work.thread % 128;
  const int32_t first_slot = work.thread / 128 * 4;
  float rank = -INFINITY;
#pragma unroll
  for (int32_t at = first_slot; at < first_slot + 4; ++at) {
    const ColumnSlot& slot = work.shared.slots[at];
    rank = fmaxf(rank, best[at][of_tile]);
    if (at == first_slot + 3 || slot.block != work.shared.slots[at + 1].block) {
      if (slot.block >= 0 && row + of_tile < slot.candidates) {
        AtomicMax(work.launch.workspace + work.launch.layouts[slot.block].rank + row + of_tile,
                  rank);
      }
      rank = -INFINITY;
    }
  }
}

// The same shares, by `bounds`: the largest of the columns' scores, less their log-sum-exp, of each
// candidate and block.
template <class K>
__global__ void __launch_bounds__(K::kThreads, K::kBlocksOfSm)
    RankScores(const __grid_constant__ PruneLaunch launch) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SpanShared<K>*>(shared_bytes);
  const PrefillTile& tile = launch.tiles[blockIdx.x];
  const int32_t first = static_cast<int32_t>(blockIdx.y) * kSpanRows;
  if (first >= tile.candidates) {
    return;
  }
  const SpanScores<K> work{launch,
                           tile,
                           shared,
                           static_cast<int32_t>(blockIdx.z),
                           1,
                           first,
                           min(first + kSpanRows, tile.candidates)};
  CopyToShared(launch.blocks + tile.first_block, shared.prune.get());
  work.FindSlots();
  __syncthreads();
  FindShifts(work);
  __syncthreads();
  const int32_t warp = work.thread / 32;
  const int32_t i = work.thread % 32 / 4;
  const int32_t j = work.thread % 4;
  const float shifts[2] = {shared.shifts[kSlotColumns * warp + i],
                           shared.shifts[kSlotColumns * warp + 8 + i]};
  work.Run([&](int32_t row, const auto& scores) {
    auto& best = shared.best[row / K::kTileRows % 2];
#pragma unroll
    for (int32_t n = 0; n < K::kTileRows / 8; n += 4) {
      float values[8];
#pragma unroll
      for (int32_t at = 0; at < 8; ++at) {
        const float* c = scores.scores[n + at / 2].c + at % 2;
        values[at] =
            fmaxf(Scaled(launch.shape, c[0]) - shifts[0], Scaled(launch.shape, c[2]) - shifts[1]);
      }
      best[warp][8 * n + i / 2 * 8 + 2 * j + i % 2] = SpreadMaxima(values);
    }
    // Once a tile, since the next goes to the other place.
    GroupBarrier();
    PutRanks(work, best, row);
  });
}

template <class K, auto kKernel, class... Arguments>
void Run(const PruneLaunch& launch, cudaStream_t stream, Arguments... arguments) {
  const int32_t keys = KeysOfCandidate(launch.stage);
  const dim3 grid(static_cast<uint32_t>(launch.num_tiles),
                  static_cast<uint32_t>(CeilDiv(int64_t{launch.most_candidates} * keys, kSpanRows)),
                  static_cast<uint32_t>(launch.shape.num_kv_heads));
  constexpr int32_t kBytes = sizeof(SpanShared<K>);
  static_assert(kBytes <= kPrefillSharedBytes);
  LaunchKernel<kKernel>({grid, K::kThreads, kBytes}, stream, launch, arguments...);
}

template <class K>
void Launch(const PruneLaunch& launch, cudaStream_t stream) {
  const int32_t keys = KeysOfCandidate(launch.stage);
  if constexpr (K::kBounds) {
    if (!KeepsScores(launch.stage, launch.ranking)) {
      LaunchClearRanks(launch, stream);
      if (launch.ranking != Ranking::kScoreMax) {
        Run<K, SumScores<K, false>>(launch, stream, keys);
      }
      Run<K, RankScores<K>>(launch, stream);
      return;
    }
  }
  Run<K, SumScores<K, true>>(launch, stream, keys);
}

template <class Element, int32_t kDepth>
void LaunchOfDepth(const PruneLaunch& launch, cudaStream_t stream) {
  if (launch.stage.selector == Selector::kBounds) {
    Launch<ScoreKind<Element, kDepth, true, false>>(launch, stream);
  } else if (launch.turns) {
    Launch<ScoreKind<Element, kDepth, false, true>>(launch, stream);
  } else {
    Launch<ScoreKind<Element, kDepth, false, false>>(launch, stream);
  }
}

template <class Element>
void LaunchOfElement(const PruneLaunch& launch, cudaStream_t stream) {
  if (launch.shape.head_dim == 64) {
    LaunchOfDepth<Element, 64>(launch, stream);
  } else {
    LaunchOfDepth<Element, 128>(launch, stream);
  }
}

}  // namespace

void LaunchPrefillScore(const PruneLaunch& launch, cudaStream_t stream) {
  if (launch.shape.kv_dtype == DType::kBf16) {
    LaunchOfElement<Bf16>(launch, stream);
  } else {
    LaunchOfElement<F16>(launch, stream);
  }
}

}  // namespace longshore::cuda
