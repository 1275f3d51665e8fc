#include "engine/cuda/decode_queries.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/turn_staged.cuh"

namespace longshore::cuda {
namespace {

constexpr int32_t kWarps = 8;
constexpr int32_t kThreads = 32 * kWarps;
constexpr int32_t kWarpKeys = 16;
constexpr float kLog2E = 1.44269504F;

// A warp attends with 16 keys at a time, transposed: S^T = K Q^T and O^T = V^T P^T, so that keys
// and then dimensions fill the 16 rows of the tensor cores' tiles, and the few queries of a decode
// step their 8 columns.
template <class Element, int32_t kDepth, int32_t kTiles>
struct WarpAttention {
  static constexpr int32_t kColumns = 8 * kTiles;
  static constexpr int32_t kHalves = kDepth / 64;  // 128 bytes of a value row each
  using Queries = DecodeQueries<Element, kDepth, kColumns>;

  struct Staging {
    StagedRows<kDepth, true> keys;
    StagedRows<kDepth, false> values;
  };
  // Of 16 keys, as columns of B for both halves of the keys.
  struct Probabilities {
    uint32_t high[2];
    uint32_t low[2];
  };

  const AttendLaunch& launch;
  const AttendBlock& attend;
  const AttendIds& ids;
  int32_t sink;
  int64_t head_offset;  // bytes of the KV head in a token
  int32_t columns;      // in use
  int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;

  Accumulator acc[kTiles][kDepth / 16];  // [dimension pairs of a lane, columns]
  float max[kTiles][2];
  float sum[kTiles][2];

  __device__ void Clear() {
    for (int32_t tile = 0; tile < kTiles; ++tile) {
      for (int32_t side = 0; side < 2; ++side) {
        max[tile][side] = -INFINITY;
        sum[tile][side] = 0.0F;
      }
    }
  }

  // Keys of ranks [first, end), the first 16 of them: each lane has found one, and those behind the
  // end stand for the last, and are not seen.
  struct Place {
    const std::byte* key;
    int32_t token;
    int32_t count;
    int64_t id;
  };

  __device__ Place Find(int32_t first, int32_t end) const {
    const int32_t rank = min(first + lane % kWarpKeys, end - 1);
    const int32_t token = TokenOfRank(attend, sink, rank);
    return {attend.block.kv.Keys(token) + head_offset, token, min(kWarpKeys, end - first),
            ids.OfKey(attend.block.first_position, token, rank)};
  }

  // Sends for the rows `offset` bytes behind their keys; they are there once a wait says so.
  template <class Rows>
  __device__ void Send(const Place& place, int64_t offset, Rows* to) const {
#pragma unroll 4
    for (int32_t step = 0; step < Rows::kSteps; ++step) {
      const int32_t at = 32 * step + lane;
      const int32_t row = at / Rows::kChunks;
      const int32_t chunk = at % Rows::kChunks;
      const auto key = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(place.key), row);
      CopyAsync(to->At(row, chunk), reinterpret_cast<const std::byte*>(key) + offset + 16 * chunk);
    }
    CommitAsync();
  }

  // All keys of ranks [first, end) that are this warp's: 16 of every kThreads / 2. While a tile's
  // scores are made its values are on their way, and while those are added the next keys.
  template <bool kTurns>
  __device__ void Run(int32_t first, int32_t end, Staging* staging, const Queries& queries) {
    if (first >= end) {
      return;
    }
    Place place = Find(first, end);
    Send(place, 0, &staging->keys);
    Send(place, attend.block.kv.value_offset, &staging->values);
    while (true) {
      const Place here = place;
      first += kWarps * kWarpKeys;
      const bool more = first < end;
      if (more) {
        place = Find(first, end);
      }
      WaitAsync<1>();
      __syncwarp();
      if constexpr (kTurns) {
        TurnStaged<Element>(attend.block.rope, here.id, &staging->keys);
        __syncwarp();
      }
      Accumulator scores[kTiles];
      Score(queries, &staging->keys, scores);
      __syncwarp();
      if (more) {
        Send(place, 0, &staging->keys);
      }
      Probabilities probabilities[kTiles];
      Softmax(here, scores, probabilities);
      if (more) {
        WaitAsync<1>();
      } else {
        WaitAsync<0>();
      }
      __syncwarp();
      AddValues(&staging->values, probabilities);
      __syncwarp();
      if (!more) {
        return;
      }
      Send(place, attend.block.kv.value_offset, &staging->values);
    }
  }

