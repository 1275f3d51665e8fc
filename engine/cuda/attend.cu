#include "engine/cuda/block_reduce.cuh"
#include "engine/cuda/dot_tile.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/launch.cuh"
#include "engine/cuda/rotate.cuh"
#include "engine/cuda/scale.cuh"

namespace longshore::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kWarps = kThreads / 32;
constexpr int32_t kPitch = kTileKeys + 4;

// What a thread block attends with: some rows of one KV head and one split of the keys.
struct SplitWork {
  int32_t kv_head;
  int32_t split;
  int32_t first_row;
  int32_t rows;
  int64_t first_key;
  int64_t end_key;
};

// Running softmax of a tile of rows, in shared memory.
template <int32_t kRows>
struct SoftmaxRows {
  float max[kRows];
  float sum[kRows];
  float rescale[kRows];
};

// Turns the raw scores of a tile into probabilities, a warp a row: rows see the keys from
// `oldest[row]` to their own.
template <int32_t kRows, class Visible>
__device__ void Softmax(const AttentionShape& shape,
                        int32_t rows,
                        int32_t keys,
                        const Visible& visible,
                        float* scores,
                        SoftmaxRows<kRows>* state) {
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  for (auto row = static_cast<int32_t>(threadIdx.x) / 32; row < rows; row += kWarps) {
    float* at = scores + row * kPitch;
    float score[2];
    for (int32_t half = 0; half < 2; ++half) {
      const int32_t key = lane + 32 * half;
      score[half] = key < keys && visible(row, key) ? Scaled(shape, at[key]) : -INFINITY;
    }
    float tile_max = fmaxf(score[0], score[1]);
    for (int32_t step = 16; step > 0; step /= 2) {
      tile_max = fmaxf(tile_max, __shfl_xor_sync(kWholeWarp, tile_max, step));
    }
    const float old_max = state->max[row];
    const float max = fmaxf(old_max, tile_max);
    // A row that has seen nothing yet keeps its state: differences of infinities are not numbers.
    const bool seen = max > -INFINITY;
    float sum = 0.0F;
    for (int32_t half = 0; half < 2; ++half) {
      const float probability = seen ? expf(score[half] - max) : 0.0F;
      at[lane + 32 * half] = probability;
      sum += probability;
    }
    for (int32_t step = 16; step > 0; step /= 2) {
      sum += __shfl_xor_sync(kWholeWarp, sum, step);
    }
    __syncwarp();  // all lanes have read the maximum
    if (lane == 0) {
      const float rescale = max == old_max ? 1.0F : expf(old_max - max);
      state->max[row] = max;
      state->sum[row] = state->sum[row] * rescale + sum;
      state->rescale[row] = rescale;
    }
  }
}

// The output of a thread: four dimensions of every kRowGroups-th row.
template <int32_t kRows, int32_t kDepth>
struct Output {
  static constexpr int32_t kDimGroups = kDepth / 4;
  static constexpr int32_t kRowGroups = kThreads / kDimGroups;
  static constexpr int32_t kRowsOfThread = (kRows + kRowGroups - 1) / kRowGroups;

  float acc[kRowsOfThread][4] = {};

  __device__ static int32_t Dim() { return static_cast<int32_t>(threadIdx.x) % kDimGroups * 4; }
  __device__ static int32_t RowGroup() { return static_cast<int32_t>(threadIdx.x) / kDimGroups; }
  // Row `index` of the thread; kRows and more: none.
  __device__ static int32_t Row(int32_t index) {
    return RowGroup() < kRowGroups ? RowGroup() + index * kRowGroups : kRows;
  }

  // value_of(key): the four values of this thread's dimensions.
  template <class ValueOf>
  __device__ void Add(int32_t keys,
                      const float* probabilities,
                      const float* rescale,
                      const ValueOf& value_of) {
#pragma unroll
    for (int32_t index = 0; index < kRowsOfThread; ++index) {
      if (Row(index) < kRows) {
        for (float& sum : acc[index]) {
          sum *= rescale[Row(index)];
        }
      }
    }
    for (int32_t key = 0; key < keys; ++key) {
      const float4 value = value_of(key);
#pragma unroll
      for (int32_t index = 0; index < kRowsOfThread; ++index) {
        if (Row(index) < kRows) {
          const float probability = probabilities[Row(index) * kPitch + key];
          acc[index][0] = fmaf(probability, value.x, acc[index][0]);
          acc[index][1] = fmaf(probability, value.y, acc[index][1]);
          acc[index][2] = fmaf(probability, value.z, acc[index][2]);
          acc[index][3] = fmaf(probability, value.w, acc[index][3]);
        }
      }
    }
  }
};

template <class Element>
__device__ float4 FourOf(const Element* from) {
  return {ToFloat(from[0]), ToFloat(from[1]), ToFloat(from[2]), ToFloat(from[3])};
}

