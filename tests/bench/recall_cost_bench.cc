// What the recall monitor costs: decode with it and without, in turns. One JSON object a line on
// stdout.
//
//   recall_cost_bench [context_tokens] [threads]

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <prometheus/registry.h>

#include "service/recall_monitor.h"
#include "tests/bench/recall_bench.h"

namespace longshore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kHeads = 32;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kDepth = 128;

class Decoder {
 public:
  Decoder(int32_t sample_every, int32_t threads, int64_t context, int64_t steps)
      : engine_(MakeEngine({.pool_bytes = int64_t{1} << 30, .recall_sample_every = sample_every},
                           threads)),
        monitor_(0.02, &registry_) {
    SessionSpec spec;
    spec.model = {.num_layers = 1,
                  .num_heads = kHeads,
                  .num_kv_heads = kKvHeads,
                  .head_dim = kDepth,
                  .query_dtype = DType::kBf16,
                  .kv_dtype = DType::kBf16};
    RopeSpec rope{.trained_tokens = 131072};
    for (int32_t pair = 0; pair < kDepth / 2; ++pair) {
      rope.inv_freq.push_back(std::pow(500000.0, -2.0 * pair / kDepth));
    }
    spec.model.rope_tables = {rope};
    spec.policy = Must(PresetPolicy("standard"));
    spec.max_tokens = context + steps;
    session_ = Must(engine_->Open(spec));
    for (int64_t position = 0; position < context; position += 4096) {
      Submit(StepKind::kAppend, std::min<int64_t>(4096, context - position));
    }
  }

  // Seconds of `steps` decode steps, one after the other, and of the monitor's work between them:
  // what a client sees that sends the next step as soon as it has the answer.
  double Run(int32_t steps) {
    const Clock::time_point start = Clock::now();
    for (int32_t step = 0; step < steps; ++step) {
      Submit(StepKind::kDecode, 1);
      const Clock::time_point before = Clock::now();
      // The monitor's clock stands still between turns: its share is of this decoder's time.
      const Clock::time_point now = Clock::time_point(seconds_) + (before - start);
      if (now >= monitor_again_) {
        monitor_again_ = monitor_.Work(*engine_, now);
        const double seconds = std::chrono::duration<double>(Clock::now() - before).count();
        if (seconds > 0.0001) {  // else nothing waited
          slices_.push_back(seconds);
        }
      }
      if (monitor_again_ == Clock::time_point::max()) {
        monitor_again_ = {};  // a step comes before that
      }
    }
    seconds_ += Clock::now() - start;
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  const RecallCounts& counts() const { return engine_->recall_counts(); }
  std::vector<double>& slices() { return slices_; }

 private:
  void Submit(StepKind kind, int64_t rows) {
    q_.resize(static_cast<size_t>(rows * kHeads * kDepth));
    out_.resize(q_.size());
    k_.resize(static_cast<size_t>(rows * kKvHeads * kDepth));
    for (std::vector<uint16_t>* values : {&q_, &k_}) {
      for (uint16_t& value : *values) {
        value = static_cast<uint16_t>(0x3F00 + (random_() & 0x80FF));  // bf16, 0.5 to 2, any sign
      }
    }
    const StepItem item{.session_id = session_, .position = tokens_, .rows = rows};
    StepCall call{.kind = kind,
                  .items = {&item, 1},
                  .k = Tensor(k_.data(), DType::kBf16, rows, kKvHeads, kDepth),
                  .v = Tensor(k_.data(), DType::kBf16, rows, kKvHeads, kDepth)};
    if (kind == StepKind::kDecode) {
      call.q = Tensor(q_.data(), DType::kBf16, rows, kHeads, kDepth);
      call.out = Tensor(out_.data(), DType::kBf16, rows, kHeads, kDepth);
    }
    if (!engine_->Wait(Must(engine_->Submit(call))).ok()) {
      Die("the step failed");
    }
    tokens_ += rows;
  }

  std::unique_ptr<Engine> engine_;
  prometheus::Registry registry_;
  RecallMonitor monitor_;
  Clock::time_point monitor_again_;
  Clock::duration seconds_ =
      std::chrono::hours(1);  // of all turns; the monitor's clock starts late
  std::vector<double> slices_;
  uint64_t session_ = 0;
  int64_t tokens_ = 0;
  std::mt19937 random_{2502};
  std::vector<uint16_t> q_;
  std::vector<uint16_t> k_;
  std::vector<uint16_t> out_;
};

double Quantile(std::vector<double> values, double quantile) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(quantile * static_cast<double>(values.size() - 1))];
}

