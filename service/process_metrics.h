#pragma once

#include <chrono>
#include <vector>

#include <prometheus/metric_family.h>

namespace longshore {

/// What the system says of this process, read when somebody asks. Under the names that Prometheus'
/// own client libraries use, besides the uptime.
class ProcessMetrics {
 public:
  std::vector<prometheus::MetricFamily> Collect() const;

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const std::chrono::system_clock::time_point start_time_ = std::chrono::system_clock::now();
};

}  // namespace longshore
