#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include <prometheus/metric_family.h>

#include "service/metrics.h"
#include "service/mutex.h"

namespace longshore {

/// Histograms of calls as they were a minute ago, so that a page can show what has come since: what
/// happened at the start of a long life hides what happens now. Hides which copies are kept.
/// Thread-safe.
class MetricHistory {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::seconds kSpan{60};
  static constexpr std::chrono::seconds kPeriod{10};  ///< of copies

  struct Past {
    double age_seconds = 0;
    std::vector<prometheus::MetricFamily> families;  ///< none: nothing had been counted
  };

  /// Of metrics that begin to count at `start`.
  explicit MetricHistory(Clock::time_point start) { copies_.push_back({start, {}}); }

  /// Copies if kPeriod has passed since the last time. Returns when to call again.
  Clock::time_point Keep(const Metrics& metrics, Clock::time_point now);
  /// The youngest copy that is at least kSpan old, or the oldest one there is.
  Past Read(Clock::time_point now) const;

 private:
  using Families = std::shared_ptr<const std::vector<prometheus::MetricFamily>>;
  struct Copy {
    Clock::time_point time;
    Families families;  // null: none
  };

  size_t IndexOf(Clock::time_point now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::deque<Copy> copies_ ABSL_GUARDED_BY(mutex_);  // at least one, the oldest first
};

}  // namespace longshore
