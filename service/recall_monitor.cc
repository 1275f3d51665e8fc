#include "service/recall_monitor.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "engine/core/stopwatch.h"

namespace longshore {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;

// Slices begin small, about a tenth of a millisecond on any machine, and grow to their time.
constexpr int64_t kFewestProducts = int64_t{1} << 18;
constexpr int64_t kMostProducts = int64_t{1} << 40;

// Dense where it matters: what is lost is small or the policy is wrong.
Histogram::BucketBoundaries Shares() {
  return {0.1, 0.2,   0.3,  0.4,  0.5,  0.6,  0.7,   0.8, 0.85,
          0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 1};
}

Family<Histogram>& Histograms(prometheus::Registry* registry, const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry);
}

// One step of the clock is a token, and stages are refreshed every 4, 8, 16 or more.
const char* AgeLabel(int64_t steps) {
  if (steps == 0) {
    return "0";
  }
  return steps <= 3 ? "1-3" : steps <= 7 ? "4-7" : steps <= 15 ? "8-15" : "16+";
}

double Mean(const std::vector<double>& shares) {
  double sum = 0;
  for (const double share : shares) {
    sum += share;
  }
  return sum / static_cast<double>(shares.size());
}

}  // namespace

RecallMonitor::RecallMonitor(double max_time_share, prometheus::Registry* registry)
    : max_time_share_(max_time_share),
      mass_kept_(&Histograms(registry,
                             "longshore_recall_mass_kept",
                             "Share of a sampled query block's attention, were it to all tokens, "
                             "that falls on sink, selected and window; mean over heads")),
      worst_head_mass_kept_(&Histograms(registry,
                                        "longshore_recall_worst_head_mass_kept",
                                        "The same of the head that keeps least")),
      middle_kept_(&Histograms(registry,
                               "longshore_recall_middle_kept",
                               "Share of a sampled query block's attention to the middle alone "
                               "that falls on what is selected of it; mean over heads")),
      slice_products_(kFewestProducts) {
  Family<Counter>& samples = prometheus::BuildCounter()
                                 .Name("longshore_recall_samples_total")
                                 .Help(
                                     "Query blocks sampled to measure recall, by what became "
                                     "of them")
                                 .Register(*registry);
  measured_ = &samples.Add({{"result", "measured"}});
  dropped_busy_ = &samples.Add({{"result", "dropped_busy"}});
  dropped_gone_ = &samples.Add({{"result", "dropped_gone"}});
  dropped_large_ = &samples.Add({{"result", "dropped_large"}});
  seconds_ = &prometheus::BuildCounter()
                  .Name("longshore_recall_seconds_total")
                  .Help("Time of the engine's thread that measuring recall took")
                  .Register(*registry)
                  .Add({});
}

RecallMonitor::Clock::time_point RecallMonitor::Work(Engine& engine, Clock::time_point now) {
  const double earned =
      max_time_share_ * std::chrono::duration<double>(now - earned_until_).count();
  seconds_left_ = std::min(seconds_left_ + std::max(0.0, earned), kSliceSeconds);
  earned_until_ = now;
  if (seconds_left_ <= 0) {
    Count(engine.recall_counts());
    return now +
           std::chrono::duration_cast<Clock::duration>(
               std::chrono::duration<double>(-seconds_left_ / max_time_share_)) +
           std::chrono::microseconds(1);
  }
  const Stopwatch stopwatch;
  const absl::StatusOr<RecallSlice> slice = engine.AdvanceRecall(slice_products_);
  const double seconds = stopwatch.Seconds();
  if (slice.ok() && slice->products > 0) {
    seconds_left_ -= seconds;
    seconds_->Increment(seconds);
    Learn(slice->products, seconds);
  }
  const bool goes_on = slice.ok() && slice->products > 0 && !slice->sample.has_value();
  if (slice.ok() && slice->sample.has_value()) {
    Observe(*slice->sample);
  }
  Count(engine.recall_counts());  // last: what is counted shows in the histograms
  return goes_on ? now : Clock::time_point::max();
}

// The last slice of a block is short, and says little of how long a whole one takes.
void RecallMonitor::Learn(int64_t products, double seconds) {
  if (products < slice_products_ / 2 && seconds < kSliceSeconds) {
    return;
  }
  const double change = std::clamp(kSliceSeconds / seconds, 0.5, 2.0);
  slice_products_ = std::clamp(static_cast<int64_t>(static_cast<double>(slice_products_) * change),
                               kFewestProducts, kMostProducts);
}

void RecallMonitor::Observe(const RecallSample& sample) {
  const RecallLabels& of = sample.labels;
  const std::map<std::string, std::string> labels = {
      {"layers", of.early ? "early" : "rest"},
      {"phase", of.phase == Phase::kPrefill ? "prefill" : "decode"},
      {"age", AgeLabel(of.age_steps)}};
  mass_kept_->Add(labels, Shares()).Observe(Mean(sample.mass_kept));
  worst_head_mass_kept_->Add(labels, Shares())
      .Observe(*std::min_element(sample.mass_kept.begin(), sample.mass_kept.end()));
  middle_kept_->Add(labels, Shares()).Observe(Mean(sample.middle_kept));
}

void RecallMonitor::Count(const RecallCounts& counts) {
  const auto add = [](int64_t from, int64_t to, Counter* counter) {
    if (to > from) {
      counter->Increment(static_cast<double>(to - from));
    }
  };
  add(counted_.measured, counts.measured, measured_);
  add(counted_.dropped_busy, counts.dropped_busy, dropped_busy_);
  add(counted_.dropped_gone, counts.dropped_gone, dropped_gone_);
  add(counted_.dropped_large, counts.dropped_large, dropped_large_);
  counted_ = counts;
}

}  // namespace longshore
