#include "engine/cuda/cluster.cuh"
#include "engine/cuda/decode_merge.cuh"
#include "engine/cuda/decode_warp.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/shared_copy.cuh"

namespace longshore::cuda {
namespace {

constexpr int32_t kWarps = kDecodeWarps;
constexpr int32_t kThreads = 32 * kWarps;

// One KV head and column of a query block: what is known of its softmax.
struct ColumnState {
  float max;
  float sum;
};

// 16 keys for each team of warps: where they are, at which angles.
struct RoundPlaces {
  const std::byte* keys[kWarps * kWarpKeys];  // of KV head 0
  int32_t tokens[kWarps * kWarpKeys];
  int32_t ids[kWarps * kWarpKeys];
};

template <class Element, int32_t kDepth, int32_t kTiles>
struct Shared {
  static constexpr int32_t kColumns = 8 * kTiles;
  using Warp = WarpAttention<Element, kDepth, kTiles>;
  struct Staging {
    typename Warp::Keys keys;
    typename Warp::Values values;
  };

  Uninitialized<AttendBlock> attend;
  Uninitialized<AttendLayout> layout;
  RoundPlaces places[2];
  typename Warp::Queries queries[kWarps];  // of the KV heads
  ColumnState states[kWarps][kColumns];
  bool last;
  union {
    Staging staging[kWarps];
    float acc[kWarps][kColumns][kDepth + 4];
  };
  // Behind it: FourTurns angles[2][teams * kWarpKeys * kDepth / 8].
};

// The share of one thread block: some KV heads, a warp each, and one split of the keys, which the
// teams of such warps take 16 keys at a time each.
template <class Element, int32_t kDepth, int32_t kTiles, bool kTurns>
struct SplitAttention {
  using SharedMemory = Shared<Element, kDepth, kTiles>;
  using Warp = typename SharedMemory::Warp;

  const AttendLaunch& launch;
  SharedMemory& shared;
  FourTurns* angles;  // [2, keys of a round, kDepth / 8]
  const AttendBlock& attend;
  const AttendLayout& layout;
  int32_t first_head;
  int32_t heads;       // of this thread block
  int32_t round_keys;  // of all teams
  int32_t first;
  int32_t end;

  __device__ int32_t Rounds() const { return (max(end - first, 0) + round_keys - 1) / round_keys; }

  // Keys of a round, each by one thread; those behind the end stand for the last, and are not seen.
  __device__ void FindPlaces(int32_t round) const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (round >= Rounds() || thread >= round_keys) {
      return;
    }
    const int32_t rank = min(first + round * round_keys + thread, end - 1);
    const int32_t token = TokenOfRank(attend, SinkTokens(attend), rank);
    RoundPlaces& places = shared.places[round % 2];
    places.keys[thread] = attend.block.kv.Keys(token);
    places.tokens[thread] = token;
    const AttendIds ids =
        MakeAttendIds(attend.rule, attend.block.regions,
                      int64_t{attend.num_selected} * attend.selected_chunk_tokens);
    places.ids[thread] = static_cast<int32_t>(ids.OfKey(attend.block.first_position, token, rank));
  }

  __device__ FourTurns* AnglesOf(int32_t round) const {
    return angles + (round % 2) * round_keys * (kDepth / 8);
  }
  __device__ void FindAngles(int32_t round) const {
    if constexpr (kTurns) {
      const int32_t fours = round < Rounds() ? round_keys * (kDepth / 8) : 0;
      for (auto at = static_cast<int32_t>(threadIdx.x); at < fours; at += kThreads) {
        AnglesOf(round)[at] =
            FourTurnsOf(attend.block.rope, shared.places[round % 2].ids[at / (kDepth / 8)],
                        at % (kDepth / 8) * 4);
      }
    }
  }

  // Sends for a warp's 16 rows of a round, `offset` bytes behind the keys of KV head 0.
  template <class Rows>
  __device__ void Send(int32_t round, int32_t team, int64_t offset, Rows* to) const {
    if (round < Rounds()) {
      const std::byte* const* keys = shared.places[round % 2].keys + team * kWarpKeys;
#pragma unroll 2
      for (int32_t step = 0; step < Rows::kSteps; ++step) {
        const int32_t at = 32 * step + static_cast<int32_t>(threadIdx.x) % 32;
        const int32_t row = at / Rows::kChunks;
        const int32_t chunk = at % Rows::kChunks;
        CopyAsync(to->At(row, chunk), keys[row] + offset + 16 * chunk);
      }
    }
    CommitAsync();
  }

