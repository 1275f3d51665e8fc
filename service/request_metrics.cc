#include "service/request_metrics.h"

#include <optional>

#include "engine/core/error.h"
#include "service/metric_families.h"

namespace longshore {
namespace {

constexpr std::array<const char*, kNumMethods> kMethodNames = {
    "OpenSession", "DescribeSession", "ListSessions", "TruncateSession", "CloseSession",
    "AppendKV",    "Prefill",         "DecodeStep",   "StreamSteps",     "GetServerInfo",
    "OpenRegion",  "CloseRegion",     "GetMetrics"};

// The reasons of proto/README.md; a test compares the two. What is not here counts as "other", so
// that no text from elsewhere becomes a label.
constexpr const char* kReasons[] = {
    "INVALID_FIELD",     "MALFORMED_MESSAGE", "NON_FINITE",        "OUT_OF_RANGE_VALUE",
    "SESSION_NOT_FOUND", "SESSION_EXPIRED",   "INSTANCE_CHANGED",  "POSITION_CONFLICT",
    "POSITION_GAP",      "MAX_TOKENS",        "TRUNCATE_PAST_END", "TOKENS_EXPIRED",
    "POOL_FULL",         "TOO_MANY_SESSIONS", "TABLES_FULL",       "HOST_MEMORY",
    "QUEUE_FULL",        "LOADING",           "DRAINING",          "DEVICE_LOST",
    "DEADLINE_EXCEEDED", "CANCELLED",         "NOT_IMPLEMENTED",   "INTERNAL",
};

}  // namespace

const char* NameOf(Method method) { return kMethodNames[static_cast<size_t>(method)]; }

RequestMetrics::RequestMetrics(prometheus::Registry* registry)
    : requests_(
          &Counters(*registry,
                    "longshore_requests_total",
                    "Calls that ended, by method and status code; steps of a stream included")),
      seconds_(&Histograms(*registry,
                           "longshore_request_seconds",
                           "Time from a call's arrival to its answer, by method and status code")) {
  prometheus::Family<prometheus::Counter>& rejected =
      Counters(*registry, "longshore_rejected_total",
               "Calls that ended with an error, by the reason in its ErrorInfo");
  for (const char* reason : kReasons) {
    rejected_[reason] = &rejected.Add({{"reason", reason}});
  }
  rejected_for_other_reasons_ = &rejected.Add({{"reason", "other"}});
}

RequestMetrics::Series& RequestMetrics::SeriesOf(Method method, absl::StatusCode code) {
  auto index = static_cast<size_t>(code);
  if (index >= kNumCodes) {
    index = static_cast<size_t>(absl::StatusCode::kUnknown);
  }
  Series& series = series_[static_cast<size_t>(method)][index];
  // Two threads may both get here first: the family gives both the same counter and histogram.
  if (series.seconds.load(std::memory_order_acquire) == nullptr) {
    const std::map<std::string, std::string> labels = {
        {"method", NameOf(method)},
        {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(index))}};
    series.requests.store(&requests_->Add(labels), std::memory_order_release);
    series.seconds.store(&seconds_->Add(labels, SecondsBuckets()), std::memory_order_release);
  }
  return series;
}

void RequestMetrics::Count(Method method, const absl::Status& status) {
  SeriesOf(method, status.code()).requests.load(std::memory_order_acquire)->Increment();
  if (!status.ok()) {
    CountRejection(status);
  }
}

void RequestMetrics::Count(Method method, const absl::Status& status, double seconds) {
  Count(method, status);
  SeriesOf(method, status.code()).seconds.load(std::memory_order_acquire)->Observe(seconds);
}

void RequestMetrics::CountRejection(const absl::Status& status) {
  const std::optional<ErrorDetails> details = DetailsOf(status);
  // As in errors.cc: an error without a reason goes out under the name of its code.
  const std::string reason =
      details.has_value() ? details->reason : absl::StatusCodeToString(status.code());
  const auto found = rejected_.find(reason);
  (found == rejected_.end() ? rejected_for_other_reasons_ : found->second)->Increment();
}

}  // namespace longshore