  __device__ void Score(const Queries& queries,
                        StagedRows<kDepth, true>* keys,
                        Accumulator (&scores)[kTiles]) {
    const int32_t i = lane / 4;
    const int32_t j = lane % 4;
#pragma unroll
    for (int32_t g = 0; g < kDepth / 32; ++g) {
      const uint4 upper = *keys->At(i, 4 * g + j);
      const uint4 lower = *keys->At(i + 8, 4 * g + j);
#pragma unroll
      for (int32_t tile = 0; tile < kTiles; ++tile) {
        if (8 * tile < columns) {
          const uint4 query = queries.Fragment(tile, g, lane);
          Multiply<Element>(upper.x, lower.x, upper.y, lower.y, query.x, query.y, &scores[tile]);
          Multiply<Element>(upper.z, lower.z, upper.w, lower.w, query.z, query.w, &scores[tile]);
        }
      }
    }
  }

  // Probabilities of all columns, and what was summed before rescaled.
  __device__ void Softmax(const Place& place,
                          Accumulator (&scores)[kTiles],
                          Probabilities (&probabilities)[kTiles]) {
    const int32_t tokens[2] = {__shfl_sync(0xffffffffu, place.token, lane / 4),
                               __shfl_sync(0xffffffffu, place.token, lane / 4 + 8)};
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile) {
      if (8 * tile < columns) {
        Exponentiate(tile, place.count, tokens, &scores[tile]);
        probabilities[tile] = SplitOf(scores[tile]);
      }
    }
  }

