// One token of a whole model, through the engine: a decode step in each layer, 8B shapes, one
// session with a long context, `standard`. Layers refresh their stages in turns, by the engine's
// own rule, and what is timed is what a model waits for: all layers, one after the other. One JSON
// object a line on stdout.
//
//   cuda_token_bench [--backend=cuda] [--layers=32] [--tokens=1048576] [--steps=1000]
//
// The context is halved until it fits the device.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <absl/flags/flag.h>
#include <absl/flags/parse.h>

#include "engine/core/half.h"
#include "engine/core/math.h"
#include "engine/engine.h"
#include "engine/make_backend.h"

ABSL_FLAG(std::string, backend, "cuda", "what computes");
ABSL_FLAG(int32_t, layers, 32, "of the model");
ABSL_FLAG(int64_t, tokens, int64_t{1} << 20, "of context at the end, 8192 at least");
ABSL_FLAG(int32_t, steps, 1000, "tokens that are timed, for each way to call");

namespace longshore::bench {
namespace {

constexpr int32_t kHeads = 32;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kHeadDim = 128;
constexpr int64_t kTrainedTokens = 131072;
constexpr int64_t kTokenBytes = int64_t{2} * kKvHeads * kHeadDim * 2;  // of a layer
// Every layer has gone through all its refreshes once, and clocks are up.
constexpr int32_t kWarmUpTokens = 48;
// What a device holds besides pages and their summaries: tables, workspaces, itself.
constexpr int64_t kBesideBytes = int64_t{3} << 30;
constexpr int64_t kPieceRows = 16384;  // of an append
constexpr int64_t kRows = 61;          // different queries, keys and values that steps go round
constexpr uint16_t kPoison = 0xffff;   // NaN

using Clock = std::chrono::steady_clock;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

void Check(bool ok, const std::string& what) {
  if (!ok) {
    std::fprintf(stderr, "benchmark: %s\n", what.c_str());
    std::exit(1);  // NOLINT(concurrency-mt-unsafe): nothing else runs that minds
  }
}
void Check(const absl::Status& status) { Check(status.ok(), status.ToString()); }

template <class T>
T Take(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// How a token is called for.
struct Way {
  const char* name;  // behind the id
  MemorySpace space;
  bool waits_for_each;  // layer, as a model must; else once for all of them
  const char* words;
};
constexpr Way kWays[] = {
    {"", MemorySpace::kHost, true, "tensors in host memory, a wait after each layer"},
    {"/device_tensors", MemorySpace::kDevice, true,
     "tensors on the device, a wait after each layer"},
    {"/one_wait", MemorySpace::kHost, false, "tensors in host memory, one wait"},
};

// A layer's step by what it had to run.
enum class Stale : uint8_t { kNone, kLastStage, kEveryStage };
constexpr const char* kStaleNames[] = {"cached", "exact", "full"};

Stale StaleOf(const StepTrace& trace) {
  return trace.stage_refreshed[0] > 0   ? Stale::kEveryStage
         : trace.stage_refreshed[1] > 0 ? Stale::kLastStage
                                        : Stale::kNone;
}

// Microseconds.
struct Times {
  std::vector<double> tokens;
  std::array<std::vector<double>, std::size(kStaleNames)> submits;  // of a layer
  std::array<std::vector<double>, std::size(kStaleNames)> layers;   // until it is done
};

// Rows of bf16 where steps look for them, or leave them.
struct Tensors {
  MemorySpace space = MemorySpace::kHost;
  Buffer q;    // [kRows, kHeads, kHeadDim]
  Buffer k;    // [kRows, kKvHeads, kHeadDim]
  Buffer v;    // [kRows, kKvHeads, kHeadDim]
  Buffer out;  // [layers, kHeads, kHeadDim]

  TensorRef Row(const Buffer& buffer, int64_t row, int32_t heads) const {
    return {.data = buffer.data() + row * heads * kHeadDim * 2,
            .dtype = DType::kBf16,
            .space = space,
            .rank = 3,
            .shape = {1, heads, kHeadDim, 0}};
  }
};

struct Size {
  int32_t layers = 0;
  int64_t tokens = 0;

  int64_t PoolBytes() const {
    return RoundUp(layers * tokens * kTokenBytes, PagePool::kDefaultSlabBytes);
  }
  int64_t DeviceBytes() const {
    return PoolBytes() + Engine::SummaryBytes(PoolBytes()) + kBesideBytes;
  }
  std::string Name() const {
    const bool millions = tokens % (1 << 20) == 0;
    return std::to_string(tokens >> (millions ? 20 : 10)) + (millions ? "m" : "k");
  }
};

SessionSpec SpecOf(const Size& size) {
  SessionSpec spec;
  spec.model = {.num_layers = size.layers,
                .num_heads = kHeads,
                .num_kv_heads = kKvHeads,
                .head_dim = kHeadDim,
                .query_dtype = DType::kBf16,
                .kv_dtype = DType::kBf16};
  RopeSpec rope{.trained_tokens = kTrainedTokens};
  for (int32_t pair = 0; pair < kHeadDim / 2; ++pair) {
    rope.inv_freq.push_back(std::pow(500000.0, -2.0 * pair / kHeadDim));
  }
  spec.model.rope_tables = {rope};
  spec.policy = Take(PresetPolicy("standard"));
  spec.max_tokens = size.tokens;
  return spec;
}

class Bench {
 public:
  // `backend` belongs to `engine`.
  Bench(Engine* engine, Backend* backend, const Size& size)
      : engine_(engine),
        backend_(backend),
        size_(size),
        session_(Take(engine->Open(SpecOf(size)))) {
    host_ = MakeTensors(MemorySpace::kHost);
    device_ = MakeTensors(MemorySpace::kDevice);
  }

  // Every layer but for its last `left` tokens.
  void FillLayers(int64_t left) {
    const int64_t end = size_.tokens - left;
    const int64_t rows = std::min(kPieceRows, end);
    // Pieces begin anywhere in twice as many rows, so that no two have the same chunks.
    const Buffer values = Gaussian(MemorySpace::kDevice, 2 * rows * kKvHeads * kHeadDim);
    for (int32_t layer = 0; layer < size_.layers; ++layer) {
      for (; position_ < end;) {
        const int64_t count = std::min(rows, end - position_);
        const auto piece = [&] {
          return TensorRef{.data = values.data() + Below(rows) * kKvHeads * kHeadDim * 2,
                           .dtype = DType::kBf16,
                           .space = MemorySpace::kDevice,
                           .rank = 3,
                           .shape = {count, kKvHeads, kHeadDim, 0}};
        };
        const StepItem item{.session_id = session_, .position = position_, .rows = count};
        Check(engine_
                  ->Submit({.kind = StepKind::kAppend,
                            .layer = layer,
                            .items = {&item, 1},
                            .k = piece(),
                            .v = piece()})
                  .status());
        position_ += count;
      }
      Check(backend_->WaitForAll());
      position_ = layer + 1 < size_.layers ? 0 : end;
    }
  }

  // Warms up, looks whether every layer's output is written, and times `steps` tokens.
  Times Measure(const Way& way, int32_t steps) {
    const Tensors& tensors = way.space == MemorySpace::kDevice ? device_ : host_;
    Poison(tensors);
    Times ignored;
    Token(way, tensors, &ignored);
    CheckWritten(tensors);
    for (int32_t token = 1; token < kWarmUpTokens; ++token) {
      Token(way, tensors, &ignored);
    }
    Times times;
    for (int32_t token = 0; token < steps; ++token) {
      Token(way, tensors, &times);
    }
    return times;
  }

 private:
  int64_t Below(int64_t bound) {
    return std::uniform_int_distribution<int64_t>(0, bound - 1)(random_);
  }

  Buffer Gaussian(MemorySpace space, int64_t count) {
    std::vector<Bf16> values(static_cast<size_t>(count));
    std::normal_distribution<float> normal;
    std::generate(values.begin(), values.end(), [&] { return ToBf16(normal(random_)); });
    Buffer buffer = Take(backend_->Allocate(space, count * 2));
    Check(backend_->Copy(buffer.data(), values.data(), count * 2));
    Check(backend_->WaitForAll());
    return buffer;
  }

  Tensors MakeTensors(MemorySpace space) {
    constexpr int64_t kKeys = kRows * kKvHeads * kHeadDim;
    return {.space = space,
            .q = Gaussian(space, kRows * kHeads * kHeadDim),
            .k = Gaussian(space, kKeys),
            .v = Gaussian(space, kKeys),
            .out = Take(backend_->Allocate(space, size_.layers * kHeads * kHeadDim * 2))};
  }

  void Poison(const Tensors& tensors) {
    const std::vector<uint16_t> poison(static_cast<size_t>(tensors.out.bytes()) / 2, kPoison);
    Check(backend_->Copy(tensors.out.data(), poison.data(), tensors.out.bytes()));
    Check(backend_->WaitForAll());
  }
  void CheckWritten(const Tensors& tensors) {
    std::vector<Bf16> values(static_cast<size_t>(tensors.out.bytes()) / 2);
    Check(backend_->Copy(values.data(), tensors.out.data(), tensors.out.bytes()));
    Check(backend_->WaitForAll());
    for (const Bf16 value : values) {
      Check(std::isfinite(ToFloat(value)), "an output was not written, or is not finite");
    }
  }

  void Token(const Way& way, const Tensors& tensors, Times* times) {
    const StepItem item{.session_id = session_, .position = position_, .rows = 1};
    const int64_t row = position_ % kRows;
    StepCall call{.kind = StepKind::kDecode,
                  .items = {&item, 1},
                  .q = tensors.Row(tensors.q, row, kHeads),
                  .k = tensors.Row(tensors.k, row, kKvHeads),
                  .v = tensors.Row(tensors.v, row, kKvHeads)};
    StepTicket ticket;
    const Clock::time_point token_start = Clock::now();
    for (call.layer = 0; call.layer < size_.layers; ++call.layer) {
      call.out = tensors.Row(tensors.out, call.layer, kHeads);
      const Clock::time_point start = Clock::now();
      ticket = Take(engine_->Submit(call));
      const auto stale = static_cast<size_t>(StaleOf(ticket.trace));
      times->submits[stale].push_back(MicrosecondsSince(start));
      if (way.waits_for_each) {
        Check(engine_->Wait(ticket));
        times->layers[stale].push_back(MicrosecondsSince(start));
      }
    }
    Check(engine_->Wait(ticket));
    times->tokens.push_back(MicrosecondsSince(token_start));
    ++position_;
  }

  Engine* engine_;
  Backend* backend_;
  Size size_;
  std::mt19937 random_{7};
  uint64_t session_;
  Tensors host_;
  Tensors device_;
  int64_t position_ = 0;  // that is next, in every layer
};

class Report {
 public:
  Report(const Size& size, const Way& way) : way_(way) {
    token_ = "token_" + std::to_string(size.layers) + "_layers_" + size.Name();
    shapes_ = std::to_string(size.layers) + " layers, 32/8 heads, 128 dims, bf16, batch 1, " +
              std::to_string(size.tokens) + " tokens, standard; " + way.words;
  }

  void Print(const Times& times) const {
    const double median = Quantile(times.tokens, 0.5);
    const double p99 = Quantile(times.tokens, 0.99);
    Line(token_ + "_us", median, "us");
    Line(token_ + "_p99_us", p99, "us");
    Line(token_ + "_p99_over_p50", p99 / median, "ratio");
    for (size_t stale = 0; stale < std::size(kStaleNames); ++stale) {
      LineOf("layer_step_submit_us", stale, times.submits);
      LineOf("layer_step_us", stale, times.layers);
    }
  }

 private:
  void LineOf(const std::string& name,
              size_t stale,
              std::span<const std::vector<double>> times) const {
    if (!times[stale].empty()) {
      Line(name + "/" + kStaleNames[stale], Quantile(times[stale], 0.5), "us");
    }
  }
  void Line(const std::string& name, double value, const char* unit) const {
    std::printf("{\"id\": \"%s%s\", \"value\": %.2f, \"unit\": \"%s\", \"shapes\": \"%s\"}\n",
                name.c_str(), way_.name, value, unit, shapes_.c_str());
    std::fflush(stdout);
  }

  const Way& way_;
  std::string token_;
  std::string shapes_;
};

void Main() {
  std::unique_ptr<Backend> made = Take(MakeBackend({.name = absl::GetFlag(FLAGS_backend)}));
  Size size{absl::GetFlag(FLAGS_layers), absl::GetFlag(FLAGS_tokens)};
  const int64_t device_bytes = made->info().device_bytes;  // 0: as much as it wants
  while (device_bytes > 0 && size.DeviceBytes() > device_bytes) {
    size.tokens /= 2;
  }
  const int32_t steps = absl::GetFlag(FLAGS_steps);
  const int64_t stepped = int64_t{kWarmUpTokens + steps} * std::ssize(kWays);
  Check(size.tokens > stepped && size.tokens >= 8192 && size.layers > 0 && steps > 0,
        "too few tokens, layers or steps");
  Backend* backend = made.get();
  const std::unique_ptr<Engine> engine =
      Take(Engine::Create({.pool_bytes = size.PoolBytes()}, std::move(made)));
  Bench bench(engine.get(), backend, size);
  bench.FillLayers(stepped);
  for (const Way& way : kWays) {
    Report(size, way).Print(bench.Measure(way, steps));
  }
}

}  // namespace
}  // namespace longshore::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  longshore::bench::Main();
}
