#include "engine/cuda/kernels.h"
#include "engine/cuda/prefill_attend.cuh"
#include "engine/cuda/prefill_queries.cuh"
#include "engine/cuda/row_end.cuh"
#include "engine/cuda/shared_copy.cuh"
#include "engine/cuda/turn_panels.cuh"

namespace longshore::cuda {
namespace {

// Where a key is, and which id it has.
struct KeyPlaces {
  const std::byte* keys[kTileKeys];  // of KV head 0
  int32_t tokens[kTileKeys];
  int32_t ids[kTileKeys];
};

// Some rows of one KV head and one split of the keys: what a thread block works on. In shared
// memory, since registers are dear.
struct Part {
  int32_t kv_head;
  int32_t split;
  int32_t first_row;  // of the block
  int32_t rows;
  int32_t first_key;
  int32_t end_key;
  int32_t before;  // tiles that the thread block has had before
  int32_t oldest;  // positions of the first and the last row
  int32_t newest;
};

template <int32_t kDepth, int32_t kWarps>
struct Shared {
  static constexpr int32_t kKeyStages = 3;
  static constexpr int32_t kValueStages = 2;
  static constexpr int32_t kPlaces = 4;
  using Queries = Panels<32 * kWarps, kDepth>;
  using Keys = Panels<kTileKeys, kDepth>;

  Queries queries;
  Keys keys[kKeyStages];
  Keys values[kValueStages];
  KeyPlaces places[kPlaces];
  // Tiles are there, and are used no longer.
  PhaseBarrier keys_there[kKeyStages];
  PhaseBarrier keys_used[kKeyStages];
  PhaseBarrier values_there[kValueStages];
  PhaseBarrier values_used[kValueStages];
  Uninitialized<AttendBlock> attend;
  Uninitialized<AttendLayout> layout;
  Part part;
};

// Warps that bring keys and values to shared memory and turn keys, behind those that attend.
constexpr int32_t kMovers = 4;
constexpr int32_t kMoverThreads = 32 * kMovers;

// The attention of a part.
//
// While tile t of the keys is attended to, tile t + 1, which has arrived, is turned, and tile t + 2
// is on its way; values come a tile later. Movers and attending warps wait for each other's tiles
// alone, so that attending warps drift apart: one's exponentials run beside another's products.
template <class Element, int32_t kDepth, int32_t kWarps, bool kTurns, bool kSplits>
struct TileAttention {
  using SharedMemory = Shared<kDepth, kWarps>;
  using Warp = WarpRows<Element, kDepth, 32 * kWarps, kSplits>;

  const AttendLaunch& launch;
  SharedMemory& shared;
  const AttendBlock& attend;
  const AttendLayout& layout;
  const Part& part;

  // Not kept: it is long, and needed seldom.
  __device__ AttendIds Ids() const {
    return MakeAttendIds(attend.rule, attend.block.regions,
                         int64_t{attend.num_selected} * attend.selected_chunk_tokens);
  }
  __device__ int32_t Tiles() const {
    return (part.end_key - part.first_key + kTileKeys - 1) / kTileKeys;
  }
  __device__ static int32_t Mover() { return static_cast<int32_t>(threadIdx.x) - 32 * kWarps; }

  __device__ KeyPlaces& PlacesOf(int32_t tile) const {
    return shared.places[(part.before + tile) % SharedMemory::kPlaces];
  }
  __device__ int32_t KeyStage(int32_t tile) const {
    return (part.before + tile) % SharedMemory::kKeyStages;
  }
  __device__ int32_t KeyPhase(int32_t tile) const {
    return (part.before + tile) / SharedMemory::kKeyStages;
  }
  __device__ int32_t ValueStage(int32_t tile) const {
    return (part.before + tile) % SharedMemory::kValueStages;
  }
  __device__ int32_t ValuePhase(int32_t tile) const {
    return (part.before + tile) / SharedMemory::kValueStages;
  }

  // Keys behind the end stand for the last, and are not seen.
  __device__ void FindPlaces(int32_t tile) const {
    const int32_t key = Mover();
    if (tile >= Tiles() || key < 0 || key >= kTileKeys) {
      return;
    }
    const int32_t rank = min(part.first_key + tile * kTileKeys + key, part.end_key - 1);
    const int32_t token = TokenOfRank(attend, SinkTokens(attend), rank);
    KeyPlaces& places = PlacesOf(tile);
    places.keys[key] = attend.block.kv.Keys(token);
    places.tokens[key] = token;
    places.ids[key] = static_cast<int32_t>(Ids().OfKey(attend.block.first_position, token, rank));
  }