  // Scores to exp(score - max), in base 2; what was summed before is rescaled.
  __device__ void Exponentiate(int32_t tile,
                               int32_t keys_left,
                               const int32_t (&tokens)[2],
                               Accumulator* scores) {
    const AttentionShape& shape = launch.shape;
    const int32_t group = shape.GroupSize();
#pragma unroll
    for (int32_t side = 0; side < 2; ++side) {
      const int32_t column = 8 * tile + 2 * (lane % 4) + side;
      const int64_t position = attend.block.first_position + column / group;
      float best = max[tile][side];
#pragma unroll
      for (int32_t row = 0; row < 2; ++row) {
        float* score = &scores->c[2 * row + side];
        const bool seen = lane / 4 + 8 * row < keys_left && tokens[row] <= position &&
                          (attend.sliding_window_tokens == 0 ||
                           tokens[row] > position - attend.sliding_window_tokens);
        const float scaled = shape.logit_soft_cap > 0.0F
                                 ? shape.logit_soft_cap * kLog2E *
                                       tanhf(*score * (shape.softmax_scale / shape.logit_soft_cap))
                                 : *score * (shape.softmax_scale * kLog2E);
        *score = seen ? scaled : -INFINITY;
        best = fmaxf(best, *score);
      }
      for (int32_t step = 4; step < 32; step *= 2) {
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, step));
      }
      // Differences of infinities are not numbers: nothing has been seen yet.
      const float shift = best == -INFINITY ? 0.0F : best;
      const float rescale = exp2f(max[tile][side] - shift);
      max[tile][side] = best;
      sum[tile][side] *= rescale;
#pragma unroll
      for (int32_t row = 0; row < 2; ++row) {
        float* score = &scores->c[2 * row + side];
        *score = exp2f(*score - shift);
        sum[tile][side] += *score;
      }
#pragma unroll
      for (Accumulator& sums : acc[tile]) {
        sums.c[side] *= rescale;
        sums.c[2 + side] *= rescale;
      }
    }
  }

  // A probability as the sum of two elements, so that it keeps 16 bits and more.
  __device__ static Probabilities SplitOf(const Accumulator& scores) {
    Probabilities split;
#pragma unroll
    for (int32_t row = 0; row < 2; ++row) {
      const float* p = scores.c + 2 * row;
      const uint32_t rounded = PackPair<Element>(p[0], p[1]);
      const float2 part = UnpackPair<Element>(rounded);
      split.high[row] = Transpose(rounded);
      split.low[row] = Transpose(PackPair<Element>(p[0] - part.x, p[1] - part.y));
    }
    return split;
  }

  // acc += V^T P^T. A lane reads eight dimensions of keys 2j, 2j + 1, 2j + 8 and 2j + 9, and pairs
  // up the keys of each dimension.
  __device__ void AddValues(StagedRows<kDepth, false>* values,
                            const Probabilities (&probabilities)[kTiles]) {
    const int32_t i = lane / 4;
    const int32_t j = lane % 4;
#pragma unroll
    for (int32_t half = 0; half < kHalves; ++half) {
      uint32_t rows[4][4];
#pragma unroll
      for (int32_t row = 0; row < 4; ++row) {
        const uint4 chunk = *values->At(2 * j + row % 2 + row / 2 * 8, 8 * half + i);
        rows[row][0] = chunk.x;
        rows[row][1] = chunk.y;
        rows[row][2] = chunk.z;
        rows[row][3] = chunk.w;
      }
#pragma unroll
      for (int32_t word = 0; word < 4; ++word) {
        const uint32_t a0 = __byte_perm(rows[0][word], rows[1][word], 0x5410);
        const uint32_t a1 = __byte_perm(rows[0][word], rows[1][word], 0x7632);
        const uint32_t a2 = __byte_perm(rows[2][word], rows[3][word], 0x5410);
        const uint32_t a3 = __byte_perm(rows[2][word], rows[3][word], 0x7632);
#pragma unroll
        for (int32_t tile = 0; tile < kTiles; ++tile) {
          if (8 * tile < columns) {
            const Probabilities& p = probabilities[tile];
            Accumulator* sums = &acc[tile][4 * half + word];
            Multiply<Element>(a0, a1, a2, a3, p.high[0], p.high[1], sums);
            Multiply<Element>(a0, a1, a2, a3, p.low[0], p.low[1], sums);
          }
        }
      }
    }
  }

  // Dimension that c[2 * row + ...] of accumulator `index` belongs to.
  __device__ int32_t DimOf(int32_t index, int32_t row) const {
    return 64 * (index / 4) + 8 * (lane / 4) + 2 * (index % 4) + row;
  }
};

// What the warps of a thread block, or the splits of a block of queries, have each found.
template <int32_t kDepth, int32_t kColumns>
struct Partials {
  float max[kWarps][kColumns];
  float sum[kWarps][kColumns];
  float acc[kWarps][kColumns][kDepth + 4];
};

template <class Element, int32_t kDepth, int32_t kTiles>
struct Shared {
  static constexpr int32_t kColumns = 8 * kTiles;
  DecodeQueries<Element, kDepth, kColumns> queries;
  union {
    typename WarpAttention<Element, kDepth, kTiles>::Staging staging[kWarps];
    Partials<kDepth, kColumns> partials;
  };
  bool last;
};

