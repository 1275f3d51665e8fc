#pragma once

#include <chrono>
#include <cstdint>

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "engine/engine.h"

namespace longshore {

/// Hides when measurements of recall run and what becomes of them: a slice at a time, a share of
/// each second at most, and histograms of what they say in `registry`. Called by the engine's
/// thread alone, while nothing waits for it, or once in a while where something always does.
class RecallMonitor {
 public:
  using Clock = std::chrono::steady_clock;
  /// What a slice should take: a call that comes meanwhile waits for no more.
  static constexpr double kSliceSeconds = 0.002;

  /// `max_time_share`, in (0, 1], of the engine's time. `registry` outlives this.
  RecallMonitor(double max_time_share, prometheus::Registry* registry);

  /// Measures for a slice if something waits and there is time for it. Returns when it wants to be
  /// called again if no other work comes: a time that has passed for at once, max() for never. A
  /// device that fails meanwhile is for the caller to see.
  Clock::time_point Work(Engine& engine, Clock::time_point now);

 private:
  void Learn(int64_t products, double seconds);
  void Observe(const RecallSample& sample);
  void Count(const RecallCounts& counts);

  const double max_time_share_;
  // Owned by the registry. Histograms are made when they first have something to show: 16 of each
  // would mostly stay empty.
  prometheus::Family<prometheus::Histogram>* mass_kept_;
  prometheus::Family<prometheus::Histogram>* worst_head_mass_kept_;
  prometheus::Family<prometheus::Histogram>* middle_kept_;
  prometheus::Counter* measured_;
  prometheus::Counter* dropped_busy_;
  prometheus::Counter* dropped_gone_;
  prometheus::Counter* dropped_large_;
  prometheus::Counter* seconds_;

  RecallCounts counted_;  // as the counters show them
  // What may be used now; below 0 after a slice that took more.
  double seconds_left_ = kSliceSeconds;
  Clock::time_point earned_until_;
  int64_t slice_products_;  // that take about kSliceSeconds, as far as is known
};

}  // namespace longshore
