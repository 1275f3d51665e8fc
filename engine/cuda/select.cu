#include "engine/cuda/block_reduce.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/launch.cuh"
#include "engine/cuda/rank.cuh"
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

// Where the keys of a thread's candidates are when there are too many for registers.
constexpr int32_t kInShared = -1;
constexpr int32_t kInMemory = 0;

// The ranks of a block's candidates, of which each thread has some neighbours: in registers where
// kOfThread of them are enough.
template <int32_t kOfThread>
struct Ranks {
  static constexpr bool kMany = kOfThread > 1;

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
  // One key, of candidate number threadIdx.x where it is there.
  __device__ explicit Ranks(uint32_t key) requires(kOfThread == 1)
      : first(static_cast<int32_t>(threadIdx.x)),
        count(key != kAbsent ? 1 : 0),
        keys{key} {}
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

// Candidates of a thread: an odd number, so that the threads of a warp meet different banks.
__host__ __device__ inline int32_t ShareOf(int32_t candidates) {
  return (candidates + kThreads - 1) / kThreads | 1;
}

template <>
struct Ranks<kInShared> {
  static constexpr bool kMany = true;

  const uint32_t* keys;
  int32_t first;
  int32_t end;

  __device__ Ranks(const float* rank, int32_t candidates) {
    extern __shared__ __align__(16) uint32_t shared_keys[];
    for (auto at = static_cast<int32_t>(threadIdx.x); at < candidates; at += kThreads) {
      shared_keys[at] = KeyOf(__ldcg(rank + at));
    }
    __syncthreads();
    keys = shared_keys;
    first = min(static_cast<int32_t>(threadIdx.x) * ShareOf(candidates), candidates);
    end = min(first + ShareOf(candidates), candidates);
  }
  template <class Body>
  __device__ void ForEach(const Body& body) const {
#pragma unroll 8
    for (int32_t at = first; at < end; ++at) {
      body(at, keys[at]);
    }
  }
};

template <>
struct Ranks<kInMemory> {
  static constexpr bool kMany = true;

  const float* rank;
  int32_t first;
  int32_t end;

  __device__ Ranks(const float* ranks, int32_t candidates) : rank(ranks) {
    first = min(static_cast<int32_t>(threadIdx.x) * ShareOf(candidates), candidates);
    end = min(first + ShareOf(candidates), candidates);
  }
  template <class Body>
  __device__ void ForEach(const Body& body) const {
    for (int32_t at = first; at < end; ++at) {
      body(at, KeyOf(__ldcg(rank + at)));
    }
  }
};

// The sum of the values of the threads before this one.
template <class T>
__device__ T SumBefore(T value, T* shared) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  T sum = value;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const T other = __shfl_up_sync(kWholeWarp, sum, step);
    sum += lane >= step ? other : 0;
  }
  if (lane == 31) {
    shared[warp] = sum;
  }
  __syncthreads();
  static_assert(kWarps == 32);
  T warps = shared[lane];
  for (uint32_t step = 1; step < 32; step *= 2) {
    const T other = __shfl_up_sync(kWholeWarp, warps, step);
    warps += lane >= step ? other : 0;
  }
  const T before = __shfl_sync(kWholeWarp, warps, warp == 0 ? 0 : warp - 1);
  __syncthreads();
  return sum - value + (warp == 0 ? 0 : before);
}

struct Shared {
  Uninitialized<PruneBlock> prune;
  Uninitialized<StageLayout> layout;
  union {
    uint32_t scan[kWarps];
    uint64_t long_scan[kWarps];
  };
  uint32_t lowest[kWarps];
  uint32_t highest[kWarps];
  int32_t counts[kThreads];  // of bins
  uint32_t members[kThreads];
  int32_t num_members;
  uint32_t low;
  uint32_t high;
  int32_t left;
  float shifts[kShifts];
};

// The key of the last candidate that is kept, and how many of that key are.
struct Threshold {
  uint32_t key;
  int32_t equal;
};

// Keys that the threshold is between, and how many of these are kept.
struct Span {
  uint32_t low;
  uint32_t high;
  int32_t left;
};

// The lowest and the highest key.
template <class Keys>
__device__ Span SpanOf(const Keys& keys, int32_t keep, Shared* shared) {
  uint32_t low = ~0u;
  uint32_t high = 0;
  keys.ForEach([&](int32_t, uint32_t key) {
    low = min(low, key);
    high = max(high, key);
  });
  low = __reduce_min_sync(kWholeWarp, low);
  high = __reduce_max_sync(kWholeWarp, high);
  if (threadIdx.x % 32 == 0) {
    shared->lowest[threadIdx.x / 32] = low;
    shared->highest[threadIdx.x / 32] = high;
  }
  __syncthreads();
  return {__reduce_min_sync(kWholeWarp, shared->lowest[threadIdx.x % 32]),
          __reduce_max_sync(kWholeWarp, shared->highest[threadIdx.x % 32]), keep};
}

