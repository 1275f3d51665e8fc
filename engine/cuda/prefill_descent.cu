#include "engine/cuda/atomic_max.cuh"
#include "engine/cuda/descent_branch.cuh"
#include "engine/cuda/launch.cuh"
#include "engine/cuda/prefill_descent.cuh"
#include "engine/cuda/prefill_queries.cuh"
#include "engine/cuda/scale.cuh"

// `descent` for the rows of a prefill, on tensor cores. A pair of warps takes a head: its queries
// stay in registers, and of eight candidates at once, the columns of a product, one warp scores the
// left halves and one the right. So the two may turn their queries by different angles, which
// serves `relative`: its ids of keys differ by side alone.
namespace longshore::cuda {
namespace {

constexpr int32_t kThreads = 64 * kPairs;
constexpr int32_t kSpanCandidates = 256;  // of a thread block
constexpr uint32_t kWarp = 0xffffffffu;

// One warp of a pair: a head of a block, one side.
template <class K>
struct HeadDescent {
  using Element = typename K::Element;
  static constexpr int32_t kChunks = K::kDepth / 32;
  static constexpr int32_t kSets = K::kSets;
  using Key = uint4[kChunks];
  using Scores = Accumulator[K::kRowTiles];

  const PruneLaunch& launch;
  const PruneBlock& prune;
  const StageLayout& layout;
  DescentShared<K>& shared;
  int32_t kv_head;
  int32_t head;  // of the group
  int32_t pair;
  bool left;
  int32_t i;  // the lane's column in loads
  int32_t j;
  Fragments<K> queries;

  __device__ int32_t CandidateOf(int32_t first, int32_t set) const {
    return min(first + kColumns * set + i, layout.candidates - 1);
  }

  __device__ void Load(const Branch& branch, Key& key) const {
    const int32_t token = branch.Representative(launch.stage.representative);
    const std::byte* row =
        prune.block.kv.Keys(token) + int64_t{kv_head} * prune.block.kv.head_bytes + 16 * j;
#pragma unroll
    for (int32_t g = 0; g < kChunks; ++g) {
      key[g] = __ldg(reinterpret_cast<const uint4*>(row + 64 * g));
    }
  }

  // Raw scores of all rows with the lanes' columns.
  __device__ void Score(const Branch& branch, int32_t candidate, Key& key, Scores& scores) const {
    if constexpr (K::kTurns) {
      const int32_t token = branch.Representative(launch.stage.representative);
      const int64_t id = DescentKeyId(prune.rule, 0, token, candidate, left);
      TurnChunks<K>(prune.block.rope, static_cast<int32_t>(id), j, key);
    }
#pragma unroll
    for (Accumulator& tile : scores) {
      tile = Accumulator();
    }
#pragma unroll
    for (int32_t g = 0; g < kChunks; ++g) {
#pragma unroll
      for (int32_t tile = 0; tile < K::kRowTiles; ++tile) {
        const auto [upper, lower] = queries.At(tile, g);
        Multiply<Element>(upper.x, lower.x, upper.y, lower.y, key[g].x, key[g].y, &scores[tile]);
        Multiply<Element>(upper.z, lower.z, upper.w, lower.w, key[g].z, key[g].w, &scores[tile]);
      }
    }
  }

  // The best row of columns 2 j and 2 j + 1, in all lanes.
  __device__ float2 Best(const Scores& scores) const {
    float2 best = {-INFINITY, -INFINITY};
#pragma unroll
    for (const Accumulator& tile : scores) {
      best.x = fmaxf(best.x, fmaxf(tile.c[0], tile.c[2]));
      best.y = fmaxf(best.y, fmaxf(tile.c[1], tile.c[3]));
    }
    for (int32_t step = 4; step < 32; step *= 2) {
      best.x = fmaxf(best.x, __shfl_xor_sync(kWarp, best.x, step));
      best.y = fmaxf(best.y, __shfl_xor_sync(kWarp, best.y, step));
    }
    return best;
  }

