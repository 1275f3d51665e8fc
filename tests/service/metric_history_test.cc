#include "service/metric_history.h"

#include <gtest/gtest.h>

#include "service/metric_reader.h"

namespace longshore {
namespace {

using std::chrono::seconds;

constexpr MetricHistory::Clock::time_point kStart{seconds(1000)};

uint64_t CallsOf(const MetricHistory::Past& past) {
  return MetricReader(past.families).Merge("longshore_request_seconds").count;
}

// A call each second, counted before the copy.
TEST(MetricHistory, GoesBackAMinuteAndNoFurther) {
  Metrics metrics;
  MetricHistory history(kStart);
  for (int64_t second = 1; second <= 200; ++second) {
    const auto now = kStart + seconds(second);
    metrics.CountRequest(Method::kDecodeStep, absl::OkStatus(), 0.001);
    EXPECT_EQ(history.Keep(metrics, now), kStart + seconds((second / 10 + 1) * 10));
    const MetricHistory::Past past = history.Read(now);
    const int64_t from = std::max<int64_t>(0, (second - 60) / 10 * 10);
    EXPECT_EQ(past.age_seconds, static_cast<double>(second - from)) << second;
    EXPECT_EQ(CallsOf(past), static_cast<uint64_t>(from)) << second;
  }
}

TEST(MetricHistory, IsOlderWhereNobodyCopied) {
  Metrics metrics;
  MetricHistory history(kStart);
  metrics.CountRequest(Method::kPrefill, absl::OkStatus(), 80);
  history.Keep(metrics, kStart + seconds(100));
  EXPECT_EQ(history.Read(kStart + seconds(110)).age_seconds, 110) << "the start";
  EXPECT_EQ(history.Read(kStart + seconds(160)).age_seconds, 60);
  EXPECT_EQ(CallsOf(history.Read(kStart + seconds(160))), 1U);
}

TEST(MetricHistory, KeepsLatenciesAlone) {
  Metrics metrics;
  metrics.CountRequest(Method::kPrefill, absl::OkStatus(), 1);
  MetricHistory history(kStart);
  history.Keep(metrics, kStart + seconds(60));
  EXPECT_EQ(history.Read(kStart + seconds(120)).families.size(), 2U);
}

}  // namespace
}  // namespace longshore