  __device__ __forceinline__ void Send(int32_t tile,
                                       int32_t offset,
                                       typename SharedMemory::Keys* to) const {
    constexpr int32_t kChunks = kDepth / 8;
    constexpr int32_t kRowStep = kMoverThreads / kChunks;
    static_assert(kRowStep % 8 == 0);  // rows that are swapped alike
    const int32_t row = Mover() / kChunks;
    const int32_t chunk = Mover() % kChunks;
    const std::byte* const* keys = PlacesOf(tile).keys + row;
    uint4* at = to->At(row, chunk);
#pragma unroll
    for (int32_t step = 0; step < kTileKeys / kRowStep; ++step) {
      CopyAsync(at + 8 * kRowStep * step, keys[kRowStep * step] + offset + 16 * chunk);
    }
  }
  // Each into a place that is free.
  __device__ void SendKeys(int32_t tile) const {
    if (tile < Tiles()) {
      if (KeyPhase(tile) > 0) {
        AwaitPhase(&shared.keys_used[KeyStage(tile)], KeyPhase(tile) - 1);
      }
      Send(tile, part.kv_head * attend.block.kv.head_bytes, &shared.keys[KeyStage(tile)]);
    }
    CommitAsync();
  }
  __device__ void SendValues(int32_t tile) const {
    if (ValuePhase(tile) > 0) {
      AwaitPhase(&shared.values_used[ValueStage(tile)], ValuePhase(tile) - 1);
    }
    Send(tile,
         part.kv_head * attend.block.kv.head_bytes +
             static_cast<int32_t>(attend.block.kv.value_offset),
         &shared.values[ValueStage(tile)]);
    CommitAsync();
  }

  // All tiles, by the movers. The places of the first two are found.
  __device__ void Move() const {
    const int32_t tiles = Tiles();
    SendKeys(0);
    for (int32_t tile = 0; tile < tiles; ++tile) {
      SendKeys(tile + 1);
      SendValues(tile);
      FindPlaces(tile + 2);  // over those of a tile whose values are used
      WaitAsync<2>();        // for the values of the tile before, and this one's keys
      FenceForProducts();
      if (tile > 0) {
        TellDone(&shared.values_there[ValueStage(tile - 1)]);
      }
      NamedBarrier<kMoverThreads>(0);
      if constexpr (kTurns) {
        TurnPanels<Element, kMoverThreads>(attend.block.rope, PlacesOf(tile).ids, Mover(),
                                           &shared.keys[KeyStage(tile)]);
        FenceForProducts();
      }
      TellDone(&shared.keys_there[KeyStage(tile)]);
    }
    WaitAsync<0>();
    FenceForProducts();
    TellDone(&shared.values_there[ValueStage(tiles - 1)]);
  }

  __device__ void LoadQueries() const {
    const AttentionShape& shape = launch.shape;
    const int32_t group = shape.GroupSize();
    LoadTileQueries<Element, kDepth>(
        launch.q, attend.block.rope, 1.0F, 16 * Warp::kRowTiles * kWarps,
        [&](int32_t row) {
          if (row >= part.rows) {
            return TileQuery{};
          }
          const int32_t of_block = (part.first_row + row) / group;
          const int32_t head = part.kv_head * group + (part.first_row + row) % group;
          return TileQuery{int64_t{attend.block.first_row + of_block} * shape.num_heads + head,
                           Ids().OfQuery(attend.block.first_position + of_block)};
        },
        [&](int32_t row, int32_t index, float4 value) {
          StoreFourAt<Element>(&shared.queries, row, index, value);
        });
  }

  __device__ TileSight SightOf(int32_t tile) const {
    const KeyPlaces& places = PlacesOf(tile);
    const int32_t keys = min(kTileKeys, part.end_key - part.first_key - tile * kTileKeys);
    const bool all = keys == kTileKeys && places.tokens[kTileKeys - 1] <= part.oldest &&
                     (attend.sliding_window_tokens == 0 ||
                      places.tokens[0] > part.newest - attend.sliding_window_tokens);
    return {places.tokens,
            keys,
            all,
            part.first_row,
            static_cast<int32_t>(attend.block.first_position),
            static_cast<int32_t>(Min(attend.sliding_window_tokens, INT32_MAX))};
  }

  // Until no lane of the warp needs a place any more.
  __device__ static void Release(PhaseBarrier* used) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      TellDone(used);
    }
  }