  // One level down for both sets. Both warps of the pair find the same.
  __device__ void Descend(int32_t first, int32_t level, Branch (&branches)[kSets]) const {
    Key keys[kSets];
    Branch halves[kSets];
#pragma unroll
    for (int32_t set = 0; set < kSets; ++set) {
      halves[set] = branches[set].Ended() ? branches[set] : branches[set].Half(left);
      Load(halves[set], keys[set]);
    }
    auto& best = shared.best[level % 2][pair];
#pragma unroll
    for (int32_t set = 0; set < kSets; ++set) {
      Scores scores;
      Score(halves[set], CandidateOf(first, set), keys[set], scores);
      const float2 of_columns = Best(scores);
      if (i == 0) {
        *reinterpret_cast<float2*>(&best[set][left ? 0 : 1][2 * j]) = of_columns;
      }
    }
    NamedBarrier<64>(pair);  // the other level's place is free by then
#pragma unroll
    for (int32_t set = 0; set < kSets; ++set) {
      if (!branches[set].Ended()) {
        branches[set] = branches[set].Half(best[set][0][i] >= best[set][1][i]);
      }
    }
  }

  // The scores of the tokens where the ways end, by the warp of the right side.
  __device__ void Finish(int32_t first, const Branch (&branches)[kSets]) const {
    Key keys[kSets];
#pragma unroll
    for (int32_t set = 0; set < kSets; ++set) {
      Load(branches[set], keys[set]);
    }
#pragma unroll
    for (int32_t set = 0; set < kSets; ++set) {
      Scores scores;
      Score(branches[set], CandidateOf(first, set), keys[set], scores);
      if (launch.ranking == Ranking::kScoreMax) {
        PutRanks(first + kColumns * set, Best(scores));
      } else {
        PutScores(first + kColumns * set, scores);
      }
    }
  }

  __device__ void PutRanks(int32_t first, const float2& best) const {
    if (i < 2) {  // a lane a column
      const int32_t candidate = first + 2 * j + i;
      if (candidate < layout.candidates) {
        AtomicMax(launch.workspace + layout.rank + candidate,
                  Scaled(launch.shape, i == 0 ? best.x : best.y));
      }
    }
  }

  __device__ void PutScores(int32_t first, const Scores& scores) const {
    const int32_t group = launch.shape.GroupSize();
    float* out = launch.workspace + layout.scores;
#pragma unroll
    for (int32_t tile = 0; tile < K::kRowTiles; ++tile) {
#pragma unroll
      for (int32_t part = 0; part < 4; ++part) {
        const int32_t row = 16 * tile + i + part / 2 * 8;
        const int32_t candidate = first + 2 * j + part % 2;
        if (row < layout.scored && candidate < layout.candidates) {
          const int64_t of_layer = (int64_t{kv_head} * layout.scored + row) * group + head;
          out[of_layer * layout.score_stride + candidate] =
              Scaled(launch.shape, scores[tile].c[part]);
        }
      }
    }
  }

