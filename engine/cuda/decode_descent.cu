#include "engine/cuda/decode_queries.cuh"
#include "engine/cuda/descent_branch.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/launch.cuh"
#include "engine/cuda/scale.cuh"
#include "engine/cuda/shared_copy.cuh"

// `descent` for the single row of a decode step: a few lanes go down a candidate for one head, and
// all of a group's heads go down the same candidate at about the same time, so that they find each
// other's keys in cache. Keys are used as they are stored: their ids do not change on the way down
// but by side, so the query is turned by the difference instead, once for each side.
namespace longshore::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr uint32_t kWarp = 0xffffffffu;

// Of a head a lane has the elements [8 l, + 8) and [kDepth / 2 + 8 l, + 8), l its number in the
// team that goes down together.
template <int32_t kDepth>
struct Team {
  static constexpr int32_t kLanes = kDepth / 16;
  static constexpr int32_t kTeams = 32 / kLanes;  // of a warp
};

template <class Element, int32_t kDepth>
struct Path {
  static constexpr int32_t kLanes = Team<kDepth>::kLanes;
  using Query = float[16];

  const PruneLaunch& launch;
  const PruneBlock& prune;
  const StageLayout& layout;
  int32_t kv_head;
  int32_t head;       // of the group
  int32_t candidate;  // there is one, else the last stands for it
  int32_t lane;       // of the team
  Query queries[2];   // for a key on the right, for one on the left

  // The query turned by its id less that of keys on a side.
  __device__ void LoadQuery(bool left) {
    const RopeRows& rope = prune.block.rope;
    const int32_t row = layout.first_row;
    const int64_t position = prune.block.first_position + row;
    const int64_t id = DescentQueryId(prune.rule, position, layout.candidates) -
                       DescentKeyId(prune.rule, position, 0, candidate, left);
    const int64_t of_call = (int64_t{prune.block.first_row} + row) * launch.shape.num_heads +
                            kv_head * launch.shape.GroupSize() + head;
    // Eight neighbours in a row are the first half of eight pairs or the second, or four pairs.
    const bool halves = rope.pairing == RopePairing::kHalf;
    const auto pairs_of = [&](int32_t four) {
      return TurnedPairs<kDepth>(launch.q, rope, of_call * kDepth, four, id,
                                 rope.attention_scaling);
    };
    const PairOfFours low = pairs_of(halves ? 2 * lane : lane);
    const PairOfFours high = pairs_of(halves ? 2 * lane + 1 : lane + kDepth / 16);
    const float4 fours[4] = {low.x, halves ? high.x : low.y, halves ? low.y : high.x, high.y};
#pragma unroll
    for (int32_t at = 0; at < 4; ++at) {
      float* query = queries[left ? 1 : 0] + 4 * at;
      query[0] = RoundTo<Element>(fours[at].x);
      query[1] = RoundTo<Element>(fours[at].y);
      query[2] = RoundTo<Element>(fours[at].z);
      query[3] = RoundTo<Element>(fours[at].w);
    }
  }

  struct Key {
    uint4 halves[2];
  };
  __device__ Key Load(const Branch& branch) const {
    const int32_t token = branch.Representative(launch.stage.representative);
    const auto* row = reinterpret_cast<const uint4*>(prune.block.kv.Keys(token) +
                                                     int64_t{kv_head} * prune.block.kv.head_bytes);
    return {__ldg(row + lane), __ldg(row + kDepth / 16 + lane)};
  }

