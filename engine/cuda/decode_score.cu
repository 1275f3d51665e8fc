#include "engine/cuda/launch.cuh"
#include "engine/cuda/score_warp.cuh"
#include "engine/cuda/shared_copy.cuh"
#include "engine/cuda/staged_rows.cuh"

namespace longshore::cuda {
namespace {

constexpr int32_t kWarps = kScoreWarps;
constexpr int32_t kThreads = 32 * kWarps;

template <class Element, int32_t kRowDepth>
struct Shared {
  using Rows = StagedRows<kRowDepth, true>;
  using Queries = DecodeQueries<Element, kRowDepth, kColumns>;
  // Tiles of a warp that are on their way, 8 KB where rows are long. A pass has more of each team,
  // so that what is sent for ahead is in this pass or the next.
  static constexpr int32_t kStages = kRowDepth >= 256 ? 1 : 2;

  Uninitialized<PruneBlock> prune;
  Uninitialized<StageLayout> layout;
  RowPlaces places;
  Rows rows[kWarps][kStages];
  Queries queries[kScoreHeads];
};

// The queries of some KV heads; for `bounds` their positive and their negative parts.
template <class Element, int32_t kDepth, int32_t kRowDepth>
__device__ void LoadQueries(const PruneLaunch& launch,
                            const PruneBlock& prune,
                            const StageLayout& layout,
                            int32_t first_head,
                            int32_t heads,
                            DecodeQueries<Element, kRowDepth, kColumns>* queries) {
  const AttentionShape& shape = launch.shape;
  constexpr bool kSplitsSigns = kRowDepth != kDepth;
  const float angle_scale =
      PruneKeysAreUnrotated(prune.rule.style) ? prune.block.rope.attention_scaling : 1.0F;
  LoadColumns<kDepth>(
      {launch.q, shape, prune.block, layout.first_row, launch.query_stride, layout.scored,
       angle_scale},
      first_head, heads,
      [&](int64_t position) { return PruneQueryId(prune.rule, position, layout.candidates); },
      [&](int32_t head, int32_t column, int32_t index, float4 value) {
        Element* to = queries[head].at + column * queries[head].kPitch + index;
        if constexpr (kSplitsSigns) {
          StoreFour(float4{fmaxf(value.x, 0.0F), fmaxf(value.y, 0.0F), fmaxf(value.z, 0.0F),
                           fmaxf(value.w, 0.0F)},
                    to);
          StoreFour(float4{fminf(value.x, 0.0F), fminf(value.y, 0.0F), fminf(value.z, 0.0F),
                           fminf(value.w, 0.0F)},
                    to + kDepth);
        } else {
          StoreFour(value, to);
        }
      });
}

// The tiles of one warp: one KV head, one team.
template <class Element, int32_t kRowDepth, bool kTurns>
struct WarpTiles {
  using SharedMemory = Shared<Element, kRowDepth>;
  using Rows = typename SharedMemory::Rows;
  using Queries = typename SharedMemory::Queries;
  static constexpr int32_t kStages = SharedMemory::kStages;

  const RopeRows& rope;
  const RowPlaces& places;
  const TileOrder& order;
  const Queries& queries;
  Rows* rows;           // [kStages]
  int64_t head_offset;  // bytes from a row of KV head 0 to this one's
  int32_t team;
  int32_t tiles;
  int32_t lane;

  // Where a tile's rows begin in a pass's places.
  __device__ int32_t PlaceOf(int32_t local) const { return local % kPassTiles * kTileRows; }

  __device__ void Send(int32_t count) const {
    if (count < tiles) {
      const int32_t local = order.LocalOf(team, count);
      rows[count % kStages].SendFor(places.rows[local / kPassTiles % 2] + PlaceOf(local),
                                    head_offset);
    }
    CommitAsync();
  }

