#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>

#include "engine/engine.h"
#include "service/method.h"
#include "service/process_metrics.h"
#include "service/request_metrics.h"
#include "service/step_metrics.h"

namespace longshore {

/// Everything that /metrics shows. Labels take few values, all known to this code: no session ids,
/// no names. Numerators and denominators, never ratios. METRICS.md lists every name. Thread-safe.
class Metrics {
 public:
  Metrics();

  void CountRequest(Method method, const absl::Status& status, double seconds) {
    requests_.Count(method, status, seconds);
  }
  /// A call that has no meaningful duration.
  void CountRequest(Method method, const absl::Status& status) { requests_.Count(method, status); }
  void CountStep(StepKind kind, const StepTrace& trace) { steps_.Count(kind, trace); }
  void CountLeaseExpiry() { lease_expiries_->Increment(); }
  /// How long a job waited before it began; see Job::bulk.
  void ObserveQueueWait(bool bulk, double seconds) {
    (bulk ? bulk_wait_seconds_ : short_wait_seconds_)->Observe(seconds);
  }

  void SetEngine(const PoolUsage& pool, int64_t table_bytes, int64_t num_sessions);
  void SetQueueDepth(int64_t jobs);
  /// What the gauges beside them may reach at most.
  void SetLimits(int64_t queued_calls, int64_t sessions, int64_t table_bytes);
  void SetReady(bool ready);
  /// Once the backend is known.
  void SetBuild(const DeviceInfo& device);

  std::vector<prometheus::MetricFamily> Collect() const;
  /// All of it in Prometheus' text format 0.0.4.
  std::string Text() const;
  /// For families of other files, which are in Collect() and Text() then.
  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }

 private:
  std::shared_ptr<prometheus::Registry> registry_;  // owns what the pointers below point to
  ProcessMetrics process_;
  RequestMetrics requests_;
  StepMetrics steps_;
  prometheus::Counter* lease_expiries_;
  prometheus::Histogram* bulk_wait_seconds_;
  prometheus::Histogram* short_wait_seconds_;
  prometheus::Gauge* pool_used_;
  prometheus::Gauge* pool_reserved_;
  prometheus::Gauge* pool_free_;
  prometheus::Gauge* table_bytes_;
  prometheus::Gauge* table_limit_bytes_;
  prometheus::Gauge* sessions_;
  prometheus::Gauge* sessions_limit_;
  prometheus::Gauge* queue_depth_;
  prometheus::Gauge* queue_limit_;
  prometheus::Gauge* ready_;
  prometheus::Family<prometheus::Gauge>* build_;
};

}  // namespace longshore
