#include "service/metrics.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_split.h>
#include <gtest/gtest.h>

#include "service/errors.h"
#include "tests/service/http_get.h"
#include "tests/service/test_server.h"
#include "tests/support/golden_file.h"

namespace longshore {
namespace {

bool HasLine(const std::string& text, const std::string& line) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

void ExpectLines(const std::string& text, std::initializer_list<const char*> lines) {
  for (const char* line : lines) {
    EXPECT_TRUE(HasLine(text, line)) << line << "\nnot in\n" << text;
  }
}

TEST(Metrics, AStepIsCountedByKindStageAndBlock) {
  Metrics metrics;
  StepTrace trace;
  trace.items = 3;
  trace.rows = 5;
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
  ExpectLines(metrics.Text(), {
                                  "longshore_steps_total{kind=\"decode\"} 1",
                                  "longshore_steps_total{kind=\"prefill\"} 0",
                                  "longshore_step_items_bucket{kind=\"decode\",le=\"2\"} 0",
                                  "longshore_step_items_bucket{kind=\"decode\",le=\"4\"} 1",
                                  "longshore_step_items_sum{kind=\"decode\"} 3",
                                  "longshore_step_rows_sum{kind=\"decode\"} 5",
                                  "longshore_step_rows_count{kind=\"append\"} 0",
                                  "longshore_tokens_appended_total 5",
                                  "longshore_replays_total 1",
                                  "longshore_query_blocks_total{kind=\"dense\"} 2",
                                  "longshore_query_blocks_total{kind=\"streaming\"} 1",
                                  "longshore_query_blocks_total{kind=\"sliding\"} 4",
                                  "longshore_query_blocks_total{kind=\"staged\"} 5",
                                  "longshore_step_stage_seconds_count{stage=\"append\"} 1",
                                  "longshore_step_stage_seconds_count{stage=\"prune_1\"} 1",
                                  "longshore_step_stage_seconds_count{stage=\"prune_2\"} 0",
                                  "longshore_step_stage_seconds_count{stage=\"attend\"} 1",
                              });
}

// A decode step of two stages: the coarser one is cached three times, the finer one runs twice by
// its clock and is cached once; and a prefill's two blocks run both.
TEST(Metrics, StagesAreCountedByReasonAndMasksByAge) {
  Metrics metrics;
  StepTrace decode;
  decode.num_stages = 2;
  decode.stage_cached = {3, 1};
  decode.stage_refreshed = {0, 2};
  decode.stage_uses[0][static_cast<size_t>(StageUse::kCached)] = 3;
  decode.stage_uses[1][static_cast<size_t>(StageUse::kCached)] = 1;
  decode.stage_uses[1][static_cast<size_t>(StageUse::kClock)] = 2;
  for (const int64_t age : {0, 3, 200}) {
    decode.stage_ages[0].Add(age);
  }
  decode.stage_ages[1].Add(1);
  metrics.CountStep(StepKind::kDecode, decode);
  StepTrace prefill;
  prefill.num_stages = 2;
  prefill.stage_refreshed = {2, 2};
  prefill.stage_uses[0][static_cast<size_t>(StageUse::kPrefill)] = 2;
  prefill.stage_uses[1][static_cast<size_t>(StageUse::kPrefill)] = 2;
  metrics.CountStep(StepKind::kPrefill, prefill);
  StepTrace others;
  others.num_stages = 1;
  others.stage_refreshed = {12};
  others.stage_uses[0] = {0, 0, 5, 4, 0, 3};  // first, invalidated, propagated
  metrics.CountStep(StepKind::kDecode, others);

  ExpectLines(metrics.Text(),
              {
                  "longshore_mask_cache_lookups_total{result=\"cached\",stage=\"prune_0\"} 3",
                  "longshore_mask_cache_lookups_total{result=\"refreshed\",stage=\"prune_0\"} 12",
                  "longshore_mask_cache_lookups_total{result=\"cached\",stage=\"prune_1\"} 1",
                  "longshore_mask_cache_lookups_total{result=\"refreshed\",stage=\"prune_1\"} 2",
                  "longshore_stage_refreshes_total{reason=\"clock\",stage=\"prune_1\"} 2",
                  "longshore_stage_refreshes_total{reason=\"prefill\",stage=\"prune_0\"} 2",
                  "longshore_stage_refreshes_total{reason=\"prefill\",stage=\"prune_1\"} 2",
                  "longshore_stage_refreshes_total{reason=\"first\",stage=\"prune_0\"} 5",
                  "longshore_stage_refreshes_total{reason=\"invalidated\",stage=\"prune_0\"} 4",
                  "longshore_stage_refreshes_total{reason=\"propagated\",stage=\"prune_0\"} 3",
                  "longshore_stage_refreshes_total{reason=\"clock\",stage=\"prune_0\"} 0",
                  "longshore_mask_age_tokens_bucket{stage=\"prune_0\",le=\"0\"} 1",
                  "longshore_mask_age_tokens_bucket{stage=\"prune_0\",le=\"1\"} 1",
                  "longshore_mask_age_tokens_bucket{stage=\"prune_0\",le=\"3\"} 2",
                  "longshore_mask_age_tokens_bucket{stage=\"prune_0\",le=\"127\"} 2",
                  "longshore_mask_age_tokens_bucket{stage=\"prune_0\",le=\"+Inf\"} 3",
                  "longshore_mask_age_tokens_sum{stage=\"prune_0\"} 203",
                  "longshore_mask_age_tokens_sum{stage=\"prune_1\"} 1",
              });
}

TEST(Metrics, CallsAreCountedByMethodCodeAndReason) {
  Metrics metrics;
  metrics.CountRequest(Method::kDecodeStep, absl::OkStatus(), 0.0004);
  metrics.CountRequest(Method::kDecodeStep, absl::OkStatus(), 0.02);
  metrics.CountRequest(Method::kDecodeStep, DrainingError(), 0.00001);
  metrics.CountRequest(Method::kStreamSteps, absl::OkStatus());
  metrics.CountRequest(Method::kPrefill, absl::InternalError("no details"), 0.1);
  metrics.CountRequest(Method::kPrefill,
                       MakeReason(absl::StatusCode::kInternal, "NOBODY_KNOWS_ME", "x"), 0.1);
  const std::string text = metrics.Text();
  ExpectLines(
      text,
      {
          "longshore_requests_total{code=\"OK\",method=\"DecodeStep\"} 2",
          "longshore_requests_total{code=\"UNAVAILABLE\",method=\"DecodeStep\"} 1",
          "longshore_requests_total{code=\"OK\",method=\"StreamSteps\"} 1",
          "longshore_request_seconds_count{code=\"OK\",method=\"DecodeStep\"} 2",
          "longshore_request_seconds_bucket{code=\"OK\",method=\"DecodeStep\",le=\"0.0005\"} 1",
          "longshore_request_seconds_count{code=\"UNAVAILABLE\",method=\"DecodeStep\"} 1",
          "longshore_request_seconds_count{code=\"OK\",method=\"StreamSteps\"} 0",
          "longshore_rejected_total{reason=\"DRAINING\"} 1",
          "longshore_rejected_total{reason=\"INTERNAL\"} 1",
          "longshore_rejected_total{reason=\"other\"} 1",
          "longshore_rejected_total{reason=\"QUEUE_FULL\"} 0",
      });
  EXPECT_FALSE(absl::StrContains(text, "NOBODY_KNOWS_ME"));
  EXPECT_FALSE(absl::StrContains(text, "method=\"OpenRegion\"")) << "nobody called it";
}

// Rows of its table are `| CODE | `REASON` | ...`.
TEST(Metrics, EveryReasonOfTheContractIsKnown) {
  std::ifstream readme(SourceRoot() / "proto/README.md");
  int reasons = 0;
  for (std::string line; std::getline(readme, line);) {
    const std::vector<std::string> cells = absl::StrSplit(line, '|');
    if (cells.size() < 4 || !absl::StartsWith(cells[2], " `")) {
      continue;
    }
    const std::string reason = cells[2].substr(2, cells[2].rfind('`') - 2);
    Metrics metrics;
    metrics.CountRequest(Method::kPrefill,
                         MakeReason(absl::StatusCode::kInternal, reason, "a text"), 0.1);
    EXPECT_TRUE(HasLine(metrics.Text(), "longshore_rejected_total{reason=\"" + reason + "\"} 1"))
        << reason << " is missing in request_metrics.cc";
    ++reasons;
  }
  EXPECT_GE(reasons, 20);
}

TEST(Metrics, TheQueueIsSeenFromOutside) {
  Metrics metrics;
  metrics.SetQueueDepth(4);
  metrics.SetLimits(256, 64, 1 << 30);
  metrics.ObserveQueueWait(/*bulk=*/true, 0.3);
  metrics.ObserveQueueWait(/*bulk=*/false, 0.00002);
  ExpectLines(metrics.Text(), {
                                  "longshore_queue_depth 4",
                                  "longshore_queue_limit 256",
                                  "longshore_sessions_limit 64",
                                  "longshore_table_limit_bytes 1073741824",
                                  "longshore_queue_wait_seconds_bucket{kind=\"bulk\",le=\"0.2\"} 0",
                                  "longshore_queue_wait_seconds_bucket{kind=\"bulk\",le=\"0.5\"} 1",
                                  "longshore_queue_wait_seconds_count{kind=\"short\"} 1",
                              });
}

TEST(Metrics, TheEngineIsSeenFromOutside) {
  Metrics metrics;
  metrics.SetEngine({.total_bytes = 60, .used_bytes = 10, .reserved_bytes = 20, .free_bytes = 30},
                    7000, 3);
  metrics.CountLeaseExpiry();
  metrics.CountLeaseExpiry();
  ExpectLines(metrics.Text(), {
                                  "longshore_sessions 3",
                                  "longshore_pool_bytes{state=\"used\"} 10",
                                  "longshore_pool_bytes{state=\"reserved\"} 20",
                                  "longshore_pool_bytes{state=\"free\"} 30",
                                  "longshore_table_bytes 7000",
                                  "longshore_lease_expiries_total 2",
                              });
}

// The value of a series without labels.
double ValueOf(const std::string& text, const std::string& name) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, name + " ")) {
      return std::stod(std::string{line.substr(name.size() + 1)});
    }
  }
  ADD_FAILURE() << name << " is not there";
  return 0;
}

