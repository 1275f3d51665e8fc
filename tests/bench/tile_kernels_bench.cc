// Speed of the CPU attention backend's inner loops. bytes_per_second counts keys, values and
// summaries in storage dtype, flops two operations a multiply-add; both of all threads together, by
// CPU time unless the name says real_time.

#include "engine/cpu/tile_kernels_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/tile_kernels_bench.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace longshore::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Multiply-adds between registers only: what no kernel can beat. Returns how many were done.
int64_t MultiplyAdds(int64_t rounds, float factor, float* result) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kChains = 12;  // latency 4, two a cycle
  const auto x = hn::Set(d, factor);
  hn::Vec<decltype(d)> sums[kChains];
#pragma GCC unroll 12
  for (int64_t chain = 0; chain < kChains; ++chain) {
    sums[chain] = hn::Set(d, static_cast<float>(chain));
  }
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int64_t chain = 0; chain < kChains; ++chain) {
      sums[chain] = hn::MulAdd(sums[chain], x, x);
    }
  }
#pragma GCC unroll 12
  for (int64_t chain = 0; chain < kChains; ++chain) {
    *result += hn::GetLane(hn::SumOfLanes(d, sums[chain]));
  }
  return rounds * kChains * static_cast<int64_t>(hn::Lanes(d));
}

}  // namespace longshore::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "engine/core/half.h"
#include "engine/cpu/tile_kernels.h"

namespace longshore::cpu {

HWY_EXPORT(MultiplyAdds);

namespace {

constexpr int32_t kPageTokens = 64;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kDepth = 128;
constexpr size_t kHugePage = size_t{2} << 20;

struct Free {
  void operator()(void* data) const { std::free(data); }
};

/// Floats on a line of their own, as the engine's workspace has them: a vector that straddles two
/// lines is two loads.
class Floats {
 public:
  explicit Floats(int64_t count, float value = 0.0F)
      : data_(static_cast<float*>(
            std::aligned_alloc(64, static_cast<size_t>((count + 15) / 16 * 64)))) {
    std::fill_n(data_.get(), count, value);
  }
  static Floats Gaussian(int64_t count, float deviation) {
    Floats floats(count);
    std::mt19937 random(42);
    std::normal_distribution<float> normal(0.0F, deviation);
    std::generate_n(floats.data_.get(), count, [&] { return normal(random); });
    return floats;
  }
  float* at(int64_t index) const { return data_.get() + index; }

 private:
  std::unique_ptr<float, Free> data_;
};

/// Bytes of bf16 in huge pages.
class Bf16Arena {
 public:
  explicit Bf16Arena(int64_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(std::aligned_alloc(kHugePage, static_cast<size_t>(bytes)))) {
    madvise(data_.get(), static_cast<size_t>(bytes), MADV_HUGEPAGE);
    constexpr int64_t kPeriod = 1 << 16;
    const Floats values = Floats::Gaussian(kPeriod, 1.0F);
    auto* elements = reinterpret_cast<Bf16*>(data_.get());
    for (int64_t i = 0; i < bytes / SizeOf(DType::kBf16); ++i) {
      elements[i] = ToBf16(*values.at(i % kPeriod));
    }
  }
  int64_t bytes() const { return bytes_; }
  const std::byte* at(int64_t byte) const { return data_.get() + byte; }

