#include "service/metrics.h"

#include <iterator>
#include <utility>

#include <prometheus/text_serializer.h>

#include "service/metric_families.h"
#include "service/version.h"

namespace longshore {

Metrics::Metrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      requests_(registry_.get()),
      steps_(registry_.get()) {
  prometheus::Registry& registry = *registry_;
  const auto gauge = [&registry](const char* name, const char* help) {
    return &Gauges(registry, name, help).Add({});
  };
  lease_expiries_ = &Counters(registry, "longshore_lease_expiries_total",
                              "Sessions closed because nobody called them within their lease")
                         .Add({});
  prometheus::Family<prometheus::Histogram>& wait =
      Histograms(registry, "longshore_queue_wait_seconds",
                 "Time that calls waited for the engine before they began");
  bulk_wait_seconds_ = &wait.Add({{"kind", "bulk"}}, SecondsBuckets());
  short_wait_seconds_ = &wait.Add({{"kind", "short"}}, SecondsBuckets());
  queue_depth_ = gauge("longshore_queue_depth", "Calls that wait for the engine");
  queue_limit_ = gauge("longshore_queue_limit", "Calls that may wait for the engine");

  prometheus::Family<prometheus::Gauge>& pool =
      Gauges(registry, "longshore_pool_bytes", "Host memory for keys and values, by state");
  pool_used_ = &pool.Add({{"state", "used"}});
  pool_reserved_ = &pool.Add({{"state", "reserved"}});
  pool_free_ = &pool.Add({{"state", "free"}});
  table_bytes_ = gauge("longshore_table_bytes", "Host memory of sessions outside the pool");
  table_limit_bytes_ =
      gauge("longshore_table_limit_bytes", "Host memory that sessions may hold outside the pool");
  sessions_ = gauge("longshore_sessions", "Open sessions");
  sessions_limit_ = gauge("longshore_sessions_limit", "Sessions that may be open");
  ready_ = gauge("longshore_ready", "1 while the daemon serves; 0 while it loads or stops");
  build_ = &Gauges(registry, "longshore_build_info", "1; what this daemon is, in labels");
}

std::vector<prometheus::MetricFamily> Metrics::Collect() const {
  std::vector<prometheus::MetricFamily> families = registry_->Collect();
  std::vector<prometheus::MetricFamily> process = process_.Collect();
  std::move(process.begin(), process.end(), std::back_inserter(families));
  return families;
}

std::string Metrics::Text() const { return prometheus::TextSerializer().Serialize(Collect()); }

void Metrics::SetEngine(const PoolUsage& pool, int64_t table_bytes, int64_t num_sessions) {
  pool_used_->Set(static_cast<double>(pool.used_bytes));
  pool_reserved_->Set(static_cast<double>(pool.reserved_bytes));
  pool_free_->Set(static_cast<double>(pool.free_bytes));
  table_bytes_->Set(static_cast<double>(table_bytes));
  sessions_->Set(static_cast<double>(num_sessions));
}

void Metrics::SetQueueDepth(int64_t jobs) { queue_depth_->Set(static_cast<double>(jobs)); }

void Metrics::SetLimits(int64_t queued_calls, int64_t sessions, int64_t table_bytes) {
  queue_limit_->Set(static_cast<double>(queued_calls));
  sessions_limit_->Set(static_cast<double>(sessions));
  table_limit_bytes_->Set(static_cast<double>(table_bytes));
}

void Metrics::SetReady(bool ready) { ready_->Set(ready ? 1 : 0); }

void Metrics::SetBuild(const DeviceInfo& device) {
  build_
      ->Add({{"version", kVersion},
             {"build", kBuildType},
             {"backend", device.backend},
             {"device", device.device}})
      .Set(1);
}

}  // namespace longshore
