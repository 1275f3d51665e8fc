#include "engine/cuda/decode_merge.cuh"
#include "engine/cuda/decode_warp.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/launch.cuh"
#include "engine/cuda/shared_copy.cuh"

namespace longshore::cuda {
namespace {

constexpr int32_t kWarps = 8;
constexpr int32_t kThreads = 32 * kWarps;

// The 16 keys of a warp's tile.
struct TilePlaces {
  const std::byte* keys[kWarpKeys];
  int32_t tokens[kWarpKeys];
  int32_t ids[kWarpKeys];
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
  typename Warp::Queries queries;
  TilePlaces places[kWarps][2];
  float max[kWarps][kColumns];
  float sum[kWarps][kColumns];
  bool last;
  Uninitialized<Merged> halves[kThreads];
  union {
    Staging staging[kWarps];
    float acc[kWarps][kColumns][kDepth + 4];
  };
};

// One KV head's keys [first, end) of a block, of which each warp takes every kWarps-th tile.
struct Split {
  const AttendBlock& attend;
  int64_t head_offset;  // bytes from a token's first key to this head's
  int32_t sink_tokens;
  int32_t first;
  int32_t end;

  // Made anew each time: registers are dear.
  __device__ AttendIds Ids() const {
    return MakeAttendIds(attend.rule, attend.block.regions,
                         int64_t{attend.num_selected} * attend.selected_chunk_tokens);
  }
  __device__ int32_t Tiles() const { return (end - first + kWarpKeys - 1) / kWarpKeys; }