 private:
  int64_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

const Bf16Arena& Arena() {
  static const Bf16Arena arena(int64_t{512} << 20);
  return arena;
}

// Pages as the engine has them: [K, V][64 tokens][8 heads][128] of bf16.
constexpr int64_t kHeadBytes = kDepth * 2;
constexpr int64_t kTokenBytes = kKvHeads * kHeadBytes;
constexpr int64_t kValueOffset = kPageTokens * kTokenBytes;
constexpr int64_t kPageBytes = 2 * kValueOffset;

RowSource Keys(int64_t token, int32_t head) {
  return {.first = Arena().at(token / kPageTokens * kPageBytes + token % kPageTokens * kTokenBytes +
                              head * kHeadBytes),
          .stride_bytes = kTokenBytes,
          .dtype = DType::kBf16};
}

RowSource Values(RowSource keys) {
  keys.first = static_cast<const std::byte*>(keys.first) + kValueOffset;
  if (keys.next != nullptr) {
    keys.next = static_cast<const std::byte*>(keys.next) + kValueOffset;
  }
  return keys;
}

/// What one thread needs for one decode step: `rows` query rows of each KV head.
struct DecodeState {
  DecodeState(int32_t row_count, int32_t tile_tokens)
      : rows(row_count),
        tile(tile_tokens),
        queries(Floats::Gaussian(kKvHeads * rows * kDepth, 1.0F)),
        acc(kKvHeads * rows * kDepth),
        max(kKvHeads * rows, -std::numeric_limits<float>::infinity()),
        sum(kKvHeads * rows),
        rescale(kKvHeads * rows),
        scores(rows * tile),
        cos(tile * kDepth / 2),
        sin(tile * kDepth / 2),
        table(Floats::Gaussian(kPageTokens * kDepth / 2, 0.5F)) {}

  /// Adds tokens [token, token + tile) of all heads; true positions.
  void Attend(int64_t token, int64_t next_token) {
    const float* fine = table.at(token % kPageTokens * (kDepth / 2));
    ComposeAngles({.cos = table.at(0), .sin = table.at(0)}, {.cos = fine, .sin = fine}, tile,
                  kDepth / 2, cos.at(0), sin.at(0));
    const TileRotation rotation = {.angles = {.cos = cos.at(0), .sin = sin.at(0)},
                                   .pairs = kDepth / 2};
    const ScoreTile tile_scores = {
        .data = scores.at(0), .stride = tile, .rows = rows, .keys = tile};
    for (int32_t head = 0; head < kKvHeads; ++head) {
      RowSource keys = Keys(token, head);
      keys.next = next_token < 0 ? nullptr : Keys(next_token, head).first;
      const int32_t row = head * rows;
      const SoftmaxRows softmax = {
          .max = max.at(row), .sum = sum.at(row), .rescale = rescale.at(row)};
      DotRotatedTile(queries.at(row * kDepth), keys, rotation, kDepth, tile_scores);
      ScaleTile(tile_scores, 0.088F, 0.0F);
      SoftmaxTile(tile_scores, nullptr, softmax);
      AccumulateTile(tile_scores, softmax.rescale, Values(keys), kDepth, acc.at(row * kDepth));
    }
  }

