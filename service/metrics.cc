#include "service/metrics.h"

#include <string>

#include <prometheus/text_serializer.h>

namespace longshore {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;

constexpr std::array<const char*, kNumMethods> kMethodNames = {
    "OpenSession", "DescribeSession", "ListSessions", "TruncateSession", "CloseSession",
    "AppendKV",    "Prefill",         "DecodeStep",   "StreamSteps",     "GetServerInfo",
    "OpenRegion",  "CloseRegion",     "GetMetrics"};
constexpr std::array<const char*, 3> kStepKindNames = {"append", "prefill", "decode"};

// 50 us to 100 s: a decode step of a short context to a prefill of a long one, with queueing.
Histogram::BucketBoundaries Seconds() {
  return {0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
          0.1,     0.2,    0.5,    1,      2,     5,     10,    20,   50,   100};
}

Family<Counter>& Counters(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

Family<Gauge>& Gauges(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

Family<Histogram>& Histograms(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

}  // namespace

const char* NameOf(Method method) { return kMethodNames[static_cast<size_t>(method)]; }

Metrics::Metrics() : registry_(std::make_shared<prometheus::Registry>()) {
  prometheus::Registry& registry = *registry_;
  requests_ = &Counters(registry, "longshore_requests_total",
                        "Calls that ended, by method and status code; steps of a stream included");
  Family<Histogram>& seconds =
      Histograms(registry, "longshore_request_seconds", "Time from a call's arrival to its answer");
  for (size_t method = 0; method < kNumMethods; ++method) {
    request_seconds_[method] = &seconds.Add({{"method", kMethodNames[method]}}, Seconds());
  }

  Family<Counter>& steps =
      Counters(registry, "longshore_steps_total", "Steps that the engine ran, by kind");
  for (size_t kind = 0; kind < steps_.size(); ++kind) {
    steps_[kind] = &steps.Add({{"kind", kStepKindNames[kind]}});
  }

  Family<Histogram>& stage_seconds =
      Histograms(registry, "longshore_step_stage_seconds", "Time of each part of a step that ran");
  Family<Counter>& lookups =
      Counters(registry, "longshore_mask_cache_lookups_total",
               "Query blocks of a stage that ran it, or used its cached result");
  append_seconds_ = &stage_seconds.Add({{"stage", "append"}}, Seconds());
  attend_seconds_ = &stage_seconds.Add({{"stage", "attend"}}, Seconds());
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    const std::string name = "prune_" + std::to_string(stage);
    stages_[stage] = {.refreshed = &lookups.Add({{"stage", name}, {"result", "refreshed"}}),
                      .cached = &lookups.Add({{"stage", name}, {"result", "cached"}}),
                      .seconds = &stage_seconds.Add({{"stage", name}}, Seconds())};
  }

  Family<Counter>& blocks = Counters(registry, "longshore_query_blocks_total",
                                     "Query blocks attended, by what their middle region was");
  dense_blocks_ = &blocks.Add({{"kind", "dense"}});
  streaming_blocks_ = &blocks.Add({{"kind", "streaming"}});
  sliding_blocks_ = &blocks.Add({{"kind", "sliding"}});
  staged_blocks_ = &blocks.Add({{"kind", "staged"}});
  tokens_appended_ =
      &Counters(registry, "longshore_tokens_appended_total", "Tokens appended, summed over layers")
           .Add({});
  replays_ =
      &Counters(registry, "longshore_replays_total", "Items answered again without appending")
           .Add({});

  lease_expiries_ = &Counters(registry, "longshore_lease_expiries_total",
                              "Sessions closed because nobody called within their lease")
                         .Add({});

  Family<Gauge>& pool =
      Gauges(registry, "longshore_pool_bytes", "Host memory for keys and values, by state");
  pool_used_ = &pool.Add({{"state", "used"}});
  pool_reserved_ = &pool.Add({{"state", "reserved"}});
  pool_free_ = &pool.Add({{"state", "free"}});
  sessions_ = &Gauges(registry, "longshore_sessions", "Open sessions").Add({});
  queue_depth_ =
      &Gauges(registry, "longshore_queue_depth", "Calls that wait for the engine").Add({});
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

void Metrics::CountRequest(Method method, const absl::Status& status) {
  // 95 ns a call; keeping a counter for each pair would show 200 series that stay 0.
  requests_->Add({{"method", NameOf(method)}, {"code", absl::StatusCodeToString(status.code())}})
      .Increment();
}

void Metrics::CountRequest(Method method, const absl::Status& status, double seconds) {
  CountRequest(method, status);
  request_seconds_[static_cast<size_t>(method)]->Observe(seconds);
}

void Metrics::CountStep(StepKind kind, const StepTrace& trace) {
  steps_[static_cast<size_t>(kind)]->Increment();
  tokens_appended_->Increment(static_cast<double>(trace.appended_tokens));
  replays_->Increment(trace.replayed_items);
  append_seconds_->Observe(trace.append_seconds);
  if (kind == StepKind::kAppend) {
    return;
  }
  attend_seconds_->Observe(trace.attend_seconds);
  dense_blocks_->Increment(static_cast<double>(trace.dense_blocks));
  streaming_blocks_->Increment(static_cast<double>(trace.streaming_blocks));
  sliding_blocks_->Increment(static_cast<double>(trace.sliding_blocks));
  staged_blocks_->Increment(static_cast<double>(trace.staged_blocks));
  for (size_t stage = 0; stage < static_cast<size_t>(trace.num_stages); ++stage) {
    stages_[stage].refreshed->Increment(static_cast<double>(trace.stage_refreshed[stage]));
    stages_[stage].cached->Increment(static_cast<double>(trace.stage_cached[stage]));
    if (trace.stage_refreshed[stage] > 0) {
      stages_[stage].seconds->Observe(trace.stage_seconds[stage]);
    }
  }
}

void Metrics::SetEngine(const PoolUsage& pool, int64_t num_sessions) {
  pool_used_->Set(static_cast<double>(pool.used_bytes));
  pool_reserved_->Set(static_cast<double>(pool.reserved_bytes));
  pool_free_->Set(static_cast<double>(pool.free_bytes));
  sessions_->Set(static_cast<double>(num_sessions));
}

void Metrics::SetQueueDepth(int64_t jobs) { queue_depth_->Set(static_cast<double>(jobs)); }

}  // namespace longshore