// Seconds of a turn of each.
struct Round {
  double without = 0;
  double with = 0;
};

double Throughput(const std::vector<Round>& rounds) {
  double without = 0;
  double with = 0;
  for (const Round& round : rounds) {
    without += round.without;
    with += round.with;
  }
  return without / with;
}

// A 95 % interval of Throughput, from resampled rounds.
std::string Interval(const std::vector<Round>& rounds) {
  std::mt19937 random(2502);
  std::uniform_int_distribution<size_t> pick(0, rounds.size() - 1);
  std::vector<double> resampled;
  for (int32_t sample = 0; sample < 2000; ++sample) {
    std::vector<Round> drawn;
    for (size_t round = 0; round < rounds.size(); ++round) {
      drawn.push_back(rounds[pick(random)]);
    }
    resampled.push_back(Throughput(drawn));
  }
  return ", \"interval_95\": [" + std::to_string(Quantile(resampled, 0.025)) + ", " +
         std::to_string(Quantile(resampled, 0.975)) + "]";
}

int Main(int64_t context, int32_t threads) {
  constexpr int32_t kRounds = 120;
  constexpr int32_t kStepsARound = 128;
  constexpr int64_t kSteps = int64_t{kStepsARound} * (kRounds + 1);
  Decoder off(0, threads, context, kSteps);
  Decoder on(256, threads, context, kSteps);
  off.Run(kStepsARound);
  on.Run(kStepsARound);
  on.slices().clear();
  const int64_t measured_before = on.counts().measured;
  std::vector<Round> rounds(kRounds);
  double seconds = 0;
  // In turns, so that both see the same machine, and each is first as often.
  for (int32_t round = 0; round < kRounds; ++round) {
    Round& turns = rounds[static_cast<size_t>(round)];
    for (const bool monitored : {round % 2 == 0, round % 2 != 0}) {
      (monitored ? turns.with : turns.without) = (monitored ? on : off).Run(kStepsARound);
    }
    seconds += turns.with;
  }
  const std::string shapes = ", \"shapes\": \"1 layer, 32/8 heads, 128 dims, bf16, `standard`, " +
                             std::to_string(context) +
                             " tokens, one block in 256, at most 2 % of the time\"";
  const double measuring = std::accumulate(on.slices().begin(), on.slices().end(), 0.0);
  Print("recall_monitor_decode_throughput", Throughput(rounds), "of that without",
        Interval(rounds) + shapes);
  Print("recall_monitor_time_share", measuring / seconds, "of the engine's thread", shapes);
  Print("recall_monitor_slice_median_ms", Quantile(on.slices(), 0.5) * 1e3, "ms", shapes);
  Print("recall_monitor_slice_p99_ms", Quantile(on.slices(), 0.99) * 1e3, "ms", shapes);
  Print("recall_monitor_measured_a_minute",
        static_cast<double>(on.counts().measured - measured_before) / seconds * 60, "blocks",
        shapes);
  return 0;
}

}  // namespace
}  // namespace longshore

int main(int argc, char** argv) {
  return longshore::Main(argc > 1 ? std::atoll(argv[1]) : 32768, argc > 2 ? std::atoi(argv[2]) : 0);
}
