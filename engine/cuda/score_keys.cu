#include "engine/cuda/dot_tile.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/launch.cuh"
#include "engine/cuda/rotate.cuh"
#include "engine/cuda/scale.cuh"

namespace longshore::cuda {
namespace {

constexpr int32_t kRows = 16;
using Dots = DotTile<kRows>;

// Where the keys of a tile of candidates are. Key i of a candidate is its token i (`exact`), one of
// its probes, or the candidate's summary, whose two rows are one key of twice the depth.
struct TileKeys {
  const PruneLaunch& launch;
  const PruneBlock& prune;
  int32_t first_candidate;
  int32_t keys_of_candidate;

  __device__ int32_t CandidateOf(int32_t key) const {
    return first_candidate + key / keys_of_candidate;
  }
  __device__ int64_t TokenOf(int32_t key) const {
    const int32_t chunk = launch.stage.chunk_tokens;
    const int64_t first = prune.Candidate(CandidateOf(key), chunk);
    const int32_t index = key % keys_of_candidate;
    if (launch.stage.selector == Selector::kProbes) {
      return first + (2 * int64_t{index} + 1) * chunk / (2 * int64_t{keys_of_candidate});
    }
    return first + index;
  }
};

template <class Element>
struct KeyElement {
  TileKeys tile;
  int32_t kv_head;
  int64_t query_position;
  bool turns;

  __device__ float operator()(int32_t key, int32_t index) const {
    const KvView& kv = tile.prune.block.kv;
    const PruneBlock& prune = tile.prune;
    if (tile.launch.stage.selector == Selector::kBounds) {
      const SummaryKind kind =
          PruneKeysAreUnrotated(prune.rule.style) ? SummaryKind::kUnrotated : SummaryKind::kRotated;
      return ToFloat(reinterpret_cast<const Element*>(kv.Summary(kind, tile.TokenOf(key)) +
                                                      int64_t{2} * kv_head * kv.head_bytes)[index]);
    }
    const int64_t token = tile.TokenOf(key);
    const auto* row =
        reinterpret_cast<const Element*>(kv.Keys(token) + int64_t{kv_head} * kv.head_bytes);
    if (!turns) {
      return ToFloat(row[index]);
    }
    return TurnedElement(row, index, prune.block.rope,
                         PruneKeyId(prune.rule, query_position, token, tile.CandidateOf(key)));
  }
};

// One tile of candidates (x), one KV head (y), one block (z).
template <class Element>
__global__ void __launch_bounds__(Dots::kThreads, 1)
    ScoreKeys(const __grid_constant__ PruneLaunch launch, int32_t keys_of_candidate) {
  __shared__ Dots::Shared shared;
  const StageLayout& layout = launch.layouts[blockIdx.z];
  const int32_t candidates_of_tile = kTileKeys / keys_of_candidate;
  const int32_t first = static_cast<int32_t>(blockIdx.x) * candidates_of_tile;
  if (layout.scored == 0 || first >= layout.candidates) {
    return;
  }
  const PruneBlock& prune = launch.blocks[blockIdx.z];
  const AttentionShape& shape = launch.shape;
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const int32_t group = shape.GroupSize();
  const auto candidates = static_cast<int32_t>(Min(candidates_of_tile, layout.candidates - first));
  const int32_t depth =
      launch.stage.selector == Selector::kBounds ? 2 * shape.head_dim : shape.head_dim;
  const bool each_query_alone = KeyIdsDependOnQuery(prune.rule.style);
  const int32_t rows = layout.scored * group;
  const int32_t rows_at_once = each_query_alone ? static_cast<int32_t>(Min(group, kRows)) : kRows;
  const float* queries = launch.workspace + layout.queries + int64_t{kv_head} * rows * depth;
  float* scores = launch.workspace + layout.scores + int64_t{kv_head} * rows * layout.score_stride;
  for (int32_t row = 0; row < rows;) {
    // With ids of its own each query's rows end a tile.
    const int32_t limit = each_query_alone ? (row / group + 1) * group : rows;
    const auto count = static_cast<int32_t>(Min(rows_at_once, limit - row));
    const int64_t position =
        prune.block.first_position + layout.first_row + int64_t{row / group} * launch.query_stride;
    const KeyElement<Element> element{
        {launch, prune, first, keys_of_candidate},
        kv_head,
        position,
        prune.block.rope.pairs > 0 && !PruneKeysAreUnrotated(prune.rule.style)};
    Dots dots;
    dots.Run(queries + int64_t{row} * depth, count, candidates * keys_of_candidate, depth, element,
             &shared);
    // The best key of each candidate, through the place of the keys.
    for (int32_t index = 0; index < Dots::kRowsOfThread; ++index) {
      const int32_t tile_row = Dots::FirstRow() + index * Dots::kRowStep;
      shared.keys[tile_row * kTileKeys + Dots::Key()] = dots.sums[index];
    }
    __syncthreads();
    for (int32_t at = static_cast<int32_t>(threadIdx.x); at < count * candidates;
         at += Dots::kThreads) {
      const int32_t tile_row = at / candidates;
      const int32_t candidate = at % candidates;
      const float* keys = shared.keys + tile_row * kTileKeys + candidate * keys_of_candidate;
      float best = keys[0];
      for (int32_t key = 1; key < keys_of_candidate; ++key) {
        best = fmaxf(best, keys[key]);
      }
      scores[(int64_t{row} + tile_row) * layout.score_stride + first + candidate] =
          Scaled(shape, best);
    }
    __syncthreads();
    row += count;
  }
}

}  // namespace

void LaunchScoreKeys(const PruneLaunch& launch, cudaStream_t stream) {
  const int32_t keys_of_candidate = KeysOfCandidate(launch.stage);
  const int32_t candidates_of_tile = kTileKeys / keys_of_candidate;
  const dim3 grid(static_cast<uint32_t>(CeilDiv(launch.most_candidates, candidates_of_tile)),
                  static_cast<uint32_t>(launch.shape.num_kv_heads),
                  static_cast<uint32_t>(launch.num_blocks));
  WithElement(launch.shape.kv_dtype, [&](auto element) {
    LaunchKernel<ScoreKeys<decltype(element)>>({grid, Dots::kThreads}, stream, launch,
                                               keys_of_candidate);
  });
}

}  // namespace longshore::cuda