  int32_t rows;
  int32_t tile;
  Floats queries, acc, max, sum, rescale, scores, cos, sin, table;
};

/// Dense decoding over 512 MB of keys and values, shared among the threads.
void Decode(benchmark::State& state) {
  const bool prefetch = state.range(2) != 0;
  DecodeState decode(static_cast<int32_t>(state.range(0)), static_cast<int32_t>(state.range(1)));
  const int64_t share = Arena().bytes() / kPageBytes / state.threads();
  const int64_t begin = share * state.thread_index() * kPageTokens;
  const int64_t end = begin + share * kPageTokens;
  while (state.KeepRunning()) {
    for (int64_t token = begin; token < end; token += decode.tile) {
      const int64_t next = std::min(token + decode.tile, end - decode.tile);
      decode.Attend(token, prefetch ? next : -1);
    }
    benchmark::DoNotOptimize(*decode.acc.at(0));
  }
  state.SetBytesProcessed(state.iterations() * share * kPageBytes);
}
BENCHMARK(Decode)
    ->ArgNames({"rows", "tile", "prefetch"})
    ->ArgsProduct({{4}, {16, 32, 64}, {0, 1}})
    ->ArgsProduct({{1, 2, 3, 8, 16}, {64}, {1}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(Decode)
    ->ArgNames({"rows", "tile", "prefetch"})
    ->ArgsProduct({{4}, {32, 64}, {1}})
    ->Threads(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// Upper bounds of 64 chunks at a time, one KV head after the other, from 512 MB of summaries
/// [chunks][8 heads][2][128].
void Bounds(benchmark::State& state) {
  const auto rows = static_cast<int32_t>(state.range(0));
  constexpr int32_t kChunks = 64;
  constexpr int64_t kTileBytes = kChunks * 2 * kTokenBytes;
  const Floats queries = Floats::Gaussian(kKvHeads * rows * kDepth, 1.0F);
  const Floats split(kKvHeads * rows * 2 * kDepth);
  const Floats scores(rows * kChunks);
  SplitSigns(queries.at(0), kKvHeads * rows, kDepth, split.at(0));
  const int64_t tiles = Arena().bytes() / kTileBytes;
  while (state.KeepRunning()) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      for (int32_t head = 0; head < kKvHeads; ++head) {
        const int64_t next = std::min(tile + 1, tiles - 1);
        DotTile(split.at(head * rows * 2 * kDepth),
                {.first = Arena().at(tile * kTileBytes + head * 2 * kHeadBytes),
                 .stride_bytes = 2 * kTokenBytes,
                 .dtype = DType::kBf16,
                 .next = Arena().at(next * kTileBytes + head * 2 * kHeadBytes)},
                2 * kDepth,
                {.data = scores.at(0), .stride = kChunks, .rows = rows, .keys = kChunks});
      }
    }
    benchmark::DoNotOptimize(*scores.at(0));
  }
  state.SetBytesProcessed(state.iterations() * Arena().bytes());
}
BENCHMARK(Bounds)->ArgName("rows")->Arg(1)->Arg(4)->Arg(8)->Unit(benchmark::kMillisecond);

void SetFlops(benchmark::State& state, int64_t multiply_adds) {
  state.counters["flops"] =
      benchmark::Counter(2.0 * static_cast<double>(multiply_adds), benchmark::Counter::kIsRate);
}

void Peak(benchmark::State& state) {
  float result = 0.0F;
  int64_t multiply_adds = 0;
  while (state.KeepRunning()) {
    multiply_adds += HWY_DYNAMIC_DISPATCH(MultiplyAdds)(1 << 20, 0.5F, &result);
  }
  benchmark::DoNotOptimize(result);
  SetFlops(state, multiply_adds);
}
BENCHMARK(Peak);

/// One tile of prefill: rows [rows, depth] and 64 keys or values of bf16 or fp32.
void PrefillTile(benchmark::State& state, bool accumulate) {
  const auto rows = static_cast<int32_t>(state.range(0));
  const auto depth = static_cast<int32_t>(state.range(1));
  const Floats queries = Floats::Gaussian(rows * depth, 1.0F);
  const Floats tile = Floats::Gaussian(kPageTokens * depth, 1.0F);
  const Floats acc(rows * depth);
  const Floats scores(rows * kPageTokens, 0.01F);
  const Floats rescale(rows, 0.9F);
  RowSource source = Keys(0, 0);
  if (state.range(2) == 0) {
    source = {.first = tile.at(0), .stride_bytes = depth * 4, .dtype = DType::kF32};
  }
  const ScoreTile view = {
      .data = scores.at(0), .stride = kPageTokens, .rows = rows, .keys = kPageTokens};
  while (state.KeepRunning()) {
    if (accumulate) {
      AccumulateTile(view, rescale.at(0), source, depth, acc.at(0));
    } else {
      DotTile(queries.at(0), source, depth, view);
    }
    benchmark::ClobberMemory();
  }
  SetFlops(state, state.iterations() * rows * depth * kPageTokens);
}
void PrefillDot(benchmark::State& state) { PrefillTile(state, false); }
void PrefillAccumulate(benchmark::State& state) { PrefillTile(state, true); }
BENCHMARK(PrefillDot)
    ->ArgNames({"rows", "depth", "bf16"})
    ->ArgsProduct({{64, 256, 1024}, {64, 128}, {0, 1}});
BENCHMARK(PrefillAccumulate)
    ->ArgNames({"rows", "depth", "bf16"})
    ->ArgsProduct({{64, 256, 1024}, {64, 128}, {0, 1}});

}  // namespace
}  // namespace longshore::cpu

BENCHMARK_MAIN();

#endif  // HWY_ONCE
