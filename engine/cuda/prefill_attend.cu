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
  Uninitialized<AttendBlock> attend;
  Uninitialized<AttendLayout> layout;
};

// Some rows of one KV head and one split of the keys, by a thread block.
//
// Tile t of the keys is multiplied while tile t + 1, which has arrived, is turned, and tile t + 2
// is on its way; its values come a tile later.
template <class Element, int32_t kDepth, int32_t kWarps, bool kTurns, bool kSplits>
struct TileAttention {
  static constexpr int32_t kThreads = 32 * kWarps;
  using SharedMemory = Shared<kDepth, kWarps>;
  using Warp = WarpRows<Element, kDepth, 32 * kWarps, kSplits>;

  const AttendLaunch& launch;
  SharedMemory& shared;
  const AttendBlock& attend;
  const AttendLayout& layout;
  int32_t kv_head;
  int32_t first_row;  // of the tile, in the block
  int32_t rows;
  int32_t first_key;
  int32_t end_key;
  int32_t oldest;  // positions of the first and the last row
  int32_t newest;

  // Not kept: it is long, and needed seldom.
  __device__ AttendIds Ids() const {
    return MakeAttendIds(attend.rule, attend.block.regions,
                         int64_t{attend.num_selected} * attend.selected_chunk_tokens);
  }
  __device__ int32_t Tiles() const { return (end_key - first_key + kTileKeys - 1) / kTileKeys; }

  // Keys behind the end stand for the last, and are not seen.
  __device__ void FindPlaces(int32_t tile) const {
    const auto key = static_cast<int32_t>(threadIdx.x);
    if (tile >= Tiles() || key >= kTileKeys) {
      return;
    }
    const int32_t rank = min(first_key + tile * kTileKeys + key, end_key - 1);
    const int32_t token = TokenOfRank(attend, SinkTokens(attend), rank);
    KeyPlaces& places = shared.places[tile % SharedMemory::kPlaces];
    places.keys[key] = attend.block.kv.Keys(token);
    places.tokens[key] = token;
    places.ids[key] = static_cast<int32_t>(Ids().OfKey(attend.block.first_position, token, rank));
  }

  __device__ __forceinline__ void Send(int32_t tile,
                                       int32_t offset,
                                       typename SharedMemory::Keys* to) const {
    if (tile >= Tiles()) {
      return;
    }
    constexpr int32_t kChunks = kDepth / 8;
    constexpr int32_t kRowStep = kThreads / kChunks;
    static_assert(kRowStep % 8 == 0);  // rows that are swapped alike
    const int32_t row = static_cast<int32_t>(threadIdx.x) / kChunks;
    const int32_t chunk = static_cast<int32_t>(threadIdx.x) % kChunks;
    const std::byte* const* keys = shared.places[tile % SharedMemory::kPlaces].keys + row;
    uint4* at = to->At(row, chunk);
#pragma unroll
    for (int32_t step = 0; step < kTileKeys / kRowStep; ++step) {
      CopyAsync(at + 8 * kRowStep * step, keys[kRowStep * step] + offset + 16 * chunk);
    }
  }
  __device__ void SendKeys(int32_t tile) const {
    Send(tile, kv_head * attend.block.kv.head_bytes, &shared.keys[tile % SharedMemory::kKeyStages]);
  }
  __device__ void SendValues(int32_t tile) const {
    Send(tile,
         kv_head * attend.block.kv.head_bytes + static_cast<int32_t>(attend.block.kv.value_offset),
         &shared.values[tile % SharedMemory::kValueStages]);
  }

  __device__ void Turn(int32_t tile) const {
    if constexpr (kTurns) {
      if (tile >= Tiles()) {
        return;
      }
      TurnPanels<Element, kThreads>(attend.block.rope,
                                    shared.places[tile % SharedMemory::kPlaces].ids,
                                    &shared.keys[tile % SharedMemory::kKeyStages]);
    }
  }

  __device__ void LoadQueries() const {
    const AttentionShape& shape = launch.shape;
    const int32_t group = shape.GroupSize();
    LoadTileQueries<Element, kDepth>(
        launch.q, attend.block.rope, 1.0F, 32 * kWarps,
        [&](int32_t row) {
          if (row >= rows) {
            return TileQuery{};
          }
          const int32_t of_block = (first_row + row) / group;
          const int32_t head = kv_head * group + (first_row + row) % group;
          return TileQuery{int64_t{attend.block.first_row + of_block} * shape.num_heads + head,
                           Ids().OfQuery(attend.block.first_position + of_block)};
        },
        [&](int32_t row, int32_t index, float4 value) {
          StoreFourAt<Element>(&shared.queries, row, index, value);
        });
  }

  __device__ TileSight SightOf(int32_t tile) const {
    const KeyPlaces& places = shared.places[tile % SharedMemory::kPlaces];
    const int32_t keys = min(kTileKeys, end_key - first_key - tile * kTileKeys);
    const bool all = keys == kTileKeys && places.tokens[kTileKeys - 1] <= oldest &&
                     (attend.sliding_window_tokens == 0 ||
                      places.tokens[0] > newest - attend.sliding_window_tokens);
    return {places.tokens, keys, all, static_cast<int32_t>(attend.block.first_position),
            static_cast<int32_t>(Min(attend.sliding_window_tokens, INT32_MAX))};
  }