TEST(Metrics, TheProcessIsSeenFromOutside) {
  Metrics metrics;
  EXPECT_TRUE(HasLine(metrics.Text(), "longshore_ready 0"));
  metrics.SetReady(true);
  metrics.SetBuild({.backend = "cpu", .device = "a \"chip\""});
  const std::string text = metrics.Text();
  EXPECT_TRUE(HasLine(text, "longshore_ready 1"));
  EXPECT_TRUE(absl::StrContains(text, "longshore_build_info{backend=\"cpu\",build=\""));
  EXPECT_TRUE(absl::StrContains(text, "device=\"a \\\"chip\\\"\",version=\"")) << text;
  const double now = static_cast<double>(std::chrono::duration_cast<std::chrono::seconds>(
                                             std::chrono::system_clock::now().time_since_epoch())
                                             .count());
  EXPECT_NEAR(ValueOf(text, "process_start_time_seconds"), now, 3600);
  EXPECT_GE(ValueOf(text, "longshore_uptime_seconds"), 0);
  EXPECT_GT(ValueOf(text, "process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(ValueOf(text, "process_open_fds"), 2);
  EXPECT_GE(ValueOf(text, "process_cpu_seconds_total"), 0);
  EXPECT_TRUE(absl::StrContains(text, "# TYPE process_cpu_seconds_total counter"));
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
  ExpectLines(text, {
                        "longshore_requests_total{code=\"OK\",method=\"OpenSession\"} 1",
                        "longshore_requests_total{code=\"OK\",method=\"Prefill\"} 1",
                        "longshore_requests_total{code=\"ABORTED\",method=\"DecodeStep\"} 1",
                        "longshore_rejected_total{reason=\"POSITION_CONFLICT\"} 1",
                        "longshore_request_seconds_count{code=\"OK\",method=\"Prefill\"} 1",
                        "longshore_steps_total{kind=\"prefill\"} 1",
                        "longshore_step_items_count{kind=\"prefill\"} 1",
                        "longshore_step_rows_sum{kind=\"prefill\"} 64",
                        "longshore_query_blocks_total{kind=\"dense\"} 1",
                        "longshore_tokens_appended_total 64",
                        "longshore_sessions 1",
                        "longshore_pool_bytes{state=\"used\"} 65536",
                        "longshore_pool_bytes{state=\"reserved\"} 2031616",
                        "longshore_queue_depth 0",
                        "longshore_queue_limit 256",
                        "longshore_queue_wait_seconds_count{kind=\"bulk\"} 1",
                        "longshore_ready 1",
                    });
  EXPECT_GT(ValueOf(text, "longshore_table_bytes"), 0);
  EXPECT_TRUE(absl::StrContains(text, "longshore_build_info{backend=\"cpu\"")) << text;
}

// METRICS.md has a row `| `name` | ...` for each family, in any order.
TEST(Metrics, TheTableListsExactlyWhatIsExported) {
  std::set<std::string> listed;
  std::ifstream table(SourceRoot() / "service/METRICS.md");
  for (std::string line; std::getline(table, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, '`');
    if (parts.size() >= 3 && parts[0] == "| ") {
      EXPECT_TRUE(listed.insert(parts[1]).second) << parts[1] << " is listed twice";
    }
  }
  TestServer server;
  server.Open();
  grpc::ClientContext context;
  v1::GetMetricsResponse exported;
  ASSERT_TRUE(v1::Server::NewStub(server.channel())
                  ->GetMetrics(&context, v1::GetMetricsRequest(), &exported)
                  .ok());
  std::set<std::string> types;
  for (const absl::string_view line : absl::StrSplit(exported.text(), '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() == 4 && words[1] == "TYPE") {
      types.insert(words[2]);
    }
  }
  // The recall monitor may be off, and shows its histograms with their first sample.
  for (auto name = listed.begin(); name != listed.end();) {
    const bool may_lack = absl::StartsWith(*name, "longshore_recall_") && !types.contains(*name);
    name = may_lack ? listed.erase(name) : std::next(name);
  }
  EXPECT_EQ(listed, types);
}

}  // namespace
}  // namespace longshore
