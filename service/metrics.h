#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "engine/engine.h"

namespace longshore {

/// Every method that is counted. A step counts under its own name, whichever way it came;
/// kStreamSteps counts streams, not steps.
enum class Method : uint8_t {
  kOpenSession,
  kDescribeSession,
  kListSessions,
  kTruncateSession,
  kCloseSession,
  kAppendKv,
  kPrefill,
  kDecodeStep,
  kStreamSteps,
  kGetServerInfo,
  kOpenRegion,
  kCloseRegion,
  kGetMetrics,
};
inline constexpr size_t kNumMethods = 13;

const char* NameOf(Method method);

/// Everything that /metrics shows. Labels take few values, all known here: no session ids, no
/// names. Thread-safe.
class Metrics {
 public:
  Metrics();

  void CountRequest(Method method, const absl::Status& status, double seconds);
  /// A call that has no meaningful duration.
  void CountRequest(Method method, const absl::Status& status);
  void CountStep(StepKind kind, const StepTrace& trace);
  void SetEngine(const PoolUsage& pool, int64_t num_sessions);
  void SetQueueDepth(int64_t jobs);
  void CountLeaseExpiry() { lease_expiries_->Increment(); }

  /// All of it in Prometheus' text format 0.0.4.
  std::string Text() const;
  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }

 private:
  struct Stage {
    prometheus::Counter* refreshed;
    prometheus::Counter* cached;
    prometheus::Histogram* seconds;
  };

  std::shared_ptr<prometheus::Registry> registry_;
  // Owned by registry_.
  prometheus::Family<prometheus::Counter>* requests_;
  std::array<prometheus::Histogram*, kNumMethods> request_seconds_;
  std::array<prometheus::Counter*, 3> steps_;  // by StepKind
  std::array<Stage, kMaxStages> stages_;
  prometheus::Histogram* append_seconds_;
  prometheus::Histogram* attend_seconds_;
  prometheus::Counter* dense_blocks_;
  prometheus::Counter* streaming_blocks_;
  prometheus::Counter* sliding_blocks_;
  prometheus::Counter* staged_blocks_;
  prometheus::Counter* tokens_appended_;
  prometheus::Counter* replays_;
  prometheus::Counter* lease_expiries_;
  prometheus::Gauge* pool_used_;
  prometheus::Gauge* pool_reserved_;
  prometheus::Gauge* pool_free_;
  prometheus::Gauge* sessions_;
  prometheus::Gauge* queue_depth_;
};

}  // namespace longshore