// The queries of one KV head, turned and rounded.
template <class Element, int32_t kDepth, int32_t kColumns>
__device__ void LoadQueries(const AttendLaunch& launch,
                            const AttendBlock& attend,
                            const AttendIds& ids,
                            int32_t kv_head,
                            DecodeQueries<Element, kDepth, kColumns>* queries) {
  const int32_t group = launch.shape.GroupSize();
  for (auto at = static_cast<int32_t>(threadIdx.x); at < kColumns * kDepth; at += kThreads) {
    const int32_t column = at / kDepth;
    const int32_t index = at % kDepth;
    const int32_t row = column / group;
    float value = 0.0F;
    if (row < attend.block.rows) {
      const int64_t head = (int64_t{attend.block.first_row} + row) * launch.shape.num_heads +
                           kv_head * group + column % group;
      value = TurnedQuery(launch.q, attend.block.rope, head * kDepth, index,
                          ids.OfQuery(attend.block.first_position + row), 1.0F);
    }
    queries->at[column * queries->kPitch + index] = ElementOf<Element>(value);
  }
}

// One row of one head, all splits in order: the output and its log-sum-exp. Threads share the
// dimensions.
template <int32_t kDepth>
__device__ void WriteRow(const AttendLaunch& launch,
                         const AttendBlock& attend,
                         const AttendLayout& layout,
                         int32_t kv_head,
                         int32_t column,
                         int32_t dim) {
  const AttentionShape& shape = launch.shape;
  const int64_t rows = int64_t{layout.rows} * shape.num_kv_heads;  // of a split
  const int64_t index = int64_t{kv_head} * layout.rows + column;
  const int32_t group = shape.GroupSize();
  const int32_t head = kv_head * group + column % group;
  const float* maxima = launch.workspace + layout.max + index;
  const float* sums = launch.workspace + layout.sum + index;
  const float* accs = launch.workspace + layout.acc + index * kDepth + dim;
  const bool sinks = launch.sink_logits != nullptr;
  float max = sinks ? launch.sink_logits[head] * kLog2E : -INFINITY;
  for (int32_t split = 0; split < layout.splits; ++split) {
    max = fmaxf(max, __ldcg(maxima + split * rows));
  }
  float sum = sinks ? exp2f(launch.sink_logits[head] * kLog2E - max) : 0.0F;
  float value = 0.0F;
#pragma unroll 4
  for (int32_t split = 0; split < layout.splits; ++split) {
    const float weight = exp2f(__ldcg(maxima + split * rows) - max);
    sum = fmaf(__ldcg(sums + split * rows), weight, sum);
    value = fmaf(__ldcg(accs + split * rows * kDepth), weight, value);
  }
  const int64_t out = (int64_t{attend.block.first_row} + column / group) * shape.num_heads + head;
  const float largest = LargestFinite(launch.out.dtype);
  StoreAny(launch.out.dtype, fminf(fmaxf(value / sum, -largest), largest), launch.out.data,
           out * kDepth + dim);
  if (launch.log_sum_exp != nullptr && dim == 0) {
    launch.log_sum_exp[out] = max / kLog2E + logf(sum);
  }
}

