#pragma once

#include <cstdint>

#include "engine/cuda/kernels.h"
#include "engine/cuda/prefill_attend.cuh"
#include "engine/cuda/prefill_queries.cuh"
#include "engine/cuda/shared_copy.cuh"
#include "engine/cuda/turn_panels.cuh"

// How tiles of keys and values reach the rows of a prefill that attend to them.
namespace longshore::cuda {

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
struct TileShared {
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
inline constexpr int32_t kMovers = 4;
inline constexpr int32_t kMoverThreads = 32 * kMovers;

// The attention of a part.
//
// While tile t of the keys is attended to, tile t + 1, which has arrived, is turned, and tile t + 2
// is on its way; values come a tile later. Movers and attending warps wait for each other's tiles
// alone, so that attending warps drift apart: one's exponentials run beside another's products.
template <class Element, int32_t kDepth, int32_t kWarps, bool kTurns, bool kSplits>
struct TileAttention {
  using SharedMemory = TileShared<kDepth, kWarps>;
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

}  // namespace longshore::cuda
