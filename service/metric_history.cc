#include "service/metric_history.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace longshore {
namespace {

constexpr const char* kKept[] = {"longshore_request_seconds", "longshore_queue_wait_seconds"};

}  // namespace

MetricHistory::Clock::time_point MetricHistory::Keep(const Metrics& metrics,
                                                     Clock::time_point now) {
  {
    const MutexLock lock(&mutex_);
    if (now < copies_.back().time + kPeriod) {
      return copies_.back().time + kPeriod;
    }
  }
  std::vector<prometheus::MetricFamily> families = metrics.registry()->Collect();
  families.erase(std::remove_if(families.begin(), families.end(),
                                [](const prometheus::MetricFamily& family) {
                                  return std::find(std::begin(kKept), std::end(kKept),
                                                   family.name) == std::end(kKept);
                                }),
                 families.end());
  auto kept = std::make_shared<const std::vector<prometheus::MetricFamily>>(std::move(families));
  const MutexLock lock(&mutex_);
  copies_.push_back({now, std::move(kept)});
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(IndexOf(now)));
  return now + kPeriod;
}

size_t MetricHistory::IndexOf(Clock::time_point now) const {
  size_t index = 0;
  while (index + 1 < copies_.size() && copies_[index + 1].time + kSpan <= now) {
    ++index;
  }
  return index;
}

MetricHistory::Past MetricHistory::Read(Clock::time_point now) const {
  Copy copy;
  {
    const MutexLock lock(&mutex_);
    copy = copies_[IndexOf(now)];
  }
  Past past{.age_seconds = std::chrono::duration<double>(now - copy.time).count(), .families = {}};
  if (copy.families != nullptr) {
    past.families = *copy.families;
  }
  return past;
}

}  // namespace longshore