  __device__ Accumulator Score(int32_t count) const {
    Accumulator scores;
    const auto multiply = [&](int32_t g, const uint4& upper, const uint4& lower) {
      const uint4 query = queries.Fragment(0, g, lane);
      Multiply<Element>(upper.x, lower.x, upper.y, lower.y, query.x, query.y, &scores);
      Multiply<Element>(upper.z, lower.z, upper.w, lower.w, query.z, query.w, &scores);
    };
    Rows* tile = rows + count % kStages;
    const auto wait = [] {
      WaitAsync<kStages - 1>();
      __syncwarp();
    };
    if constexpr (kTurns) {
      const int32_t local = order.LocalOf(team, count);
      TurnStaged<Element, kRowDepth, 4>(rope, places.ids[local / kPassTiles % 2] + PlaceOf(local),
                                        tile, wait);
      __syncwarp();
    } else {
      wait();
    }
    ForEachChunk(tile, multiply);
    return scores;
  }
};

// The scores of KV heads [first_head, first_head + heads), a warp each and team, by all threads.
template <class Element, int32_t kRowDepth, bool kTurns>
__device__ void ScoreHeads(const PruneLaunch& launch,
                           int32_t first_head,
                           int32_t heads,
                           Shared<Element, kRowDepth>* shared) {
  using Warp = WarpTiles<Element, kRowDepth, kTurns>;
  const StageLayout& layout = *shared->layout;
  const PruneBlock& prune = *shared->prune;
  const int32_t warp_index = static_cast<int32_t>(threadIdx.x) / 32;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t teams = ScoreTeamsOf(launch.shape);
  const int32_t team = warp_index / min(kScoreHeads, launch.shape.num_kv_heads);
  const int32_t head = warp_index % min(kScoreHeads, launch.shape.num_kv_heads);
  const TileOrder order(launch, layout, teams);
  const bool works = team < teams && head < heads;
  const int64_t row_bytes = int64_t{kRowDepth} * sizeof(Element);
  const Warp warp{prune.block.rope,
                  shared->places,
                  order,
                  shared->queries[head],
                  shared->rows[warp_index],
                  (first_head + head) * row_bytes,
                  team,
                  works ? order.TilesOf(team) : 0,
                  lane};
  ScoreSink sink(launch, layout, order.key_shift, first_head + head);
  const int32_t passes = (order.LocalTiles() + kPassTiles - 1) / kPassTiles;
  const int32_t tiles_of_pass = kPassTiles / teams;
  for (int32_t count = 0; count < Warp::kStages; ++count) {
    warp.Send(count);
  }
  for (int32_t pass = 0; pass < passes; ++pass) {
    if (pass > 0) {
      __syncthreads();  // nobody looks at the last pass's places any more
      shared->places.Find(launch, prune, layout, order, pass + 1);
      __syncthreads();
    }
    const int32_t end = min(warp.tiles, (pass + 1) * tiles_of_pass);
    for (int32_t count = pass * tiles_of_pass; count < end; ++count) {
      const Accumulator scores = warp.Score(count);
      __syncwarp();
      warp.Send(count + Warp::kStages);
      sink.Add(scores, order.TileOf(order.LocalOf(team, count)));
    }
  }
  WaitAsync<0>();
  if (works) {
    sink.WriteSums(launch, layout, first_head + head, order.share * teams + team);
  }
}

// A share of a block's candidates (x), one block (y).
template <class Element, int32_t kDepth, int32_t kRowDepth, bool kTurns>
__global__ void __launch_bounds__(kThreads, 1)
    DecodeScore(const __grid_constant__ PruneLaunch launch) {
  extern __shared__ __align__(16) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<Element, kRowDepth>*>(shared_bytes);
  CopyToShared(&launch.Block(blockIdx.y), shared.prune.get());
  CopyToShared(&launch.Layout(blockIdx.y), shared.layout.get());
  WaitForEarlier();
  LetLaterStart();
  __syncthreads();
  const StageLayout& layout = *shared.layout;
  const PruneBlock& prune = *shared.prune;
  if (layout.scored == 0 || static_cast<int32_t>(blockIdx.x) >= layout.shares) {
    return;
  }
  const int32_t all_heads = launch.shape.num_kv_heads;
  for (int32_t first = 0; first < all_heads; first += kScoreHeads) {
    const int32_t heads = min(kScoreHeads, all_heads - first);
    const TileOrder order(launch, layout, ScoreTeamsOf(launch.shape));
    __syncthreads();
    shared.places.Find(launch, prune, layout, order, 0);
    shared.places.Find(launch, prune, layout, order, 1);
    LoadQueries<Element, kDepth, kRowDepth>(launch, prune, layout, first, heads, shared.queries);
    __syncthreads();
    ScoreHeads<Element, kRowDepth, kTurns>(launch, first, heads, &shared);
  }
}

template <class Element, int32_t kDepth, int32_t kRowDepth, bool kTurns>
void Launch(const PruneLaunch& launch, CallQueue* queue) {
  LaunchChained<DecodeScore<Element, kDepth, kRowDepth, kTurns>>(
      {dim3(static_cast<uint32_t>(launch.most_shares), static_cast<uint32_t>(launch.num_blocks)),
       kThreads, sizeof(Shared<Element, kRowDepth>)},
      queue, launch);
}

template <class Element, int32_t kDepth>
void LaunchOfDepth(const PruneLaunch& launch, CallQueue* queue) {
  if (launch.stage.selector == Selector::kBounds) {
    Launch<Element, kDepth, 2 * kDepth, false>(launch, queue);
  } else if (launch.turns) {
    Launch<Element, kDepth, kDepth, true>(launch, queue);
  } else {
    Launch<Element, kDepth, kDepth, false>(launch, queue);
  }
}

template <class Element>
void LaunchOfElement(const PruneLaunch& launch, CallQueue* queue) {
  if (launch.shape.head_dim == 64) {
    LaunchOfDepth<Element, 64>(launch, queue);
  } else {
    LaunchOfDepth<Element, 128>(launch, queue);
  }
}

}  // namespace

void LaunchDecodeScore(const PruneLaunch& launch, CallQueue* queue) {
  if (launch.shape.kv_dtype == DType::kBf16) {
    LaunchOfElement<Bf16>(launch, queue);
  } else {
    LaunchOfElement<F16>(launch, queue);
  }
}

}  // namespace longshore::cuda
