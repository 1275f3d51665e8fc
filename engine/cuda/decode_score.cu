#include "engine/cuda/score_warp.cuh"
#include "engine/cuda/shared_copy.cuh"

namespace longshore::cuda {
namespace {

constexpr int32_t kWarps = 8;
constexpr int32_t kThreads = 32 * kWarps;

template <class Element, int32_t kRowDepth>
struct Shared {
  Uninitialized<PruneBlock> prune;
  Uninitialized<StageLayout> layout;
  StagedRows<kRowDepth, true> rows[kWarps][kStagedBytes / (kTileRows * kRowDepth * 2)];
  DecodeQueries<Element, kRowDepth, kColumns> queries[kWarps];  // of the KV heads
  // Behind it: FourTurns angles[kWarps][kTileRows * kRowDepth / 8].
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
  LoadColumns<Element, kDepth>(
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

// A share of a block's candidates (x), one block (y).
template <class Element, int32_t kDepth, int32_t kRowDepth, bool kTurns>
__global__ void __launch_bounds__(kThreads, 1)
    DecodeScore(const __grid_constant__ PruneLaunch launch, int32_t keys_of_candidate) {
  using SharedMemory = Shared<Element, kRowDepth>;
  extern __shared__ __align__(16) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory*>(shared_bytes);
  CopyToShared(launch.blocks + blockIdx.y, shared.prune.get());
  CopyToShared(launch.layouts + blockIdx.y, shared.layout.get());
  __syncthreads();
  const StageLayout& layout = *shared.layout;
  const PruneBlock& prune = *shared.prune;
  const AttentionShape& shape = launch.shape;
  if (layout.scored == 0 || static_cast<int32_t>(blockIdx.x) >= layout.shares) {
    return;
  }
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t heads = min(kWarps, shape.num_kv_heads);
  const int32_t teams = kWarps / heads;  // of warps that have a head each
  const int32_t team = warp / heads;
  const int32_t rows_of_unit = max(kTileRows, keys_of_candidate);
  const WarpShare share{
      static_cast<int32_t>(blockIdx.x) * teams + team, layout.shares * teams,
      static_cast<int32_t>(CeilDiv(int64_t{layout.candidates} * keys_of_candidate, rows_of_unit)),
      rows_of_unit / kTileRows};
  auto* angles = reinterpret_cast<FourTurns*>(shared_bytes + sizeof(SharedMemory)) +
                 warp * kTileRows * (kRowDepth / 8);
  for (int32_t first_head = 0; first_head < shape.num_kv_heads; first_head += heads) {
    __syncthreads();
    LoadQueries<Element, kDepth, kRowDepth>(launch, prune, layout, first_head,
                                            min(heads, shape.num_kv_heads - first_head),
                                            shared.queries);
    __syncthreads();
    const int32_t kv_head = first_head + warp % heads;
    if (team >= teams || kv_head >= shape.num_kv_heads) {
      continue;
    }
    const WarpScores<Element, kRowDepth, kTurns> scores{launch, prune, layout, kv_head,
                                                        keys_of_candidate};
    LogSum sums[2];
    scores.Run(share, shared.queries[warp % heads], shared.rows[warp], angles, sums);
#pragma unroll
    for (int32_t side = 0; side < 2; ++side) {
      for (int32_t step = 4; step < 32; step *= 2) {
        sums[side].Merge({__shfl_xor_sync(0xffffffffu, sums[side].max, step),
                          __shfl_xor_sync(0xffffffffu, sums[side].sum, step)});
      }
      const int32_t column = 2 * lane + side;
      if (lane < 4 && column < layout.scored * shape.GroupSize()) {
        const int64_t row = int64_t{kv_head} * layout.scored * shape.GroupSize() + column;
        const int64_t at = row * layout.partials + share.unit;
        launch.workspace[layout.partial_max + at] = sums[side].max;
        launch.workspace[layout.partial_sum + at] = sums[side].sum;
      }
    }
  }
}

template <class Element, int32_t kDepth, int32_t kRowDepth, bool kTurns>
void Launch(const PruneLaunch& launch, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(launch.most_shares),
                  static_cast<uint32_t>(launch.num_blocks));
  const int64_t angles = kTurns ? int64_t{kWarps} * kTileRows * (kRowDepth / 8) : 0;
  const auto bytes =
      static_cast<int32_t>(sizeof(Shared<Element, kRowDepth>) + angles * sizeof(FourTurns));
  const auto kernel = DecodeScore<Element, kDepth, kRowDepth, kTurns>;
  // Shows as a launch that fails.
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  kernel<<<grid, kThreads, static_cast<size_t>(bytes), stream>>>(launch,
                                                                 KeysOfCandidate(launch.stage));
}

template <class Element, int32_t kDepth>
void LaunchOfDepth(const PruneLaunch& launch, cudaStream_t stream) {
  if (launch.stage.selector == Selector::kBounds) {
    Launch<Element, kDepth, 2 * kDepth, false>(launch, stream);
  } else if (launch.turns) {
    Launch<Element, kDepth, kDepth, true>(launch, stream);
  } else {
    Launch<Element, kDepth, kDepth, false>(launch, stream);
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

void LaunchDecodeScore(const PruneLaunch& launch, cudaStream_t stream) {
  if (launch.shape.kv_dtype == DType::kBf16) {
    LaunchOfElement<Bf16>(launch, stream);
  } else {
    LaunchOfElement<F16>(launch, stream);
  }
}

}  // namespace longshore::cuda