  // All tiles, by an attending warp.
  __device__ void Attend(Warp* warp) const {
    // The same for all, as the compiler must see to let products run on.
    const int32_t tiles = __shfl_sync(0xffffffffu, Tiles(), 0);
    typename Warp::Scores scores[Warp::kRowTiles];
    for (int32_t tile = 0; tile < tiles; ++tile) {
      AwaitPhase(&shared.keys_there[KeyStage(tile)], KeyPhase(tile));
      warp->Begin(&shared.queries, &shared.keys[KeyStage(tile)], scores);
      warp->End(
          SightOf(tile), &shared.queries, &shared.keys[KeyStage(tile)],
          &shared.values[ValueStage(tile)],
          [&] { AwaitPhase(&shared.values_there[ValueStage(tile)], ValuePhase(tile)); },
          [&] { Release(&shared.keys_used[KeyStage(tile)]); }, scores);
      Warp::Finish();
      Release(&shared.values_used[ValueStage(tile)]);
    }
  }
};

// What rows of a split have found, to be merged with other splits.
template <class Work>
__device__ void PutSplit(const Work& work, const typename Work::Warp& warp) {
  float* workspace = work.launch.workspace;
  const Part& part = work.part;
  const AttendLayout& layout = work.layout;
  const int64_t first =
      (int64_t{part.split} * work.launch.shape.num_kv_heads + part.kv_head) * layout.rows +
      part.first_row;
  warp.Give(
      [&](int32_t row, float max, float sum) {
        if (row < part.rows && threadIdx.x % 4 == 0) {
          workspace[layout.max + first + row] = max;
          workspace[layout.sum + first + row] = sum;
        }
        return 1.0F;
      },
      [&](int32_t row, int32_t dim, float2 two) {
        if (row < part.rows) {
          const int64_t at = layout.acc + (first + row) * work.launch.shape.head_dim + dim;
          *reinterpret_cast<float2*>(workspace + at) = two;
        }
      });
}

// What rows have found where there is one split: the output.
template <class Work>
__device__ void PutOutput(const Work& work, const typename Work::Warp& warp) {
  const AttendLaunch& launch = work.launch;
  const Part& part = work.part;
  const int32_t group = launch.shape.GroupSize();
  const auto head_of = [&](int32_t row) {
    return part.kv_head * group + (part.first_row + row) % group;
  };
  const auto index_of = [&](int32_t row) {
    return int64_t{work.attend.block.first_row + (part.first_row + row) / group} *
               launch.shape.num_heads +
           head_of(row);
  };
  warp.Give(
      [&](int32_t row, float max, float sum) {
        const RowEnd end = EndOf(launch, head_of(row), max, sum);
        if (row < part.rows && threadIdx.x % 4 == 0 && launch.log_sum_exp != nullptr) {
          launch.log_sum_exp[index_of(row)] = end.log_sum_exp;
        }
        return end.factor;
      },
      [&](int32_t row, int32_t dim, float2 two) {
        if (row < part.rows) {
          StoreTwo(launch.out.dtype, two, launch.out.data,
                   index_of(row) * launch.shape.head_dim + dim);
        }
      });
}

__device__ Part PartOf(const AttendLaunch& launch,
                       const AttendBlock& attend,
                       const AttendLayout& layout,
                       int32_t split,
                       int32_t first_row,
                       int32_t rows,
                       int32_t before) {
  const int32_t group = launch.shape.GroupSize();
  const auto position = static_cast<int32_t>(attend.block.first_position);
  const int32_t first_key = split * layout.keys_of_split;
  return {static_cast<int32_t>(blockIdx.y),
          split,
          first_row,
          rows,
          first_key,
          static_cast<int32_t>(Min(layout.keys, int64_t{first_key} + layout.keys_of_split)),
          before,
          position + first_row / group,
          position + (first_row + rows - 1) / group};
}

template <class SharedMemory>
__device__ void InitBarriers(int32_t warps, SharedMemory* shared) {
  if (threadIdx.x == 0) {
    for (int32_t stage = 0; stage < SharedMemory::kKeyStages; ++stage) {
      InitPhases(&shared->keys_there[stage], kMoverThreads);
      InitPhases(&shared->keys_used[stage], warps);
    }
    for (int32_t stage = 0; stage < SharedMemory::kValueStages; ++stage) {
      InitPhases(&shared->values_there[stage], kMoverThreads);
      InitPhases(&shared->values_used[stage], warps);
    }
  }
}

