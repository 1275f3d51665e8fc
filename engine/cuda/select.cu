#include "engine/cuda/block_reduce.cuh"
#include "engine/cuda/kernels.h"

namespace longshore::cuda {
namespace {

constexpr int32_t kBinBits = 9;
constexpr int32_t kThreads = 1 << kBinBits;  // one a bin
constexpr int32_t kWarps = kThreads / 32;

// Unsigned numbers in the order of the ranks; the two zeros are one.
__device__ uint32_t KeyOf(float rank) {
  const uint32_t bits = __float_as_uint(rank + 0.0F);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The sum of the values of the threads before this one, and of all.
struct Prefix {
  uint64_t before;
  uint64_t all;
};

__device__ Prefix PrefixOf(uint64_t value, uint64_t* shared) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  uint64_t sum = value;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint64_t other = __shfl_up_sync(kWholeWarp, sum, step);
    sum += lane >= step ? other : 0;
  }
  if (lane == 31) {
    shared[warp] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    uint64_t warps = lane < kWarps ? shared[lane] : 0;
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint64_t other = __shfl_up_sync(kWholeWarp, warps, step);
      warps += lane >= step ? other : 0;
    }
    if (lane < kWarps) {
      shared[lane] = warps;
    }
  }
  __syncthreads();
  const Prefix prefix{sum - value + (warp > 0 ? shared[warp - 1] : 0), shared[kWarps - 1]};
  __syncthreads();
  return prefix;
}

struct Shared {
  uint64_t scan[kWarps];
  uint32_t reduce[kWarps];
  int32_t counts[kThreads];  // of bins
  uint32_t members[kThreads];
  int32_t num_members;
  uint32_t low;
  uint32_t high;
  int32_t left;
};

// The key of the last candidate that is kept, and how many of that key are.
struct Threshold {
  uint32_t key;
  int32_t equal;
};

// Keys are counted in bins of equal width between the lowest and the highest; the bin that holds
// the threshold is narrowed down until its members can be compared with each other.
__device__ Threshold FindThreshold(const float* rank, int32_t count, int32_t keep, Shared* shared) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  uint32_t low = ~0u;
  uint32_t high = 0;
  for (int32_t at = thread; at < count; at += kThreads) {
    const uint32_t key = KeyOf(rank[at]);
    low = min(low, key);
    high = max(high, key);
  }
  low = BlockReduce<kThreads>(
      low, [](uint32_t a, uint32_t b) { return min(a, b); }, shared->reduce);
  high = BlockReduce<kThreads>(
      high, [](uint32_t a, uint32_t b) { return max(a, b); }, shared->reduce);
  int32_t left = keep;  // to be found from here on, in keys low..high
  while (low < high) {
    // The widest power of two that needs no more bins than there are threads.
    const int32_t shift = max(0, 32 - __clz(high - low) - kBinBits);
    shared->counts[thread] = 0;
    if (thread == 0) {
      shared->num_members = 0;
    }
    __syncthreads();
    for (int32_t at = thread; at < count; at += kThreads) {
      const uint32_t key = KeyOf(rank[at]);
      if (key >= low && key <= high) {
        atomicAdd(&shared->counts[(key - low) >> shift], 1);
      }
    }
    __syncthreads();
    // Thread t has the t-th bin from the top.
    const int32_t bin = kThreads - 1 - thread;
    const int32_t here = shared->counts[bin];
    const auto above =
        static_cast<int32_t>(PrefixOf(static_cast<uint64_t>(here), shared->scan).before);
    if (above < left && above + here >= left) {
      const uint32_t first = low + (static_cast<uint32_t>(bin) << shift);
      shared->low = first;
      shared->high = min(high, first + ((1u << shift) - 1));
      shared->left = left - above;
    }
    __syncthreads();
    low = shared->low;
    high = shared->high;
    left = shared->left;
    for (int32_t at = thread; at < count; at += kThreads) {
      const uint32_t key = KeyOf(rank[at]);
      if (key >= low && key <= high) {
        const int32_t member = atomicAdd(&shared->num_members, 1);
        if (member < kThreads) {
          shared->members[member] = key;
        }
      }
    }
    __syncthreads();
    if (shared->num_members > kThreads) {
      __syncthreads();
      continue;
    }
    if (thread < shared->num_members) {
      const uint32_t key = shared->members[thread];
      int32_t greater = 0;
      int32_t equal = 0;
      for (int32_t member = 0; member < shared->num_members; ++member) {
        greater += shared->members[member] > key ? 1 : 0;
        equal += shared->members[member] == key ? 1 : 0;
      }
      if (greater < left && greater + equal >= left) {  // so do all that are equal to it
        shared->low = key;
        shared->left = left - greater;
      }
    }
    __syncthreads();
    low = shared->low;
    left = shared->left;
    break;
  }
  return {low, left};
}

// One block of queries: keeps the best candidates, of equal ranks those of the lowest tokens.
__global__ void __launch_bounds__(kThreads) Select(const __grid_constant__ PruneLaunch launch) {
  __shared__ Shared shared;
  const StageLayout& layout = launch.layouts[blockIdx.x];
  const PruneBlock& prune = launch.blocks[blockIdx.x];
  const int32_t chunk = launch.stage.chunk_tokens;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (layout.scored == 0) {
    for (int32_t at = thread; at < layout.candidates; at += kThreads) {
      prune.selected[at] = prune.Candidate(at, chunk);
    }
    return;
  }
  const float* rank = launch.workspace + layout.rank;
  const Threshold threshold = FindThreshold(rank, layout.candidates, prune.num_selected, &shared);
  // Each thread has some neighbours; what those before it keep says where its own go.
  const auto share = static_cast<int32_t>(CeilDiv(layout.candidates, kThreads));
  const int32_t first = thread * share;
  const int32_t end = min(first + share, layout.candidates);
  uint32_t greater = 0;
  uint32_t ties = 0;
  for (int32_t at = first; at < end; ++at) {
    const uint32_t key = KeyOf(rank[at]);
    greater += key > threshold.key ? 1 : 0;
    ties += key == threshold.key ? 1 : 0;
  }
  const Prefix prefix = PrefixOf(static_cast<uint64_t>(ties) << 32 | greater, shared.scan);
  auto ties_before = static_cast<int32_t>(prefix.before >> 32);
  auto greater_before = static_cast<int32_t>(prefix.before & 0xffffffffu);
  if (greater == 0 && (ties == 0 || ties_before >= threshold.equal)) {
    return;
  }
  for (int32_t at = first; at < end; ++at) {
    const uint32_t key = KeyOf(rank[at]);
    const bool tie = key == threshold.key;
    if (key > threshold.key || (tie && ties_before < threshold.equal)) {
      prune.selected[greater_before + min(ties_before, threshold.equal)] =
          prune.Candidate(at, chunk);
    }
    greater_before += key > threshold.key ? 1 : 0;
    ties_before += tie ? 1 : 0;
  }
}

}  // namespace

void LaunchSelect(const PruneLaunch& launch, cudaStream_t stream) {
  Select<<<static_cast<uint32_t>(launch.num_blocks), kThreads, 0, stream>>>(launch);
}

}  // namespace longshore::cuda