  // All rounds of one warp. Keys and values of the next are sent for as soon as their place is
  // free; its keys' angles and the places after it are found meanwhile, by all threads.
  __device__ void Run(int32_t head, int32_t team, bool works, Warp* warp) const {
    auto& staging = shared.staging[threadIdx.x / 32];
    const int64_t key_offset = int64_t{first_head + head} * attend.block.kv.head_bytes;
    const int64_t value_offset = key_offset + attend.block.kv.value_offset;
    const int32_t rounds = Rounds();
    if (works) {
      Send(0, team, key_offset, &staging.keys);
      Send(0, team, value_offset, &staging.values);
    }
    FindAngles(0);
    FindPlaces(1);
    __syncthreads();
    for (int32_t round = 0; round < rounds; ++round) {
      FindAngles(round + 1);
      typename Warp::Probabilities probabilities[kTiles];
      if (works) {
        WaitAsync<1>();
        __syncwarp();
        if constexpr (kTurns) {
          TurnStaged<Element, kDepth>(
              attend.block.rope, AnglesOf(round) + team * kWarpKeys * (kDepth / 8), &staging.keys);
          __syncwarp();
        }
        Accumulator scores[kTiles];
        warp->Score(shared.queries[head], &staging.keys, scores);
        __syncwarp();
        Send(round + 1, team, key_offset, &staging.keys);
        const int32_t left = end - first - round * round_keys - team * kWarpKeys;
        warp->Softmax(launch.shape,
                      {.tokens = shared.places[round % 2].tokens + team * kWarpKeys,
                       .count = min(kWarpKeys, left),
                       .first_position = attend.block.first_position,
                       .sliding_window_tokens = attend.sliding_window_tokens,
                       .group = launch.shape.GroupSize()},
                      scores, probabilities);
        WaitAsync<1>();
        __syncwarp();
        warp->AddValues(&staging.values, probabilities);
        __syncwarp();
        Send(round + 1, team, value_offset, &staging.values);
      }
      __syncthreads();  // nobody looks at this round's places any more
      FindPlaces(round + 2);
      __syncthreads();
    }
    WaitAsync<0>();
  }
};

// Splits (x), groups of KV heads (y), blocks (z). The splits of a cluster are merged through each
// other's shared memory; the last cluster to finish merges what all of them have written.
template <class Element, int32_t kDepth, int32_t kTiles, bool kTurns>
__global__ void __launch_bounds__(kThreads, kDepth <= 128 && kTiles == 1 && kTurns ? 2 : 1)
    DecodeAttend(const __grid_constant__ AttendLaunch launch) {
  using SharedMemory = Shared<Element, kDepth, kTiles>;
  extern __shared__ __align__(16) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory*>(shared_bytes);
  CopyToShared(launch.blocks + blockIdx.z, shared.attend.get());
  CopyToShared(launch.layouts + blockIdx.z, shared.layout.get());
  __syncthreads();
  const AttendBlock& attend = *shared.attend;
  const AttendLayout& layout = *shared.layout;
  const AttentionShape& shape = launch.shape;
  const auto split = static_cast<int32_t>(blockIdx.x);
  if (split >= layout.splits) {
    return;  // and so does the whole cluster
  }
  const DecodeTeams teams = DecodeTeamsOf(shape);
  const int32_t first_head = static_cast<int32_t>(blockIdx.y) * teams.heads;
  const int32_t heads = min(teams.heads, shape.num_kv_heads - first_head);
  const int32_t first = split * layout.keys_of_split;
  const SplitAttention<Element, kDepth, kTiles, kTurns> work{
      launch,
      shared,
      reinterpret_cast<FourTurns*>(shared_bytes + sizeof(SharedMemory)),
      attend,
      layout,
      first_head,
      heads,
      teams.teams * kWarpKeys,
      first,
      static_cast<int32_t>(Min(layout.keys, int64_t{first} + layout.keys_of_split))};
  const int32_t warp_index = static_cast<int32_t>(threadIdx.x) / 32;
  const int32_t head = warp_index % teams.heads;
  const int32_t team = warp_index / teams.heads;
  typename SharedMemory::Warp warp(layout.rows);
  work.FindPlaces(0);
  const AttendIds ids = MakeAttendIds(attend.rule, attend.block.regions,
                                      int64_t{attend.num_selected} * attend.selected_chunk_tokens);
  LoadColumns<Element, kDepth>(
      {launch.q, shape, attend.block, 0, 1, attend.block.rows, 1.0F}, first_head, heads,
      [&](int64_t position) { return ids.OfQuery(position); },
      [&](int32_t of_head, int32_t column, int32_t index, float4 value) {
        auto& queries = shared.queries[of_head];
        StoreFour(value, queries.at + column * queries.kPitch + index);
      });
  __syncthreads();
  work.Run(head, team, head < heads && team < teams.teams, &warp);
  __syncthreads();  // staging makes room for the sums
  warp.Give(
      [&](int32_t column, float max, float sum) {
        shared.states[warp_index][column] = {max, sum};
      },
      [&](int32_t column, int32_t dim, float2 values) {
        *reinterpret_cast<float2*>(&shared.acc[warp_index][column][dim]) = values;
      });
  const Cluster cluster;
  cluster.Sync();
  const int32_t blocks = cluster.Blocks();
  const int32_t rank = cluster.Rank();
  const int32_t part = split / blocks;
  const int32_t parts = layout.splits / blocks;
  const int64_t rows = int64_t{layout.rows} * shape.num_kv_heads;
  const int32_t fours = heads * layout.rows * (kDepth / 4);
  const int32_t first_four = rank * kThreads + static_cast<int32_t>(threadIdx.x);
  for (int32_t at = first_four; at < fours; at += blocks * kThreads) {
    const MergePlace place = PlaceOfFour<kDepth>(at, layout.rows);
    Merged merged;
#pragma unroll 4
    for (int32_t block = 0; block < blocks; ++block) {
      const SharedMemory& other = *cluster.Of(block, &shared);
      for (int32_t of_team = 0; of_team < teams.teams; ++of_team) {
        const int32_t from = of_team * teams.heads + place.head;
        const ColumnState state = other.states[from][place.column];
        merged.Add(state.max, state.sum,
                   *reinterpret_cast<const float4*>(&other.acc[from][place.column][place.dim]));
      }
    }
    const int64_t row = part * rows + int64_t{first_head + place.head} * layout.rows + place.column;
    __stcg(reinterpret_cast<float4*>(launch.workspace + layout.acc + row * kDepth + place.dim),
           merged.acc);
    if (place.dim == 0) {
      __stcg(launch.workspace + layout.max + row, merged.max);
      __stcg(launch.workspace + layout.sum + row, merged.sum);
    }
  }
  __threadfence();
  cluster.Sync();  // also: nobody reads this block's memory any more
  if (rank == 0 && threadIdx.x == 0) {
    // Counters go back to 0 by themselves.
    int32_t* finished = launch.counters + blockIdx.z * gridDim.y + blockIdx.y;
    const bool last = atomicAdd(finished, 1) == parts - 1;
    if (last) {
      *finished = 0;
    }
    for (int32_t block = 0; block < blocks; ++block) {
      cluster.Of(block, &shared)->last = last;
    }
  }
  cluster.Sync();
  if (!shared.last) {
    return;
  }
  __threadfence();
  for (int32_t at = first_four; at < fours; at += blocks * kThreads) {
    const MergePlace place = PlaceOfFour<kDepth>(at, layout.rows);
    WriteFour<kDepth>(launch, attend, layout, parts, first_head + place.head, place);
  }
}

template <class Element, int32_t kDepth, int32_t kTiles, bool kTurns>
void Launch(const AttendLaunch& launch, cudaStream_t stream) {
  const DecodeTeams teams = DecodeTeamsOf(launch.shape);
  const auto kernel = DecodeAttend<Element, kDepth, kTiles, kTurns>;
  const int64_t angles = kTurns ? int64_t{2} * teams.teams * kWarpKeys * (kDepth / 8) : 0;
  const auto bytes =
      static_cast<int32_t>(sizeof(Shared<Element, kDepth, kTiles>) + angles * sizeof(FourTurns));
  // Shows as a launch that fails.
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<uint32_t>(launch.most_splits),
                        static_cast<uint32_t>(CeilDiv(launch.shape.num_kv_heads, teams.heads)),
                        static_cast<uint32_t>(launch.num_blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<uint32_t>(launch.cluster), 1, 1};
  config.attrs = &cluster;
  config.numAttrs = launch.cluster > 1 ? 1 : 0;
  (void)cudaLaunchKernelEx(&config, kernel, launch);
}

template <class Element, int32_t kDepth>
void LaunchOfDepth(const AttendLaunch& launch, cudaStream_t stream) {
  if constexpr (kDepth <= 128) {
    if (launch.most_rows > 8) {
      launch.turns ? Launch<Element, kDepth, 2, true>(launch, stream)
                   : Launch<Element, kDepth, 2, false>(launch, stream);
      return;
    }
  }
  launch.turns ? Launch<Element, kDepth, 1, true>(launch, stream)
               : Launch<Element, kDepth, 1, false>(launch, stream);
}

template <class Element>
void LaunchOfElement(const AttendLaunch& launch, cudaStream_t stream) {
  switch (launch.shape.head_dim) {
    case 64: LaunchOfDepth<Element, 64>(launch, stream); return;
    case 128: LaunchOfDepth<Element, 128>(launch, stream); return;
    case 192: LaunchOfDepth<Element, 192>(launch, stream); return;
    default: LaunchOfDepth<Element, 256>(launch, stream); return;
  }
}

}  // namespace

void LaunchDecodeAttend(const AttendLaunch& launch, cudaStream_t stream) {
  if (launch.shape.kv_dtype == DType::kBf16) {
    LaunchOfElement<Bf16>(launch, stream);
  } else {
    LaunchOfElement<F16>(launch, stream);
  }
}

}  // namespace longshore::cuda