// Splits (x), KV heads (y), blocks (z). The last split of a head to finish merges them all.
template <class Element, int32_t kDepth, int32_t kTiles, bool kTurns>
__global__ void __launch_bounds__(kThreads, kDepth <= 128 && kTiles == 1 ? 2 : 1)
    DecodeAttend(const __grid_constant__ AttendLaunch launch) {
  extern __shared__ __align__(16) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<Element, kDepth, kTiles>*>(shared_bytes);
  const AttendLayout& layout = launch.layouts[blockIdx.z];
  const auto split = static_cast<int32_t>(blockIdx.x);
  if (split >= layout.splits) {
    return;
  }
  const AttendBlock& attend = launch.blocks[blockIdx.z];
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const AttendIds ids = MakeAttendIds(attend.rule, attend.block.regions,
                                      int64_t{attend.num_selected} * attend.selected_chunk_tokens);
  WarpAttention<Element, kDepth, kTiles> warp{
      launch,     attend, ids, SinkTokens(attend), int64_t{kv_head} * attend.block.kv.head_bytes,
      layout.rows};
  const int32_t warp_index = static_cast<int32_t>(threadIdx.x) / 32;
  const auto end =
      static_cast<int32_t>(Min(layout.keys, int64_t{split + 1} * layout.keys_of_split));
  const int32_t first = split * layout.keys_of_split + warp_index * kWarpKeys;
  warp.Clear();
  LoadQueries(launch, attend, ids, kv_head, &shared.queries);
  __syncthreads();
  warp.template Run<kTurns>(first, end, &shared.staging[warp_index], shared.queries);
  __syncthreads();  // staging makes room for the partial results
  // Of each column: its sum over the lanes that hold its keys, its accumulators.
  const int32_t lane = warp.lane;
#pragma unroll
  for (int32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int32_t side = 0; side < 2; ++side) {
      const int32_t column = 8 * tile + 2 * (lane % 4) + side;
      float sum = warp.sum[tile][side];
      for (int32_t step = 4; step < 32; step *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
      }
      if (column < layout.rows) {
        if (lane / 4 == 0) {
          shared.partials.max[warp_index][column] = warp.max[tile][side];
          shared.partials.sum[warp_index][column] = sum;
        }
#pragma unroll
        for (int32_t index = 0; index < kDepth / 16; ++index) {
          for (int32_t row = 0; row < 2; ++row) {
            shared.partials.acc[warp_index][column][warp.DimOf(index, row)] =
                warp.acc[tile][index].c[2 * row + side];
          }
        }
      }
    }
  }
  __syncthreads();
  const int64_t rows = int64_t{layout.rows} * launch.shape.num_kv_heads;
  const int64_t first_row = split * rows + int64_t{kv_head} * layout.rows;
  for (auto at = static_cast<int32_t>(threadIdx.x); at < layout.rows * kDepth; at += kThreads) {
    const int32_t column = at / kDepth;
    const int32_t dim = at % kDepth;
    float max = -INFINITY;
    for (int32_t w = 0; w < kWarps; ++w) {
      max = fmaxf(max, shared.partials.max[w][column]);
    }
    const float shift = max == -INFINITY ? 0.0F : max;
    float sum = 0.0F;
    float value = 0.0F;
    for (int32_t w = 0; w < kWarps; ++w) {
      const float weight = exp2f(shared.partials.max[w][column] - shift);
      sum = fmaf(shared.partials.sum[w][column], weight, sum);
      value = fmaf(shared.partials.acc[w][column][dim], weight, value);
    }
    __stcg(launch.workspace + layout.acc + (first_row + column) * kDepth + dim, value);
    if (dim == 0) {
      __stcg(launch.workspace + layout.max + first_row + column, max);
      __stcg(launch.workspace + layout.sum + first_row + column, sum);
    }
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    // Counters go back to 0 by themselves.
    int32_t* finished = launch.counters + blockIdx.z * gridDim.y + blockIdx.y;
    shared.last = atomicAdd(finished, 1) == layout.splits - 1;
    if (shared.last) {
      *finished = 0;
    }
  }
  __syncthreads();
  if (!shared.last) {
    return;
  }
  __threadfence();
  for (auto at = static_cast<int32_t>(threadIdx.x); at < layout.rows * kDepth; at += kThreads) {
    WriteRow<kDepth>(launch, attend, layout, kv_head, at / kDepth, at % kDepth);
  }
}

template <class Element, int32_t kDepth, int32_t kTiles, bool kTurns>
void Launch(const AttendLaunch& launch, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(launch.most_splits),
                  static_cast<uint32_t>(launch.shape.num_kv_heads),
                  static_cast<uint32_t>(launch.num_blocks));
  constexpr auto kBytes = static_cast<int32_t>(sizeof(Shared<Element, kDepth, kTiles>));
  const auto kernel = DecodeAttend<Element, kDepth, kTiles, kTurns>;
  static const cudaError_t kRoom =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  (void)kRoom;  // shows as a launch that fails
  kernel<<<grid, kThreads, kBytes, stream>>>(launch);
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