// Counts the keys of a span in bins of equal width: the bin that holds the threshold.
template <class Keys>
__device__ Span Narrowed(const Keys& keys, const Span& span, Shared* shared) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  // The widest power of two that needs no more bins than there are threads.
  const int32_t shift = max(0, 32 - __clz(span.high - span.low) - kBinBits);
  shared->counts[thread] = 0;
  __syncthreads();
  keys.ForEach([&](int32_t, uint32_t key) {
    if (key >= span.low && key <= span.high) {
      atomicAdd(&shared->counts[(key - span.low) >> shift], 1);
    }
  });
  __syncthreads();
  // Thread t has the t-th bin from the top.
  const int32_t bin = kThreads - 1 - thread;
  const int32_t here = shared->counts[bin];
  const auto above = static_cast<int32_t>(SumBefore(static_cast<uint32_t>(here), shared->scan));
  if (above < span.left && above + here >= span.left) {
    const uint32_t first = span.low + (static_cast<uint32_t>(bin) << shift);
    shared->low = first;
    shared->high = min(span.high, first + ((1u << shift) - 1));
    shared->left = span.left - above;
    shared->num_members = 0;
  }
  __syncthreads();
  return {shared->low, shared->high, shared->left};
}

// The threshold is narrowed down until what is left can be compared with each other.
template <class Keys>
__device__ Threshold FindThreshold(const Keys& keys, int32_t keep, Shared* shared) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  Span span = SpanOf(keys, keep, shared);
  if (Keys::kMany && keep <= kThreads) {
    // So many threads' best keys are as good as the threshold: few of the others need be counted.
    uint32_t best = kAbsent;
    keys.ForEach([&](int32_t, uint32_t key) { best = max(best, key); });
    const Ranks<1> of_threads(best);
    if (__syncthreads_count(best != kAbsent) >= keep) {
      span.low = Narrowed(of_threads, span, shared).low;
      __syncthreads();
    }
  }
  while (span.low < span.high) {
    span = Narrowed(keys, span, shared);
    const auto [low, high, left] = span;
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
  return {span.low, span.left};
}

// What a thread knows of its block's ranks: found here where `kRanks`, else by an earlier kernel.
template <int32_t kOfThread, bool kRanks>
__device__ Ranks<kOfThread> RanksOf(const PruneLaunch& launch,
                                    const StageLayout& layout,
                                    Shared* shared) {
  if constexpr (kRanks) {
    const auto candidate = static_cast<int32_t>(threadIdx.x);
    const float rank = RankOf<kThreads>(launch, layout, candidate, shared->shifts);
    return Ranks<kOfThread>(candidate < layout.candidates ? KeyOf(rank) : kAbsent);
  } else {
    return {launch.workspace + layout.rank, layout.candidates};
  }
}

// One block of queries: keeps the best candidates, of equal ranks those of the lowest tokens.
template <int32_t kOfThread, bool kRanks>
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
  const Ranks<kOfThread> ranks = RanksOf<kOfThread, kRanks>(launch, layout, &shared);
  const Threshold threshold = FindThreshold(ranks, prune.num_selected, &shared);
  // What the threads before keep says where this one's go.
  int32_t greater = 0;
  int32_t ties = 0;
  ranks.ForEach([&](int32_t, uint32_t key) {
    greater += key > threshold.key ? 1 : 0;
    ties += key == threshold.key ? 1 : 0;
  });
  int32_t ties_before = 0;
  int32_t greater_before = 0;
  if constexpr (kOfThread > 0) {  // so few that both counts fit a word
    static_assert(kOfThread * kThreads < 1 << 16);
    const auto both = static_cast<uint32_t>(greater << 16 | ties);
    const uint32_t before = SumBefore(both, shared.scan);
    ties_before = static_cast<int32_t>(before & 0xffffu);
    greater_before = static_cast<int32_t>(before >> 16);
  } else {
    const auto both = static_cast<uint64_t>(greater) << 32 | static_cast<uint64_t>(ties);
    const uint64_t before = SumBefore(both, shared.long_scan);
    ties_before = static_cast<int32_t>(before);
    greater_before = static_cast<int32_t>(before >> 32);
  }
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

void LaunchSelect(const PruneLaunch& launch, CallQueue* queue) {
  GridShape shape{dim3(static_cast<uint32_t>(launch.num_blocks)), kThreads};
  const int32_t bytes =
      ShareOf(launch.most_candidates) * kThreads * static_cast<int32_t>(sizeof(uint32_t));
  if (launch.most_candidates <= kThreads) {
    LaunchChained<Select<1, false>>(shape, queue, launch);
  } else if (launch.most_candidates <= 16 * kThreads) {
    LaunchChained<Select<16, false>>(shape, queue, launch);
  } else if (bytes + static_cast<int32_t>(sizeof(Shared)) <= launch.shared_bytes) {
    shape.shared_bytes = bytes;
    LaunchChained<Select<kInShared, false>>(shape, queue, launch);
  } else {
    LaunchChained<Select<kInMemory, false>>(shape, queue, launch);
  }
}

void LaunchRankAndSelect(const PruneLaunch& launch, CallQueue* queue) {
  if (launch.most_candidates <= kThreads) {
    const GridShape shape{dim3(static_cast<uint32_t>(launch.num_blocks)), kThreads};
    LaunchChained<Select<1, true>>(shape, queue, launch);
    return;
  }
  LaunchRank(launch, queue);
  LaunchSelect(launch, queue);
}

}  // namespace longshore::cuda
