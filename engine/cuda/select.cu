#include "engine/cuda/block_reduce.cuh"
#include "engine/cuda/chain.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/shared_copy.cuh"

namespace longshore::cuda {
namespace {

constexpr int32_t kBinBits = 10;
constexpr int32_t kThreads = 1 << kBinBits;  // one a bin
constexpr int32_t kWarps = kThreads / 32;
constexpr uint32_t kAbsent = 0;  // less than the key of any rank

// Unsigned numbers in the order of the ranks; the two zeros are one.
__device__ uint32_t KeyOf(float rank) {
  const uint32_t bits = __float_as_uint(rank + 0.0F);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The ranks of a block's candidates, of which each thread has some neighbours: in registers where
// kOfThread of them are enough, else in memory.
template <int32_t kOfThread>
struct Ranks {
  int32_t first;  // candidate of this thread
  int32_t count;
  uint32_t keys[kOfThread];

  __device__ Ranks(const float* rank, int32_t candidates)
      : first(static_cast<int32_t>(threadIdx.x) * kOfThread),
        count(max(0, min(kOfThread, candidates - first))) {
#pragma unroll
    for (int32_t at = 0; at < kOfThread; at += 4) {
      if constexpr (kOfThread % 4 == 0) {
        // Rows of ranks are padded to lines, so that whole words can be read.
        const float4 four = first + at < candidates
                                ? __ldcg(reinterpret_cast<const float4*>(rank + first + at))
                                : float4{};
        keys[at] = at < count ? KeyOf(four.x) : kAbsent;
        keys[at + 1] = at + 1 < count ? KeyOf(four.y) : kAbsent;
        keys[at + 2] = at + 2 < count ? KeyOf(four.z) : kAbsent;
        keys[at + 3] = at + 3 < count ? KeyOf(four.w) : kAbsent;
      } else {
        keys[at] = at < count ? KeyOf(__ldcg(rank + first + at)) : kAbsent;
      }
    }
  }
  // body(candidate, key) in ascending order.
  template <class Body>
  __device__ void ForEach(const Body& body) const {
#pragma unroll
    for (int32_t at = 0; at < kOfThread; ++at) {
      if (keys[at] != kAbsent) {
        body(first + at, keys[at]);
      }
    }
  }
};

template <>
struct Ranks<0> {
  const float* rank;
  int32_t first;
  int32_t end;

  __device__ Ranks(const float* ranks, int32_t candidates) : rank(ranks) {
    const int32_t share = (candidates + kThreads - 1) / kThreads;
    first = min(static_cast<int32_t>(threadIdx.x) * share, candidates);
    end = min(first + share, candidates);
  }
  template <class Body>
  __device__ void ForEach(const Body& body) const {
    for (int32_t at = first; at < end; ++at) {
      body(at, KeyOf(__ldcg(rank + at)));
    }
  }
};

// The sum of the values of the threads before this one.
__device__ int32_t SumBefore(int32_t value, int32_t* shared) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  int32_t sum = value;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(kWholeWarp, sum, step);
    sum += lane >= step ? other : 0;
  }
  if (lane == 31) {
    shared[warp] = sum;
  }
  __syncthreads();
  static_assert(kWarps == 32);
  int32_t warps = shared[lane];
  for (uint32_t step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(kWholeWarp, warps, step);
    warps += lane >= step ? other : 0;
  }
  const int32_t before = __shfl_sync(kWholeWarp, warps, warp == 0 ? 0 : warp - 1);
  __syncthreads();
  return sum - value + (warp == 0 ? 0 : before);
}

struct Shared {
  Uninitialized<PruneBlock> prune;
  Uninitialized<StageLayout> layout;
  int32_t scan[kWarps];
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
template <class Keys>
__device__ Threshold FindThreshold(const Keys& keys, int32_t keep, Shared* shared) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  uint32_t low = ~0u;
  uint32_t high = 0;
  keys.ForEach([&](int32_t, uint32_t key) {
    low = min(low, key);
    high = max(high, key);
  });
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
    keys.ForEach([&](int32_t, uint32_t key) {
      if (key >= low && key <= high) {
        atomicAdd(&shared->counts[(key - low) >> shift], 1);
      }
    });
    __syncthreads();
    // Thread t has the t-th bin from the top.
    const int32_t bin = kThreads - 1 - thread;
    const int32_t here = shared->counts[bin];
    const int32_t above = SumBefore(here, shared->scan);
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
    keys.ForEach([&](int32_t, uint32_t key) {
      if (key >= low && key <= high) {
        const int32_t member = atomicAdd(&shared->num_members, 1);
        if (member < kThreads) {
          shared->members[member] = key;
        }
      }
    });
    __syncthreads();
    const int32_t members = shared->num_members;
    if (members > kThreads) {
      __syncthreads();
      continue;
    }
    if (thread < members) {
      const uint32_t key = shared->members[thread];
      int32_t greater = 0;
      int32_t equal = 0;
      for (int32_t member = 0; member < members; ++member) {
        greater += shared->members[member] > key ? 1 : 0;
        equal += shared->members[member] == key ? 1 : 0;
      }
      if (greater < left && greater + equal >= left) {  // so do all that are equal to it
        shared->low = key;
        shared->left = left - greater;
      }
    }
    __syncthreads();
    return {shared->low, shared->left};
  }
  return {low, left};
}