  __device__ void Run(Warp* warp) const {
    for (int32_t tile = 0; tile < 3; ++tile) {
      FindPlaces(tile);
    }
    __syncthreads();
    SendKeys(0);
    CommitAsync();
    SendKeys(1);
    SendValues(0);
    CommitAsync();
    LoadQueries();
    WaitAsync<1>();
    __syncthreads();
    Turn(0);
    // The same for all, as the compiler must see to let products run on.
    const int32_t tiles = __shfl_sync(0xffffffffu, Tiles(), 0);
    typename Warp::Scores scores[Warp::kRowTiles];
    for (int32_t tile = 0; tile < tiles; ++tile) {
      WaitAsync<0>();
      FenceForProducts();
      __syncthreads();  // and nobody needs what the next copies go over
      auto* keys = &shared.keys[tile % SharedMemory::kKeyStages];
      warp->Begin(&shared.queries, keys, scores);
      SendKeys(tile + 2);
      SendValues(tile + 1);
      CommitAsync();
      FindPlaces(tile + 3);
      warp->End(SightOf(tile), &shared.queries, keys,
                &shared.values[tile % SharedMemory::kValueStages], scores);
      Turn(tile + 1);
      Warp::Finish();
    }
    WaitAsync<0>();
  }
};

// What rows of a split have found, to be merged with other splits.
template <class Work>
__device__ void PutSplit(const Work& work, int32_t split, const typename Work::Warp& warp) {
  float* workspace = work.launch.workspace;
  const AttendLayout& layout = work.layout;
  const int64_t first =
      (int64_t{split} * work.launch.shape.num_kv_heads + work.kv_head) * layout.rows +
      work.first_row;
  warp.Give(
      [&](int32_t row, float max, float sum) {
        if (row < work.rows && threadIdx.x % 4 == 0) {
          workspace[layout.max + first + row] = max;
          workspace[layout.sum + first + row] = sum;
        }
        return 1.0F;
      },
      [&](int32_t row, int32_t dim, float2 two) {
        if (row < work.rows) {
          const int64_t at = layout.acc + (first + row) * work.launch.shape.head_dim + dim;
          *reinterpret_cast<float2*>(workspace + at) = two;
        }
      });
}

// What rows have found where there is one split: the output.
template <class Work>
__device__ void PutOutput(const Work& work, const typename Work::Warp& warp) {
  const AttendLaunch& launch = work.launch;
  const int32_t group = launch.shape.GroupSize();
  const auto head_of = [&](int32_t row) {
    return work.kv_head * group + (work.first_row + row) % group;
  };
  const auto index_of = [&](int32_t row) {
    return int64_t{work.attend.block.first_row + (work.first_row + row) / group} *
               launch.shape.num_heads +
           head_of(row);
  };
  warp.Give(
      [&](int32_t row, float max, float sum) {
        const RowEnd end = EndOf(launch, head_of(row), max, sum);
        if (row < work.rows && threadIdx.x % 4 == 0 && launch.log_sum_exp != nullptr) {
          launch.log_sum_exp[index_of(row)] = end.log_sum_exp;
        }
        return end.factor;
      },
      [&](int32_t row, int32_t dim, float2 two) {
        if (row < work.rows) {
          StoreTwo(launch.out.dtype, two, launch.out.data,
                   index_of(row) * launch.shape.head_dim + dim);
        }
      });
}

// Row tiles and splits (x), KV heads (y), blocks (z).
template <class Element, int32_t kDepth, int32_t kWarps, bool kTurns, bool kSplits>
__global__ void __launch_bounds__(32 * kWarps, 1)
    PrefillAttend(const __grid_constant__ AttendLaunch launch) {
  using Work = TileAttention<Element, kDepth, kWarps, kTurns, kSplits>;
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<typename Work::SharedMemory*>(shared_bytes);
  CopyToShared(launch.blocks + blockIdx.z, shared.attend.get());
  CopyToShared(launch.layouts + blockIdx.z, shared.layout.get());
  __syncthreads();
  const AttendBlock& attend = *shared.attend;
  const AttendLayout& layout = *shared.layout;
  constexpr int32_t kRows = 32 * kWarps;
  const int32_t row_tiles = (layout.rows + kRows - 1) / kRows;
  const int32_t split = static_cast<int32_t>(blockIdx.x) / row_tiles;
  if (split >= layout.splits) {
    return;
  }
  const int32_t first_row = static_cast<int32_t>(blockIdx.x) % row_tiles * kRows;
  const int32_t first_key = split * layout.keys_of_split;
  const int32_t rows = min(kRows, layout.rows - first_row);
  const int32_t group = launch.shape.GroupSize();
  const auto position = static_cast<int32_t>(attend.block.first_position);
  const Work work{launch,
                  shared,
                  attend,
                  layout,
                  static_cast<int32_t>(blockIdx.y),
                  first_row,
                  rows,
                  first_key,
                  static_cast<int32_t>(Min(layout.keys, int64_t{first_key} + layout.keys_of_split)),
                  position + first_row / group,
                  position + (first_row + rows - 1) / group};
  typename Work::Warp warp(launch.shape, first_row);
  work.Run(&warp);
  if (layout.splits > 1) {
    PutSplit(work, split, warp);
  } else {
    PutOutput(work, warp);
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
  kernel<<<grid, 32 * kWarps, kBytes, stream>>>(launch);
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
