#include "engine/cuda/block_reduce.cuh"
#include "engine/cuda/kernels.h"

namespace longshore::cuda {
namespace {

constexpr int32_t kThreads = 1024;
constexpr int32_t kWarps = kThreads / 32;
constexpr int32_t kDigitBits = 8;
constexpr int32_t kDigits = 1 << kDigitBits;

// Unsigned numbers in the order of the ranks; the two zeros are one.
__device__ uint32_t KeyOf(float rank) {
  const uint32_t bits = __float_as_uint(rank + 0.0F);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The key of the `keep`-th best rank, and how many of that key are kept: the digits of the key are
// found one after the other, from the highest, by counting.
struct Threshold {
  uint32_t key;
  int32_t equal;
};

__device__ Threshold FindThreshold(const float* rank, int32_t count, int32_t keep) {
  __shared__ int32_t counts[kDigits];
  __shared__ Threshold found;
  Threshold threshold{0, keep};
  for (int32_t shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (auto digit = static_cast<int32_t>(threadIdx.x); digit < kDigits; digit += kThreads) {
      counts[digit] = 0;
    }
    __syncthreads();
    const uint32_t above = shift + kDigitBits == 32 ? 0 : ~0u << (shift + kDigitBits);
    for (auto at = static_cast<int32_t>(threadIdx.x); at < count; at += kThreads) {
      const uint32_t key = KeyOf(rank[at]);
      if ((key & above) == threshold.key) {
        atomicAdd(&counts[(key >> shift) % kDigits], 1);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int32_t digit = kDigits - 1;
      int32_t left = threshold.equal;
      for (; counts[digit] < left; --digit) {
        left -= counts[digit];
      }
      found = {threshold.key | static_cast<uint32_t>(digit) << shift, left};
    }
    __syncthreads();
    threshold = found;
  }
  return threshold;
}

// How many threads before this one say `flag`, and how many do in all.
struct Place {
  int32_t before;
  int32_t all;
};

__device__ Place PlaceOf(bool flag, int32_t* warps) {
  const uint32_t lanes = __ballot_sync(kWholeWarp, flag);
  const uint32_t lane = threadIdx.x % 32;
  if (lane == 0) {
    warps[threadIdx.x / 32] = __popc(lanes);
  }
  __syncthreads();
  Place place{__popc(lanes & ((1u << lane) - 1)), 0};
  for (int32_t warp = 0; warp < kWarps; ++warp) {
    place.before += warp < static_cast<int32_t>(threadIdx.x) / 32 ? warps[warp] : 0;
    place.all += warps[warp];
  }
  __syncthreads();
  return place;
}

// One block of queries: keeps the best candidates, of equal ranks those of the lowest tokens.
__global__ void __launch_bounds__(kThreads) Select(const __grid_constant__ PruneLaunch launch) {
  __shared__ int32_t warps[kWarps];
  const StageLayout& layout = launch.layouts[blockIdx.x];
  const PruneBlock& prune = launch.blocks[blockIdx.x];
  const int32_t chunk = launch.stage.chunk_tokens;
  if (layout.scored == 0) {
    for (auto at = static_cast<int32_t>(threadIdx.x); at < layout.candidates; at += kThreads) {
      prune.selected[at] = prune.Candidate(at, chunk);
    }
    return;
  }
  const float* rank = launch.workspace + layout.rank;
  const Threshold threshold = FindThreshold(rank, layout.candidates, prune.num_selected);
  int32_t equal = threshold.equal;  // still to be kept
  int32_t kept = 0;
  for (int32_t first = 0; first < layout.candidates; first += kThreads) {
    const int32_t candidate = first + static_cast<int32_t>(threadIdx.x);
    const bool there = candidate < layout.candidates;
    const uint32_t key = there ? KeyOf(rank[candidate]) : 0;
    const bool ties = there && key == threshold.key;
    const Place tie = PlaceOf(ties, warps);
    const bool keeps = there && (key > threshold.key || (ties && tie.before < equal));
    const Place place = PlaceOf(keeps, warps);
    if (keeps) {
      prune.selected[kept + place.before] = prune.Candidate(candidate, chunk);
    }
    equal -= static_cast<int32_t>(Min(equal, tie.all));
    kept += place.all;
  }
}

}  // namespace

void LaunchSelect(const PruneLaunch& launch, cudaStream_t stream) {
  Select<<<static_cast<uint32_t>(launch.num_blocks), kThreads, 0, stream>>>(launch);
}

}  // namespace longshore::cuda