// One block of queries: keeps the best candidates, of equal ranks those of the lowest tokens.
template <int32_t kOfThread>
__global__ void __launch_bounds__(kThreads, 1) Select(const __grid_constant__ PruneLaunch launch) {
  __shared__ Shared shared;
  CopyToShared(&launch.Block(blockIdx.x), shared.prune.get());
  CopyToShared(&launch.Layout(blockIdx.x), shared.layout.get());
  WaitForEarlier();
  LetLaterStart();
  __syncthreads();
  const StageLayout& layout = *shared.layout;
  const PruneBlock& prune = *shared.prune;
  const int32_t chunk = launch.stage.chunk_tokens;
  if (layout.scored == 0) {
    for (auto at = static_cast<int32_t>(threadIdx.x); at < layout.candidates; at += kThreads) {
      prune.selected[at] = prune.Candidate(at, chunk);
    }
    return;
  }
  const Ranks<kOfThread> ranks(launch.workspace + layout.rank, layout.candidates);
  const Threshold threshold = FindThreshold(ranks, prune.num_selected, &shared);
  // What the threads before keep says where this one's go.
  int32_t greater = 0;
  int32_t ties = 0;
  ranks.ForEach([&](int32_t, uint32_t key) {
    greater += key > threshold.key ? 1 : 0;
    ties += key == threshold.key ? 1 : 0;
  });
  int32_t ties_before = SumBefore(ties, shared.scan);
  int32_t greater_before = SumBefore(greater, shared.scan);
  if (greater == 0 && (ties == 0 || ties_before >= threshold.equal)) {
    return;
  }
  ranks.ForEach([&](int32_t candidate, uint32_t key) {
    const bool tie = key == threshold.key;
    if (key > threshold.key || (tie && ties_before < threshold.equal)) {
      prune.selected[greater_before + min(ties_before, threshold.equal)] =
          prune.Candidate(candidate, chunk);
    }
    greater_before += key > threshold.key ? 1 : 0;
    ties_before += tie ? 1 : 0;
  });
}

}  // namespace

void LaunchSelect(const PruneLaunch& launch, cudaStream_t stream) {
  const ChainedShape shape{dim3(static_cast<uint32_t>(launch.num_blocks)), kThreads};
  if (launch.most_candidates <= kThreads) {
    LaunchChained(Select<1>, shape, launch, stream);
  } else if (launch.most_candidates <= 16 * kThreads) {
    LaunchChained(Select<16>, shape, launch, stream);
  } else {
    LaunchChained(Select<0>, shape, launch, stream);
  }
}

}  // namespace longshore::cuda