  // Keys of a tile, each by one lane; those behind the end stand for the last, and are not seen.
  // Behind a __syncwarp() of the caller's.
  __device__ void Find(int32_t tile, TilePlaces* places) const {
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
    if (lane < kWarpKeys) {
      const int32_t rank = min(first + tile * kWarpKeys + lane, end - 1);
      const int32_t token = TokenOfRank(attend, sink_tokens, rank);
      places->keys[lane] = attend.block.kv.Keys(token) + head_offset;
      places->tokens[lane] = token;
      places->ids[lane] =
          static_cast<int32_t>(Ids().OfKey(attend.block.first_position, token, rank));
    }
  }
};

// Until a tile's keys are there, and turned. Its values are still on their way.
template <class Element, int32_t kDepth, int32_t kAhead, bool kTurns, class Keys>
__device__ void AwaitKeys(const AttendBlock& attend, const TilePlaces& places, Keys* keys) {
  const auto wait = [] {
    WaitAsync<1>();
    __syncwarp();
  };
  if constexpr (kTurns) {
    TurnStaged<Element, kDepth, kAhead>(attend.block.rope, places.ids, keys, wait);
    __syncwarp();
  } else {
    wait();
  }
}

// The tiles of one warp. The keys of the first are there, its values have been sent for; those of
// the next are as soon as their place is free. Nothing here waits for other warps.
template <class Element, bool kTurns, class Staging, class Warp>
__device__ void RunTiles(const AttendLaunch& launch,
                         const Split& split,
                         const typename Warp::Queries& queries,
                         TilePlaces (&places)[2],
                         Staging* staging,
                         Warp* warp) {
  const AttendBlock& attend = split.attend;
  const int64_t value_offset = attend.block.kv.value_offset;
  const int32_t tiles = split.Tiles();
  const int32_t i = warp->lane / 4;
  for (int32_t tile = static_cast<int32_t>(threadIdx.x) / 32; tile < tiles; tile += kWarps) {
    const bool more = tile + kWarps < tiles;
    const TilePlaces& here = places[tile / kWarps % 2];
    TilePlaces& next = places[tile / kWarps % 2 ^ 1];
    if (more) {
      split.Find(tile + kWarps, &next);
    }
    Accumulator scores[Warp::kColumns / 8];
    const auto score = [&](int32_t g, const uint4& upper, const uint4& lower) {
      warp->Score(queries, g, upper, lower, scores);
    };
    if (tile >= kWarps) {
      AwaitKeys<Element, Warp::kDim, 0, kTurns>(attend, here, &staging->keys);
    }
    ForEachChunk(&staging->keys, score);
    __syncwarp();
    if (more) {
      staging->keys.SendFor(next.keys, 0);
    }
    CommitAsync();
    typename Warp::Probabilities probabilities[Warp::kColumns / 8];
    warp->Softmax(launch.shape,
                  {.tokens = {here.tokens[i], here.tokens[i + 8]},
                   .count = min(kWarpKeys, split.end - split.first - tile * kWarpKeys),
                   .first_position = attend.block.first_position,
                   .sliding_window_tokens = attend.sliding_window_tokens,
                   .group = launch.shape.GroupSize()},
                  scores, probabilities);
    WaitAsync<1>();
    __syncwarp();
    warp->AddValues(&staging->values, probabilities);
    __syncwarp();
    if (more) {
      staging->values.SendFor(next.keys, value_offset);
    }
    CommitAsync();
  }
  WaitAsync<0>();
}

// The last split of a KV head to finish merges what all of them have written.
template <int32_t kDepth, class SharedMemory>
__device__ void MergeSplits(const AttendLaunch& launch, SharedMemory* shared) {
  const AttendLayout& layout = *shared->layout;
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  __syncthreads();
  if (thread == 0) {
    __threadfence();
    int32_t* finished = launch.counters + blockIdx.z * gridDim.y + blockIdx.y;
    shared->last = atomicAdd(finished, 1) == layout.splits - 1;
    if (shared->last) {
      *finished = 0;  // as the next launch wants it
    }
    __threadfence();
  }
  __syncthreads();
  if (!shared->last) {
    return;
  }
  const SplitResults<kDepth> results(launch, layout, kv_head);
  const int32_t fours = layout.rows * (kDepth / 4);
  const auto read = [&](int32_t first, int32_t end, const MergePlace& place) {
    return MergeParts<8>(first, end, [&](int32_t part) { return results.Read(part, place); });
  };
  const int32_t half = layout.splits / 2;
  if (2 * fours > kThreads || half == 0) {
    for (int32_t at = thread; at < fours; at += kThreads) {
      const MergePlace place = PlaceOfFour<kDepth>(at);
      WriteFour<kDepth>(launch, *shared->attend, kv_head, place, read(0, layout.splits, place));
    }
    return;
  }
  // Threads enough for half of the splits each.
  const bool second = thread >= kThreads / 2;
  const MergePlace place = PlaceOfFour<kDepth>(thread % (kThreads / 2));
  if (place.column < layout.rows) {
    *shared->halves[thread] = second ? read(half, layout.splits, place) : read(0, half, place);
  }
  __syncthreads();
  if (!second && place.column < layout.rows) {
    WriteFour<kDepth>(launch, *shared->attend, kv_head, place,
                      MergeParts<2>(0, 2, [&](int32_t part) {
                        return *shared->halves[thread + part * (kThreads / 2)];
                      }));
  }
}

// Splits (x), KV heads (y), blocks (z).
template <class Element, int32_t kDepth, int32_t kTiles, bool kTurns>
__global__ void __launch_bounds__(kThreads, kDepth <= 128 && kTiles == 1 ? 2 : 1)
    DecodeAttend(const __grid_constant__ AttendLaunch launch) {
  using SharedMemory = Shared<Element, kDepth, kTiles>;
  extern __shared__ __align__(16) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory*>(shared_bytes);
  CopyToShared(&launch.Block(blockIdx.z), shared.attend.get());
  CopyToShared(&launch.Layout(blockIdx.z), shared.layout.get());
  WaitForEarlier();
  LetLaterStart();
  __syncthreads();
  const AttendBlock& attend = *shared.attend;
  const AttendLayout& layout = *shared.layout;
  const auto split_index = static_cast<int32_t>(blockIdx.x);
  if (split_index >= layout.splits) {
    return;
  }
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const int32_t warp_index = static_cast<int32_t>(threadIdx.x) / 32;
  const int32_t first = split_index * layout.keys_of_split;
  const Split split{attend, int64_t{kv_head} * attend.block.kv.head_bytes, SinkTokens(attend),
                    first,
                    static_cast<int32_t>(Min(layout.keys, int64_t{first} + layout.keys_of_split))};
  auto& staging = shared.staging[warp_index];
  TilePlaces(&places)[2] = shared.places[warp_index];
  if (warp_index < split.Tiles()) {
    split.Find(warp_index, &places[0]);
    __syncwarp();
    staging.keys.SendFor(places[0].keys, 0);
    CommitAsync();
    staging.values.SendFor(places[0].keys, attend.block.kv.value_offset);
  }
  CommitAsync();
  LoadColumns<kDepth>(
      {launch.q, launch.shape, attend.block, 0, 1, attend.block.rows, 1.0F}, kv_head, 1,
      [&](int64_t position) { return split.Ids().OfQuery(position); },
      [&](int32_t, int32_t column, int32_t index, float4 value) {
        StoreFour(value, shared.queries.at + column * shared.queries.kPitch + index);
      });
  if (warp_index < split.Tiles()) {
    AwaitKeys<Element, kDepth, 4, kTurns>(attend, places[0], &staging.keys);
  }
  __syncthreads();
  typename SharedMemory::Warp warp(layout.rows);
  RunTiles<Element, kTurns>(launch, split, shared.queries, places, &staging, &warp);
  __syncthreads();  // staging makes room for the sums
  warp.Give(
      [&](int32_t column, float max, float sum) {
        shared.max[warp_index][column] = max;
        shared.sum[warp_index][column] = sum;
      },
      [&](int32_t column, int32_t dim, float2 values) {
        *reinterpret_cast<float2*>(&shared.acc[warp_index][column][dim]) = values;
      });
  __syncthreads();
  const SplitResults<kDepth> results(launch, layout, kv_head);
  for (auto at = static_cast<int32_t>(threadIdx.x); at < layout.rows * (kDepth / 4);
       at += kThreads) {
    const MergePlace of = PlaceOfFour<kDepth>(at);
    const Merged merged = MergeParts<kWarps>(0, kWarps, [&](int32_t from) {
      return Merged{shared.max[from][of.column], shared.sum[from][of.column],
                    *reinterpret_cast<const float4*>(&shared.acc[from][of.column][of.dim])};
    });
    if (layout.splits == 1) {
      WriteFour<kDepth>(launch, attend, kv_head, of, merged);
    } else {
      results.Write(split_index, of, merged);
    }
  }
  if (layout.splits > 1) {
    MergeSplits<kDepth>(launch, &shared);
  }
}

template <class Element, int32_t kDepth, int32_t kTiles, bool kTurns>
void Launch(const AttendLaunch& launch, CallQueue* queue) {
  LaunchChained<DecodeAttend<Element, kDepth, kTiles, kTurns>>(
      {dim3(static_cast<uint32_t>(launch.most_splits),
            static_cast<uint32_t>(launch.shape.num_kv_heads),
            static_cast<uint32_t>(launch.num_blocks)),
       kThreads, sizeof(Shared<Element, kDepth, kTiles>)},
      queue, launch);
}

template <class Element, int32_t kDepth>
void LaunchOfDepth(const AttendLaunch& launch, CallQueue* queue) {
  if constexpr (kDepth <= 128) {
    if (launch.most_rows > 8) {
      launch.turns ? Launch<Element, kDepth, 2, true>(launch, queue)
                   : Launch<Element, kDepth, 2, false>(launch, queue);
      return;
    }
  }
  launch.turns ? Launch<Element, kDepth, 1, true>(launch, queue)
               : Launch<Element, kDepth, 1, false>(launch, queue);
}

template <class Element>
void LaunchOfElement(const AttendLaunch& launch, CallQueue* queue) {
  switch (launch.shape.head_dim) {
    case 64: LaunchOfDepth<Element, 64>(launch, queue); return;
    case 128: LaunchOfDepth<Element, 128>(launch, queue); return;
    case 192: LaunchOfDepth<Element, 192>(launch, queue); return;
    default: LaunchOfDepth<Element, 256>(launch, queue); return;
  }
}

}  // namespace

void LaunchDecodeAttend(const AttendLaunch& launch, CallQueue* queue) {
  if (launch.shape.kv_dtype == DType::kBf16) {
    LaunchOfElement<Bf16>(launch, queue);
  } else {
    LaunchOfElement<F16>(launch, queue);
  }
}

}  // namespace longshore::cuda
