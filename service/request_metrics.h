#pragma once

#include <array>
#include <atomic>
#include <map>
#include <string>

#include <absl/status/status.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "service/method.h"

namespace longshore {

/// Calls as their callers see them: how many, how they ended, how long they took. A series of a
/// method and a code appears with the first call that ends so: most pairs never occur. Thread-safe.
class RequestMetrics {
 public:
  explicit RequestMetrics(prometheus::Registry* registry);

  /// A call that has no meaningful duration.
  void Count(Method method, const absl::Status& status);
  void Count(Method method, const absl::Status& status, double seconds);

 private:
  static constexpr size_t kNumCodes = 17;  // of gRPC
  // Null until there is one; both owned by the registry.
  struct Series {
    std::atomic<prometheus::Counter*> requests = nullptr;
    std::atomic<prometheus::Histogram*> seconds = nullptr;
  };

  Series& SeriesOf(Method method, absl::StatusCode code);
  void CountRejection(const absl::Status& status);

  prometheus::Family<prometheus::Counter>* requests_;
  prometheus::Family<prometheus::Histogram>* seconds_;
  std::array<std::array<Series, kNumCodes>, kNumMethods> series_;
  std::map<std::string, prometheus::Counter*, std::less<>> rejected_;  // by reason; then constant
  prometheus::Counter* rejected_for_other_reasons_;
};

}  // namespace longshore
