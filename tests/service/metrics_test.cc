#include "service/metrics.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_split.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include "tests/service/http_get.h"
#include "tests/service/test_server.h"

namespace longshore {
namespace {

bool HasLine(const std::string& text, const std::string& line) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

TEST(Metrics, AStepIsCountedByKindStageAndBlock) {
  Metrics metrics;
  StepTrace trace;
  trace.appended_tokens = 5;
  trace.replayed_items = 1;
  trace.dense_blocks = 2;
  trace.streaming_blocks = 1;
  trace.sliding_blocks = 4;
  trace.staged_blocks = 5;
  trace.num_stages = 2;
  trace.stage_refreshed = {1, 3};
  trace.stage_cached = {2, 0};
  trace.attend_seconds = 0.001;
  metrics.CountStep(StepKind::kDecode, trace);
  metrics.SetQueueDepth(4);
  metrics.SetEngine({.total_bytes = 60, .used_bytes = 10, .reserved_bytes = 20, .free_bytes = 30},
                    3);
  const std::string text = prometheus::TextSerializer().Serialize(metrics.registry()->Collect());
  for (const char* line : {
           "longshore_steps_total{kind=\"decode\"} 1",
           "longshore_steps_total{kind=\"prefill\"} 0",
           "longshore_tokens_appended_total 5",
           "longshore_replays_total 1",
           "longshore_query_blocks_total{kind=\"dense\"} 2",
           "longshore_query_blocks_total{kind=\"streaming\"} 1",
           "longshore_query_blocks_total{kind=\"sliding\"} 4",
           "longshore_query_blocks_total{kind=\"staged\"} 5",
           "longshore_mask_cache_lookups_total{result=\"refreshed\",stage=\"prune_0\"} 1",
           "longshore_mask_cache_lookups_total{result=\"cached\",stage=\"prune_0\"} 2",
           "longshore_mask_cache_lookups_total{result=\"refreshed\",stage=\"prune_1\"} 3",
           "longshore_step_stage_seconds_count{stage=\"append\"} 1",
           "longshore_step_stage_seconds_count{stage=\"prune_1\"} 1",
           "longshore_step_stage_seconds_count{stage=\"prune_2\"} 0",
           "longshore_step_stage_seconds_count{stage=\"attend\"} 1",
           "longshore_queue_depth 4",
           "longshore_sessions 3",
           "longshore_pool_bytes{state=\"used\"} 10",
           "longshore_pool_bytes{state=\"reserved\"} 20",
           "longshore_pool_bytes{state=\"free\"} 30",
       }) {
    EXPECT_TRUE(HasLine(text, line)) << line << "\nnot in\n" << text;
  }
}

TEST(Metrics, AScrapeShowsWhatCallsDid) {
  Config config = TestConfig();
  config.metrics_listen = {*ParseAddress("127.0.0.1:0")};
  TestServer server(config);
  const uint64_t session = server.Open();
  v1::PrefillResponse prefilled;
  ASSERT_TRUE(server.Prefill(TestStep<v1::PrefillRequest>(session, 0, 64), &prefilled).ok());
  v1::DecodeStepResponse decoded;
  EXPECT_FALSE(server.Decode(TestStep<v1::DecodeStepRequest>(session, 9, 1), &decoded).ok());
  server.Describe(session);  // when it answers, the gauges of the jobs before it are set

  const std::string text = HttpGet((*server).metrics_port(), "/metrics");
  for (const char* line : {
           "longshore_requests_total{code=\"OK\",method=\"OpenSession\"} 1",
           "longshore_requests_total{code=\"OK\",method=\"Prefill\"} 1",
           "longshore_requests_total{code=\"ABORTED\",method=\"DecodeStep\"} 1",
           "longshore_request_seconds_count{method=\"Prefill\"} 1",
           "longshore_steps_total{kind=\"prefill\"} 1",
           "longshore_query_blocks_total{kind=\"dense\"} 1",
           "longshore_tokens_appended_total 64",
           "longshore_sessions 1",
           "longshore_pool_bytes{state=\"used\"} 65536",
           "longshore_pool_bytes{state=\"reserved\"} 2031616",
           "longshore_queue_depth 0",
       }) {
    EXPECT_TRUE(HasLine(text, line)) << line << "\nnot in\n" << text;
  }
}

TEST(Metrics, TheirServerStopsAtOnce) {
  const Metrics metrics;
  for (const char* address : {"127.0.0.1:0", "localhost:0"}) {
    auto server = MetricsServer::Start(*ParseAddress(address), metrics);
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_NE(HttpGet((*server)->port(), "/metrics").find("longshore_sessions"), std::string::npos);
    const auto start = std::chrono::steady_clock::now();
    server->reset();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1000)) << address;
  }
}

TEST(Metrics, ATakenPortIsNamed) {
  const Metrics metrics;
  const auto first = MetricsServer::Start(*ParseAddress("127.0.0.1:0"), metrics);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = absl::StrCat("127.0.0.1:", (*first)->port());
  const auto second = MetricsServer::Start(*ParseAddress(address), metrics);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.status().message().find(address), absl::string_view::npos) << second.status();
}

}  // namespace
}  // namespace longshore