// A split of a block's keys, tile by tile, for up to kRows rows.
template <class Element, int32_t kRows, int32_t kDepth>
__device__ void AttendSplit(const AttendLaunch& launch,
                            const AttendBlock& attend,
                            const AttendLayout& layout,
                            const SplitWork& work) {
  using Dots = DotTile<kRows>;
  static_assert(Dots::kThreads == kThreads && Dots::kPitch == kPitch);
  __shared__ typename Dots::Shared shared;
  __shared__ SoftmaxRows<kRows> state;
  const AttentionShape& shape = launch.shape;
  const KvView& kv = attend.block.kv;
  const int32_t group = shape.GroupSize();
  const int32_t sink = SinkTokens(attend);
  const int64_t head_offset = int64_t{work.kv_head} * kv.head_bytes;
  const AttendIds ids = MakeAttendIds(attend.rule, attend.block.regions,
                                      int64_t{attend.num_selected} * attend.selected_chunk_tokens);
  const float* queries = launch.workspace + layout.queries +
                         (int64_t{work.kv_head} * layout.rows + work.first_row) * shape.head_dim;
  for (auto row = static_cast<int32_t>(threadIdx.x); row < kRows; row += kThreads) {
    state.max[row] = -INFINITY;
    state.sum[row] = 0.0F;
    state.rescale[row] = 1.0F;
  }
  Output<kRows, kDepth> output;
  float* scores = shared.queries;  // free once a tile is scored
  for (int64_t first = work.first_key; first < work.end_key; first += kTileKeys) {
    const auto keys = static_cast<int32_t>(Min(kTileKeys, work.end_key - first));
    const auto key_element = [&](int32_t key, int32_t index) {
      const int64_t token = TokenOfRank(attend, sink, static_cast<int32_t>(first) + key);
      const auto* row = reinterpret_cast<const Element*>(kv.Keys(token) + head_offset);
      return TurnedElement(row, index, attend.block.rope,
                           ids.OfKey(attend.block.first_position, token, first + key));
    };
    Dots dots;
    dots.Run(queries, work.rows, keys, shape.head_dim, key_element, &shared);
#pragma unroll
    for (int32_t index = 0; index < Dots::kRowsOfThread; ++index) {
      const int32_t row = Dots::FirstRow() + index * Dots::kRowStep;
      scores[row * kPitch + Dots::Key()] = dots.sums[index];
    }
    __syncthreads();
    const auto visible = [&](int32_t row, int32_t key) {
      const int64_t position = attend.block.first_position + (work.first_row + row) / group;
      const int64_t token = TokenOfRank(attend, sink, static_cast<int32_t>(first) + key);
      return token <= position &&
             (attend.sliding_window_tokens == 0 || token > position - attend.sliding_window_tokens);
    };
    Softmax<kRows>(shape, work.rows, keys, visible, scores, &state);
    __syncthreads();
    if (Output<kRows, kDepth>::Dim() < shape.head_dim) {
      output.Add(keys, scores, state.rescale, [&](int32_t key) {
        const std::byte* row =
            kv.Values(TokenOfRank(attend, sink, static_cast<int32_t>(first) + key)) + head_offset;
        return FourOf(reinterpret_cast<const Element*>(row) + Output<kRows, kDepth>::Dim());
      });
    }
    __syncthreads();
  }
  const int64_t first_row =
      (int64_t{work.split} * shape.num_kv_heads + work.kv_head) * layout.rows + work.first_row;
  for (auto row = static_cast<int32_t>(threadIdx.x); row < work.rows; row += kThreads) {
    launch.workspace[layout.max + first_row + row] = state.max[row];
    launch.workspace[layout.sum + first_row + row] = state.sum[row];
  }
  const int32_t dim = Output<kRows, kDepth>::Dim();
#pragma unroll
  for (int32_t index = 0; index < Output<kRows, kDepth>::kRowsOfThread; ++index) {
    const int32_t row = Output<kRows, kDepth>::Row(index);
    if (row < work.rows && dim < shape.head_dim) {
      float* to = launch.workspace + layout.acc + (first_row + row) * shape.head_dim + dim;
      *reinterpret_cast<float4*>(to) = {output.acc[index][0], output.acc[index][1],
                                        output.acc[index][2], output.acc[index][3]};
    }
  }
}

// Row tiles and splits (x), KV heads (y), blocks (z).
template <class Element, int32_t kRows, int32_t kDepth>
__global__ void __launch_bounds__(kThreads, 1)
    AttendSplits(const __grid_constant__ AttendLaunch launch) {
  const AttendLayout& layout = launch.layouts[blockIdx.z];
  const auto row_tiles = static_cast<int32_t>(CeilDiv(layout.rows, kRows));
  const auto tile = static_cast<int32_t>(blockIdx.x) % row_tiles;
  const auto split = static_cast<int32_t>(blockIdx.x) / row_tiles;
  if (split >= layout.splits) {
    return;
  }
  const int64_t first_key = int64_t{split} * layout.keys_of_split;
  const SplitWork work{static_cast<int32_t>(blockIdx.y),
                       split,
                       tile * kRows,
                       static_cast<int32_t>(Min(kRows, layout.rows - tile * kRows)),
                       first_key,
                       Min(layout.keys, first_key + layout.keys_of_split)};
  AttendSplit<Element, kRows, kDepth>(launch, launch.blocks[blockIdx.z], layout, work);
}

template <class Element, int32_t kRows>
void LaunchOfRows(const AttendLaunch& launch, cudaStream_t stream) {
  const int64_t tiles = CeilDiv(launch.most_rows, kRows) * launch.most_splits;
  const dim3 grid(static_cast<uint32_t>(tiles), static_cast<uint32_t>(launch.shape.num_kv_heads),
                  static_cast<uint32_t>(launch.num_blocks));
  if (launch.shape.head_dim <= 64) {
    LaunchKernel<AttendSplits<Element, kRows, 64>>({grid, kThreads}, stream, launch);
  } else if (launch.shape.head_dim <= 128) {
    LaunchKernel<AttendSplits<Element, kRows, 128>>({grid, kThreads}, stream, launch);
  } else {
    LaunchKernel<AttendSplits<Element, kRows, 256>>({grid, kThreads}, stream, launch);
  }
}

}  // namespace

void LaunchAttendSplits(const AttendLaunch& launch, cudaStream_t stream) {
  WithElement(launch.shape.kv_dtype, [&](auto element) {
    if (launch.kind == AttendKind::kFewRows) {
      LaunchOfRows<decltype(element), 16>(launch, stream);
    } else {
      LaunchOfRows<decltype(element), 64>(launch, stream);
    }
  });
}

}  // namespace longshore::cuda
