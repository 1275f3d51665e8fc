// Decode on the CPU backend at a long context: `standard` and `streaming` against our own dense
// path, and the dense path against this machine's copy bandwidth, in one run. One JSON object a
// line on stdout.
//
//   cpu_decode_bench [context_tokens] [threads]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/half.h"
#include "engine/engine.h"
#include "engine/make_backend.h"

namespace longshore {
namespace {

constexpr int32_t kHeads = 32;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kHeadDim = 128;
constexpr int32_t kLlamaTrainedTokens = 131072;
constexpr int32_t kRefreshCycle = 16;  // steps of the coarsest stage of `standard`

using Clock = std::chrono::steady_clock;

double Seconds(const std::function<void()>& work) {
  const Clock::time_point start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Copies memory that no cache holds, by all threads.
class CopyBench {
 public:
  explicit CopyBench(int32_t threads)
      : threads_(static_cast<size_t>(threads)),
        from_(kBytes, 1),
        to_(kBytes, 2) {}

  // Bytes read and written a second by one memcpy.
  double Bandwidth() {
    const size_t part = kBytes / threads_;
    const double seconds = Seconds([&] {
      std::vector<std::thread> team;
      for (size_t begin = 0; begin + part <= kBytes; begin += part) {
        team.emplace_back([&, begin] { std::memcpy(&to_[begin], &from_[begin], part); });
      }
      for (std::thread& thread : team) {
        thread.join();
      }
    });
    return 2.0 * static_cast<double>(kBytes) / seconds;
  }

 private:
  static constexpr size_t kBytes = size_t{256} << 20;
  size_t threads_;
  std::vector<char> from_;
  std::vector<char> to_;
};

class DecodeBench {
 public:
  DecodeBench(Engine* engine, int64_t context) : engine_(engine), context_(context) {}

  // Opens a session of `context` tokens whose layer 0 is full but for `steps` tokens.
  uint64_t Fill(const char* preset, int64_t trained_tokens, int64_t steps);
  // Seconds of one decode step at the end of the session.
  double Step(uint64_t session);

 private:
  std::vector<Bf16> Gaussian(int64_t count) {
    std::vector<Bf16> values(static_cast<size_t>(count));
    std::normal_distribution<float> normal;
    for (Bf16& value : values) {
      value = ToBf16(normal(random_));
    }
    return values;
  }

  Engine* engine_;
  int64_t context_;
  std::mt19937 random_{2502};
};

void Die(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string{status.message()}.c_str());
  std::exit(1);  // NOLINT(concurrency-mt-unsafe): the only thread left
}

TensorRef Rows(std::vector<Bf16>* data, int64_t rows, int32_t heads) {
  return {
      .data = data->data(), .dtype = DType::kBf16, .rank = 3, .shape = {rows, heads, kHeadDim, 0}};
}

uint64_t DecodeBench::Fill(const char* preset, int64_t trained_tokens, int64_t steps) {
  SessionSpec spec;
  spec.model = {.num_layers = 1,
                .num_heads = kHeads,
                .num_kv_heads = kKvHeads,
                .head_dim = kHeadDim,
                .query_dtype = DType::kBf16,
                .kv_dtype = DType::kBf16};
  RopeSpec rope{.trained_tokens = trained_tokens};
  for (int32_t pair = 0; pair < kHeadDim / 2; ++pair) {
    rope.inv_freq.push_back(std::pow(500000.0, -2.0 * pair / kHeadDim));
  }
  spec.model.rope_tables = {rope};
  spec.policy = *PresetPolicy(preset);
  spec.max_tokens = context_;
  absl::StatusOr<uint64_t> session = engine_->Open(spec);
  if (!session.ok()) {
    Die(session.status());
  }
  const int64_t piece = 4096;
  std::vector<Bf16> k = Gaussian(piece * kKvHeads * kHeadDim);
  std::vector<Bf16> v = Gaussian(piece * kKvHeads * kHeadDim);
  for (int64_t position = 0; position < context_ - steps; position += piece) {
    const int64_t rows = std::min(piece, context_ - steps - position);
    std::rotate(k.begin(), k.begin() + 12345, k.end());  // other keys at other places
    const StepItem item{.session_id = *session, .position = position, .rows = rows};
    const absl::StatusOr<StepTicket> ticket = engine_->Submit({.kind = StepKind::kAppend,
                                                               .items = {&item, 1},
                                                               .k = Rows(&k, rows, kKvHeads),
                                                               .v = Rows(&v, rows, kKvHeads)});
    if (!ticket.ok()) {
      Die(ticket.status());
    }
  }
  return *session;
}

double DecodeBench::Step(uint64_t session) {
  std::vector<Bf16> q = Gaussian(kHeads * kHeadDim);
  std::vector<Bf16> k = Gaussian(kKvHeads * kHeadDim);
  std::vector<Bf16> v = Gaussian(kKvHeads * kHeadDim);
  std::vector<Bf16> out(q.size());
  const StepItem item{
      .session_id = session, .position = engine_->Describe(session)->layer_tokens[0], .rows = 1};
  return Seconds([&] {
    absl::StatusOr<StepTicket> ticket = engine_->Submit({.kind = StepKind::kDecode,
                                                         .items = {&item, 1},
                                                         .q = Rows(&q, 1, kHeads),
                                                         .k = Rows(&k, 1, kKvHeads),
                                                         .v = Rows(&v, 1, kKvHeads),
                                                         .out = Rows(&out, 1, kHeads)});
    if (!ticket.ok() || !engine_->Wait(*ticket).ok()) {
      Die(ticket.status());
    }
  });
}

void Print(const char* id, double value, const char* unit, const std::string& more) {
  std::printf("{\"id\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"%s}\n", id, value, unit,
              more.c_str());
  std::fflush(stdout);
}

// Mean seconds of a step over one cycle of refreshes, so that every kind of step counts as often as
// it happens.
double CycleSeconds(DecodeBench* bench, uint64_t session) {
  double total = 0;
  for (int32_t step = 0; step < kRefreshCycle; ++step) {
    total += bench->Step(session);
  }
  return total / kRefreshCycle;
}

int Main(int64_t context, int32_t threads) {
  absl::StatusOr<std::unique_ptr<Backend>> backend =
      MakeBackend({.name = "cpu", .threads = threads});
  if (!backend.ok()) {
    Die(backend.status());
  }
  threads = (*backend)->info().threads;
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create({.pool_bytes = int64_t{6} << 30}, *std::move(backend));
  if (!engine.ok()) {
    Die(engine.status());
  }
  DecodeBench bench(engine->get(), context);
  constexpr int32_t kRounds = 15;
  constexpr int64_t kSteps = int64_t{kRefreshCycle} * (kRounds + 1);
  const uint64_t dense = bench.Fill("dense", kLlamaTrainedTokens, kSteps);
  const uint64_t within = bench.Fill("standard", kLlamaTrainedTokens, kSteps);
  const uint64_t beyond = bench.Fill("standard", kLlamaTrainedTokens / 16, kSteps);
  const uint64_t paper = bench.Fill("paper-3k", kLlamaTrainedTokens / 16, kSteps);
  CopyBench copier(threads);
  copier.Bandwidth();  // warm
  bench.Step(dense);
  CycleSeconds(&bench, within);
  CycleSeconds(&bench, beyond);
  CycleSeconds(&bench, paper);
  // In turns, so that both sides of a ratio see the same machine, whose memory others use too.
  std::vector<double> copies;
  std::vector<double> dense_steps;
  std::vector<double> within_cycles;
  std::vector<double> beyond_cycles;
  std::vector<double> paper_cycles;
  for (int32_t round = 0; round < kRounds; ++round) {
    copies.push_back(copier.Bandwidth());
    dense_steps.push_back(bench.Step(dense));
    within_cycles.push_back(CycleSeconds(&bench, within));
    beyond_cycles.push_back(CycleSeconds(&bench, beyond));
    paper_cycles.push_back(CycleSeconds(&bench, paper));
  }
  const double copy = Median(copies);
  const double dense_seconds = Median(dense_steps);
  const double within_seconds = Median(within_cycles);
  const double beyond_seconds = Median(beyond_cycles);
  const double paper_seconds = Median(paper_cycles);
  const double bytes = static_cast<double>(context) * kKvHeads * kHeadDim * 2 * 2;
  const std::string shapes = ", \"device\": \"cpu, " + std::to_string(threads) +
                             " threads\", \"shapes\": \"1 layer, 32/8 heads, 128 dims, bf16, " +
                             std::to_string(context) + " tokens, batch 1\"";
  Print("cpu_copy_bandwidth", copy / 1e9, "GB/s read+write", shapes);
  Print("cpu_decode_128k_dense", dense_seconds * 1e6, "us", shapes);
  Print("cpu_dense_bandwidth", bytes / dense_seconds / 1e9, "GB/s", shapes);
  Print("cpu_dense_bandwidth_share", bytes / dense_seconds / copy, "ratio", shapes);
  Print("cpu_decode_128k_standard", within_seconds * 1e6, "us", shapes);
  Print("cpu_decode_128k_standard_beyond", beyond_seconds * 1e6, "us", shapes);
  Print("cpu_decode_128k_standard_vs_dense", dense_seconds / within_seconds, "ratio", shapes);
  Print("cpu_decode_128k_standard_beyond_vs_dense", dense_seconds / beyond_seconds, "ratio",
        shapes);
  Print("cpu_decode_128k_paper3k", paper_seconds * 1e6, "us", shapes);
  Print("cpu_decode_128k_paper3k_vs_dense", dense_seconds / paper_seconds, "ratio", shapes);
  return 0;
}

}  // namespace
}  // namespace longshore

int main(int argc, char** argv) {
  return longshore::Main(argc > 1 ? std::atoll(argv[1]) : 131072,
                         argc > 2 ? std::atoi(argv[2]) : 0);
}