  __device__ static float DotWord(uint32_t word, const float* query, float sum) {
    const float2 key = UnpackPair<Element>(word);
    return fmaf(key.y, query[1], fmaf(key.x, query[0], sum));
  }
  // This lane's share of the raw score.
  __device__ float Dot(const Key& key, bool left) const {
    const Query& query = queries[left ? 1 : 0];
    float sums[2];
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      const uint4& words = key.halves[half];
      const float* of_half = query + 8 * half;
      sums[half] = DotWord(words.x, of_half, 0.0F);
      sums[half] = DotWord(words.y, of_half + 2, sums[half]);
      sums[half] = DotWord(words.z, of_half + 4, sums[half]);
      sums[half] = DotWord(words.w, of_half + 6, sums[half]);
    }
    return sums[0] + sums[1];
  }

  __device__ float Run() const {
    const int32_t token = prune.Candidate(candidate, launch.stage.chunk_tokens);
    Branch branch{token, token + launch.stage.chunk_tokens - 1};
    // Teams of a warp end at different levels, and stay for the others.
    while (__any_sync(kWarp, !branch.Ended()) != 0) {
      const bool ended = branch.Ended();
      const Key left_key = Load(ended ? branch : branch.Half(true));
      const Key right_key = Load(ended ? branch : branch.Half(false));
      float left = Dot(left_key, true);
      float right = Dot(right_key, false);
#pragma unroll
      for (int32_t step = 1; step < kLanes; step *= 2) {
        left += __shfl_xor_sync(kWarp, left, step);
        right += __shfl_xor_sync(kWarp, right, step);
      }
      branch = ended ? branch : branch.Half(left >= right);
    }
    float score = Dot(Load(branch), false);
#pragma unroll
    for (int32_t step = 1; step < kLanes; step *= 2) {
      score += __shfl_xor_sync(kWarp, score, step);
    }
    return score;
  }
};

// Candidates (x), KV heads (y), blocks (z): teams of a thread block have neighbouring heads of the
// group, then neighbouring candidates.
template <class Element, int32_t kDepth>
__global__ void __launch_bounds__(kThreads)
    DecodeDescent(const __grid_constant__ PruneLaunch launch) {
  using OfWarp = Team<kDepth>;
  __shared__ Uninitialized<PruneBlock> shared_prune;
  __shared__ Uninitialized<StageLayout> shared_layout;
  CopyToShared(&launch.Block(blockIdx.z), shared_prune.get());
  CopyToShared(&launch.Layout(blockIdx.z), shared_layout.get());
  WaitForEarlier();
  LetLaterStart();
  __syncthreads();
  const PruneBlock& prune = *shared_prune;
  const StageLayout& layout = *shared_layout;
  const int32_t group = launch.shape.GroupSize();
  const int32_t team = static_cast<int32_t>((blockIdx.x * kThreads + threadIdx.x)) / OfWarp::kLanes;
  const int32_t first = (team - team % OfWarp::kTeams) / group;  // of the warp
  if (layout.scored == 0 || first >= layout.candidates) {
    return;
  }
  const int32_t candidate = team / group;
  Path<Element, kDepth> path{launch,
                             prune,
                             layout,
                             static_cast<int32_t>(blockIdx.y),
                             team - candidate * group,
                             min(candidate, layout.candidates - 1),
                             static_cast<int32_t>(threadIdx.x) % OfWarp::kLanes,
                             {}};
  path.LoadQuery(true);
  path.LoadQuery(false);
  const float score = path.Run();
  if (path.lane == 0 && candidate < layout.candidates) {
    const int64_t row = int64_t{path.kv_head} * group + path.head;
    launch.workspace[layout.scores + row * layout.score_stride + candidate] =
        Scaled(launch.shape, score);
  }
}

template <class Element, int32_t kDepth>
void Launch(const PruneLaunch& launch, CallQueue* queue) {
  const int64_t lanes =
      int64_t{launch.most_candidates} * launch.shape.GroupSize() * Team<kDepth>::kLanes;
  LaunchChained<DecodeDescent<Element, kDepth>>(
      {dim3(static_cast<uint32_t>(CeilDiv(lanes, kThreads)),
            static_cast<uint32_t>(launch.shape.num_kv_heads),
            static_cast<uint32_t>(launch.num_blocks)),
       kThreads},
      queue, launch);
}

template <class Element>
void LaunchOfElement(const PruneLaunch& launch, CallQueue* queue) {
  if (launch.shape.head_dim == 64) {
    Launch<Element, 64>(launch, queue);
  } else {
    Launch<Element, 128>(launch, queue);
  }
}

}  // namespace

void LaunchDecodeDescent(const PruneLaunch& launch, CallQueue* queue) {
  if (launch.shape.kv_dtype == DType::kBf16) {
    LaunchOfElement<Bf16>(launch, queue);
  } else {
    LaunchOfElement<F16>(launch, queue);
  }
}

}  // namespace longshore::cuda
