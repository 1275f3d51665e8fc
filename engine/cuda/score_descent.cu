#include "engine/cuda/descent_branch.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/launch.cuh"
#include "engine/cuda/rotate.cuh"
#include "engine/cuda/scale.cuh"

namespace longshore::cuda {
namespace {

constexpr int32_t kWarps = 8;
constexpr int32_t kLanes = 32;
constexpr int32_t kMostOfLane = 8;  // head_dim is at most 256
constexpr uint32_t kAllLanes = 0xffffffffu;

// The way of one head down one candidate: a warp, whose lanes share the dimensions.
template <class Element>
struct Descent {
  const PruneLaunch& launch;
  const PruneBlock& prune;
  const StageLayout& layout;
  int32_t kv_head;
  int32_t head;  // of the group
  int32_t candidate;
  int32_t lane;
  float key[kMostOfLane];

  __device__ void LoadKey(int64_t token, int64_t id) {
    const KvView& kv = prune.block.kv;
    const auto* row =
        reinterpret_cast<const Element*>(kv.Keys(token) + int64_t{kv_head} * kv.head_bytes);
    const bool turns = prune.block.rope.pairs > 0 && !DescentKeysAreUnrotated(prune.rule.style);
#pragma unroll
    for (int32_t part = 0; part < kMostOfLane; ++part) {
      const int32_t index = part * kLanes + lane;
      if (index < launch.shape.head_dim) {
        key[part] = turns ? TurnedElement(row, index, prune.block.rope, id) : ToFloat(row[index]);
      }
    }
  }

  // The raw score of the loaded key for scored row `row`, in every lane.
  __device__ float Dot(int32_t row) const {
    const int32_t group = launch.shape.GroupSize();
    const float* query =
        launch.workspace + layout.queries +
        ((int64_t{kv_head} * layout.scored + row) * group + head) * launch.shape.head_dim;
    float sum = 0.0F;
#pragma unroll
    for (int32_t part = 0; part < kMostOfLane; ++part) {
      const int32_t index = part * kLanes + lane;
      if (index < launch.shape.head_dim) {
        sum = fmaf(query[index], key[part], sum);
      }
    }
    for (int32_t step = kLanes / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, step);
    }
    return sum;
  }

  // body(row, score) for the token that stands for a branch.
  template <class Body>
  __device__ void ForEachRow(const Branch& branch, bool left, const Body& body) {
    const int32_t token = branch.Representative(launch.stage.representative);
    const bool each_query_alone = KeyIdsDependOnQuery(prune.rule.style);
    for (int32_t row = 0; row < layout.scored; ++row) {
      if (row == 0 || each_query_alone) {
        const int64_t position =
            prune.block.first_position + layout.first_row + int64_t{row} * launch.query_stride;
        LoadKey(token, DescentKeyId(prune.rule, position, token, candidate, left));
      }
      body(row, Dot(row));
    }
  }

  __device__ float Best(const Branch& branch, bool left) {
    float best = -INFINITY;
    ForEachRow(branch, left, [&](int32_t, float score) { best = fmaxf(best, score); });
    return best;
  }

  __device__ void Run() {
    const int32_t token = prune.Candidate(candidate, launch.stage.chunk_tokens);
    Branch branch{token, token + launch.stage.chunk_tokens - 1};
    const bool running = launch.stage.descent_score == DescentScore::kRunningMaximum;
    float* out =
        launch.workspace + layout.scores +
        (int64_t{kv_head} * layout.scored * launch.shape.GroupSize() + head) * layout.score_stride +
        candidate;
    const int64_t row_stride = layout.score_stride * launch.shape.GroupSize();
    // A row's best score so far waits in its place in `out`, unscaled.
    bool any = false;
    const auto keep = [&](int32_t row, float score) {
      if (lane == 0) {
        float* at = out + row * row_stride;
        *at = any ? fmaxf(*at, score) : score;
      }
    };
    while (!branch.Ended()) {
      const bool left = Best(branch.Half(true), true) >= Best(branch.Half(false), false);
      branch = branch.Half(left);
      if (running) {
        ForEachRow(branch, left, keep);
        any = true;
      }
    }
    ForEachRow(branch, false, keep);
    __syncwarp();
    for (int32_t row = lane; row < layout.scored; row += kLanes) {
      out[row * row_stride] = Scaled(launch.shape, out[row * row_stride]);
    }
  }
};

// Candidates (x, a warp each), heads (y), blocks (z).
template <class Element>
__global__ void __launch_bounds__(kWarps* kLanes)
    ScoreDescent(const __grid_constant__ PruneLaunch launch) {
  const StageLayout& layout = launch.layouts[blockIdx.z];
  const int32_t candidate =
      static_cast<int32_t>(blockIdx.x) * kWarps + static_cast<int32_t>(threadIdx.x) / kLanes;
  if (layout.scored == 0 || candidate >= layout.candidates) {
    return;
  }
  const int32_t group = launch.shape.GroupSize();
  Descent<Element> descent{launch,
                           launch.blocks[blockIdx.z],
                           layout,
                           static_cast<int32_t>(blockIdx.y) / group,
                           static_cast<int32_t>(blockIdx.y) % group,
                           candidate,
                           static_cast<int32_t>(threadIdx.x) % kLanes,
                           {}};
  descent.Run();
}

}  // namespace

void LaunchScoreDescent(const PruneLaunch& launch, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(CeilDiv(launch.most_candidates, kWarps)),
                  static_cast<uint32_t>(launch.shape.num_heads),
                  static_cast<uint32_t>(launch.num_blocks));
  WithElement(launch.shape.kv_dtype, [&](auto element) {
    LaunchKernel<ScoreDescent<decltype(element)>>({grid, kWarps * kLanes}, stream, launch);
  });
}

}  // namespace longshore::cuda
