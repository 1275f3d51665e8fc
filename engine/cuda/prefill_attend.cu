#include "engine/cuda/launch.cuh"
#include "engine/cuda/prefill_tiles.cuh"
#include "engine/cuda/row_end.cuh"

namespace longshore::cuda {
namespace {

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
  constexpr int32_t kBytes = sizeof(TileShared<kDepth, kWarps>);
  static_assert(kBytes <= kPrefillSharedBytes);
  LaunchKernel<PrefillAttend<Element, kDepth, kWarps, kTurns, kSplits>>(
      {grid, 32 * (kWarps + kMovers), kBytes}, stream, launch);
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