// Row tiles and splits (x), KV heads (y), blocks (z).
template <class Element, int32_t kDepth, int32_t kWarps, bool kTurns, bool kSplits>
__global__ void __launch_bounds__(32 * (kWarps + kMovers), 1)
    PrefillAttend(const __grid_constant__ AttendLaunch launch) {
  using Work = TileAttention<Element, kDepth, kWarps, kTurns, kSplits>;
  using Warp = typename Work::Warp;
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<typename Work::SharedMemory*>(shared_bytes);
  CopyToShared(launch.blocks + blockIdx.z, shared.attend.get());
  CopyToShared(launch.layouts + blockIdx.z, shared.layout.get());
  InitBarriers(kWarps, &shared);
  __syncthreads();
  const AttendBlock& attend = *shared.attend;
  const AttendLayout& layout = *shared.layout;
  constexpr int32_t kRows = 32 * kWarps;
  const int32_t row_tiles = (layout.rows + kRows - 1) / kRows;
  const int32_t split = static_cast<int32_t>(blockIdx.x) / row_tiles;
  if (split >= layout.splits) {
    return;
  }
  const int32_t block_row = static_cast<int32_t>(blockIdx.x) % row_tiles * kRows;
  const bool moves = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0) >= kWarps;
  const Work work{launch, shared, attend, layout, shared.part};
  // As many rows at once as warps have registers for.
  constexpr int32_t kPassRows = 16 * Warp::kRowTiles * kWarps;
  int32_t before = 0;
#pragma unroll 1
  for (int32_t pass_row = 0; pass_row < kRows; pass_row += kPassRows) {
    const int32_t first_row = block_row + pass_row;
    if (first_row >= layout.rows) {
      return;
    }
    __syncthreads();  // nobody needs the part or the queries of the rows before
    if (threadIdx.x == 0) {
      shared.part = PartOf(launch, attend, layout, split, first_row,
                           min(kPassRows, layout.rows - first_row), before);
    }
    __syncthreads();
    work.FindPlaces(0);
    work.FindPlaces(1);
    work.LoadQueries();
    FenceForProducts();
    before += work.Tiles();
    __syncthreads();
    // All registers of an SM.
    if (moves) {
      if constexpr (kWarps == 8) {
        LeaveRegisters<56>();
      }
      work.Move();
    } else {
      if constexpr (kWarps == 8) {
        TakeRegisters<224>();
      }
      Warp warp(launch.shape);
      work.Attend(&warp);
      if (layout.splits > 1) {
        PutSplit(work, warp);
      } else {
        PutOutput(work, warp);
      }
    }
  }
}

template <class Element, int32_t kDepth, int32_t kWarps, bool kTurns, bool kSplits>
void Launch(const AttendLaunch& launch, cudaStream_t stream) {
  const int64_t tiles = CeilDiv(launch.most_rows, 32 * kWarps) * launch.most_splits;
  const dim3 grid(static_cast<uint32_t>(tiles), static_cast<uint32_t>(launch.shape.num_kv_heads),
                  static_cast<uint32_t>(launch.num_blocks));
  const auto kernel = PrefillAttend<Element, kDepth, kWarps, kTurns, kSplits>;
  constexpr size_t kBytes = sizeof(Shared<kDepth, kWarps>);
  static_assert(kBytes <= kPrefillSharedBytes);
  // Shows as a launch that fails.
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kBytes));
  kernel<<<grid, 32 * (kWarps + kMovers), kBytes, stream>>>(launch);
}

template <class Element, int32_t kDepth, bool kTurns, bool kSplits>
void LaunchOfSplits(const AttendLaunch& launch, cudaStream_t stream) {
  if (launch.most_rows <= 128) {
    Launch<Element, kDepth, 4, kTurns, kSplits>(launch, stream);
  } else {
    Launch<Element, kDepth, 8, kTurns, kSplits>(launch, stream);
  }
}

template <class Element, int32_t kDepth, bool kTurns>
void LaunchOfTurns(const AttendLaunch& launch, cudaStream_t stream) {
  // An output that is rounded as coarsely cannot show what rounding the probabilities does.
  if (launch.out.dtype != DType::kBf16 && launch.out.dtype != launch.shape.kv_dtype) {
    LaunchOfSplits<Element, kDepth, kTurns, true>(launch, stream);
  } else {
    LaunchOfSplits<Element, kDepth, kTurns, false>(launch, stream);
  }
}

template <class Element, int32_t kDepth>
void LaunchOfDepth(const AttendLaunch& launch, cudaStream_t stream) {
  if (launch.turns) {
    LaunchOfTurns<Element, kDepth, true>(launch, stream);
  } else {
    LaunchOfTurns<Element, kDepth, false>(launch, stream);
  }
}

template <class Element>
void LaunchOfElement(const AttendLaunch& launch, cudaStream_t stream) {
  if (launch.shape.head_dim == 64) {
    LaunchOfDepth<Element, 64>(launch, stream);
  } else {
    LaunchOfDepth<Element, 128>(launch, stream);
  }
}

}  // namespace

void LaunchPrefillAttend(const AttendLaunch& launch, cudaStream_t stream) {
  if (launch.shape.kv_dtype == DType::kBf16) {
    LaunchOfElement<Bf16>(launch, stream);
  } else {
    LaunchOfElement<F16>(launch, stream);
  }
}

}  // namespace longshore::cuda