  __device__ void Run(int32_t first, int32_t end, int32_t step) const {
    int32_t level = 0;
    for (; first < end; first += step) {
      Branch branches[kSets];
#pragma unroll
      for (int32_t set = 0; set < kSets; ++set) {
        const int32_t token = prune.Candidate(CandidateOf(first, set), launch.stage.chunk_tokens);
        branches[set] = {token, token + launch.stage.chunk_tokens - 1};
      }
      while (__any_sync(kWarp, !branches[0].Ended() || !branches[kSets - 1].Ended()) != 0) {
        Descend(first, level++, branches);
      }
      if (!left) {
        Finish(first, branches);
      }
    }
  }
};

// The scored queries of a head by all threads, where keys do not turn, for either side. Rows behind
// the last stand for it.
template <class K>
__device__ void LoadHead(
    const PruneLaunch& launch,
    const PruneBlock& prune,
    const StageLayout& layout,
    int32_t head,  // of the layer
    typename K::Element (*queries)[16 * K::kRowTiles * DescentShared<K>::kPitch]) {
  constexpr int32_t kRows = 16 * K::kRowTiles;
  const bool by_side = prune.rule.style == RopeStyle::kRelative;
  const float angle_scale = K::kTurns ? 1.0F : prune.block.rope.attention_scaling;
  const auto query_of = [&](int32_t at) {
    const int32_t row = layout.first_row + min(at % kRows, layout.scored - 1) * launch.query_stride;
    const int64_t position = prune.block.first_position + row;
    const bool right = at >= kRows;
    return TileQuery{
        (int64_t{prune.block.first_row} + row) * launch.shape.num_heads + head,
        DescentQueryId(prune.rule, position, layout.candidates) - (by_side && right ? 1 : 0)};
  };
  LoadTileQueries<typename K::Element, K::kDepth>(
      launch.q, prune.block.rope, angle_scale, K::kTurns ? kRows : 2 * kRows, query_of,
      [&](int32_t at, int32_t index, float4 value) {
        StoreFour(value, queries[at / kRows] + at % kRows * DescentShared<K>::kPitch + index);
      });
}

// Blocks (x), spans of candidates (y), up to kPairs heads of a KV head (z).
template <class K>
__global__ void __launch_bounds__(kThreads, 1)
    ScoreDescents(const __grid_constant__ PruneLaunch launch) {
  extern __shared__ __align__(16) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<DescentShared<K>*>(shared_bytes);
  CopyToShared(&launch.Block(blockIdx.x), shared.prune.get());
  CopyToShared(&launch.Layout(blockIdx.x), shared.layout.get());
  __syncthreads();
  const PruneBlock& prune = *shared.prune;
  const StageLayout& layout = *shared.layout;
  const auto span = static_cast<int32_t>(blockIdx.y) * kSpanCandidates;
  if (layout.scored == 0 || span >= layout.candidates) {
    return;
  }
  const int32_t group = launch.shape.GroupSize();
  const int32_t parts = (group + kPairs - 1) / kPairs;
  const int32_t kv_head = static_cast<int32_t>(blockIdx.z) / parts;
  const int32_t first_head = static_cast<int32_t>(blockIdx.z) % parts * kPairs;
  const int32_t heads = min(kPairs, group - first_head);
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t pair = warp / 2;
  HeadDescent<K> descent{
      launch, prune,         layout,   shared,   kv_head, first_head + pair % heads,
      pair,   warp % 2 == 0, lane / 4, lane % 4, {}};
  for (int32_t head = 0; head < heads; ++head) {
    const int32_t at = K::kTurns ? head : 0;
    LoadHead<K>(launch, prune, layout, kv_head * group + first_head + head, &shared.queries[at]);
    __syncthreads();
    if (pair % heads == head) {
      descent.queries.Load(shared.queries[K::kTurns ? at : warp % 2]);
    }
    __syncthreads();
  }
  // Where heads are few, several pairs share the candidates of one.
  const int32_t teams = kPairs / heads;
  const int32_t team = pair / heads;
  if (team < teams) {
    constexpr int32_t kAtOnce = K::kSets * kColumns;
    descent.Run(span + team * kAtOnce, min(span + kSpanCandidates, layout.candidates),
                teams * kAtOnce);
  }
}

template <class K>
void Launch(const PruneLaunch& launch, cudaStream_t stream) {
  constexpr int32_t kBytes = sizeof(DescentShared<K>);
  static_assert(kBytes <= 96 * 1024);  // as all GPUs from 8.0 on have
  const int32_t parts = static_cast<int32_t>(CeilDiv(launch.shape.GroupSize(), kPairs));
  const dim3 grid(static_cast<uint32_t>(launch.num_blocks),
                  static_cast<uint32_t>(CeilDiv(launch.most_candidates, kSpanCandidates)),
                  static_cast<uint32_t>(launch.shape.num_kv_heads * parts));
  LaunchKernel<ScoreDescents<K>>({grid, kThreads, kBytes}, stream, launch);
}

template <class Element, int32_t kDepth>
void LaunchOfDepth(const PruneLaunch& launch, cudaStream_t stream) {
  if (launch.most_scored <= 16) {
    launch.turns ? Launch<DescentKind<Element, kDepth, 1, true>>(launch, stream)
                 : Launch<DescentKind<Element, kDepth, 1, false>>(launch, stream);
  } else {
    launch.turns ? Launch<DescentKind<Element, kDepth, 4, true>>(launch, stream)
                 : Launch<DescentKind<Element, kDepth, 4, false>>(launch, stream);
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

void LaunchPrefillDescent(const PruneLaunch& launch, cudaStream_t stream) {
  if (launch.ranking == Ranking::kScoreMax) {
    LaunchClearRanks(launch, stream);
  }
  if (launch.shape.kv_dtype == DType::kBf16) {
    LaunchOfElement<Bf16>(launch, stream);
  } else {
    LaunchOfElement<F16>(launch, stream);
  }
}

}  // namespace longshore::cuda
