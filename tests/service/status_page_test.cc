#include "service/status_page.h"

#include <algorithm>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_split.h>
#include <gtest/gtest.h>

#include "service/errors.h"
#include "service/html.h"
#include "service/metrics.h"

namespace longshore {
namespace {

constexpr const char* kEntities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};

bool BeginsWithEntity(absl::string_view text) {
  return std::any_of(std::begin(kEntities), std::end(kEntities),
                     [&text](const char* entity) { return absl::StartsWith(text, entity); });
}

// Takes a tag, without its brackets, into the elements that are open. What is wrong, or nothing.
std::string TakeTag(const std::string& tag, std::vector<std::string>* open) {
  if (std::count(tag.begin(), tag.end(), '"') % 2 != 0 || absl::StrContains(tag, "<")) {
    return "quotes: " + tag;
  }
  if (tag[0] == '/') {
    if (open->empty() || "/" + open->back() != tag) {
      return tag + " closes " + (open->empty() ? "nothing" : open->back());
    }
    open->pop_back();
  } else if (tag[0] != '!' && tag.back() != '/') {
    open->push_back(tag.substr(0, tag.find(' ')));
  }
  return "";
}

// What is wrong with a document's tags and entities as XML, or nothing.
std::string FaultOf(absl::string_view document) {
  std::vector<std::string> open;
  for (size_t at = 0; at < document.size(); ++at) {
    if (document[at] == '&' && !BeginsWithEntity(document.substr(at))) {
      return absl::StrCat("a bare & before ", document.substr(at, 10));
    }
    if (document[at] != '<') {
      continue;
    }
    const size_t end = document.find('>', at);
    if (end == absl::string_view::npos) {
      return "a tag has no end";
    }
    std::string fault = TakeTag(std::string{document.substr(at + 1, end - at - 1)}, &open);
    if (!fault.empty()) {
      return fault;
    }
    at = end;
  }
  return open.empty() ? "" : open.back() + " is not closed";
}

StatusReport ReportOf(const Metrics& metrics) {
  StatusReport report{.version = "1.2.3", .build = "Debug", .board = {}, .metrics = {}, .past = {}};
  report.board.instance_id = "0123456789abcdef";
  report.board.readiness = Readiness::kServing;
  report.metrics = metrics.Collect();
  return report;
}

void ExpectParts(const std::string& page, std::initializer_list<const char*> parts) {
  EXPECT_EQ(FaultOf(page), "");
  for (const char* part : parts) {
    EXPECT_TRUE(absl::StrContains(page, part)) << part << "\nnot in\n" << page;
  }
}

TEST(StatusPage, SaysWhatThereIsNotYet) {
  StatusReport report = ReportOf(Metrics());
  report.board.readiness = Readiness::kLoading;
  const std::string page = StatusPage(report);
  ExpectParts(page, {">loading<", "no backend yet", "No session is open.", "No stage has run yet.",
                     "Nobody has called yet.", "None since the start.", "1.2.3 Debug"});
  EXPECT_FALSE(absl::StrContains(page, "Recall")) << "without a monitor";
}

TEST(StatusPage, ShowsTheNumbers) {
  Metrics metrics;
  metrics.SetEngine({.total_bytes = int64_t{4} << 30,
                     .used_bytes = int64_t{1} << 30,
                     .reserved_bytes = int64_t{2} << 30,
                     .free_bytes = int64_t{1} << 30},
                    int64_t{256} << 20, 3);
  metrics.SetLimits(256, 64, int64_t{1} << 30);
  metrics.SetQueueDepth(7);
  for (int call = 0; call < 99; ++call) {
    metrics.CountRequest(Method::kDecodeStep, absl::OkStatus(), 0.0004);
  }
  metrics.CountRequest(Method::kDecodeStep, DrainingError(), 0.0004);
  StepTrace trace;
  trace.items = 4;
  trace.num_stages = 1;
  trace.stage_cached = {15};
  trace.stage_refreshed = {1};
  trace.stage_uses[0] = {15, 0, 0, 0, 1, 0};
  trace.stage_ages[0].Add(12);
  metrics.CountStep(StepKind::kDecode, trace);
  StatusReport report = ReportOf(metrics);
  report.board.device = DeviceInfo{.backend = "cpu", .device = "A <chip>"};
  ExpectParts(StatusPage(report),
              {">serving<", "instance <code>01234567</code>", "cpu backend (A &lt;chip&gt;)",
               "3 <span>of 64</span>", "7 <span>of 256</span>", "pool of 4.00 GiB",
               "used<br/><b>1.00 GiB</b> <span>25.0 %", "reserved<br/><b>2.00 GiB</b> <span>50.0 %",
               "tables beside the pool<br/><b>256 MiB</b> <span>25.0 %", "93.8 %",  // 15 of 16
               "4.00 sessions each", "1 with an error, 1.0 %", "DecodeStep", "DRAINING",
               "width:25.00%", "12.0"});
}

// A thousand quick calls of long ago, and a slow one now.
TEST(StatusPage, LatenciesAreThoseOfTheLastMinute) {
  Metrics metrics;
  for (int call = 0; call < 1000; ++call) {
    metrics.CountRequest(Method::kDecodeStep, absl::OkStatus(), 0.0001);
    metrics.ObserveQueueWait(false, 0.0001);
  }
  metrics.CountRequest(Method::kPrefill, absl::OkStatus(), 0.0001);
  const MetricHistory::Clock::time_point start;
  MetricHistory history(start);
  history.Keep(metrics, start + std::chrono::seconds(100));
  metrics.CountRequest(Method::kDecodeStep, absl::OkStatus(), 1.5);
  metrics.ObserveQueueWait(false, 1.5);
  StatusReport report = ReportOf(metrics);
  report.past = history.Read(start + std::chrono::seconds(165));
  const std::string page = StatusPage(report);
  ExpectParts(page, {"last 1 min 5 s", "<td>1,001</td><td>0</td><td>1.50 s</td><td>1.99 s</td>",
                     "Prefill</th><td>1</td><td>0</td><td>–</td><td>–</td>",
                     "waits: 1.50 s p50, 1.99 s p99", "up to 2.00 s: 1<", "up to 100 µs: 0<"});
}

TEST(StatusPage, EscapesWhatAClientChose) {
  StatusReport report = ReportOf(Metrics());
  report.board.sessions = {{.id = 17,
                            .name = "<script>alert(\"1\")</script>&'",
                            .tokens = 1500,
                            .max_tokens = 4096,
                            .bytes_used = 3 << 20,
                            .bytes_reserved = 5 << 20,
                            .idle_seconds = 60,
                            .lease_seconds = 7200},
                           {.id = 18, .name = "a\x01\x1b[31m\x7f", .max_tokens = 10},
                           {.id = 19, .name = "", .max_tokens = 10}};
  report.board.sessions_age_seconds = 5;
  const std::string page = StatusPage(report);
  ExpectParts(page, {"&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;&#39;", "1,500",
                     "4,096", "3.00 MiB", "5.00 MiB", "1 min 5 s", "2 h 0 min", ">17<",
                     "a\xef\xbf\xbd\xef\xbf\xbd[31m\xef\xbf\xbd", "unnamed"});
  EXPECT_FALSE(absl::StrContains(page, "<script"));
}

TEST(StatusPage, ShowsAtMostSoManySessions) {
  StatusReport report = ReportOf(Metrics());
  report.board.sessions.resize(130, {.name = "many", .max_tokens = 1});
  const std::string page = StatusPage(report);
  ExpectParts(page, {"the first 100; 30 more"});
}

// The recall monitor's families, as far as the page knows them.
TEST(StatusPage, ShowsRecallWhereItIsMeasured) {
  Metrics metrics;
  const auto observe = [&metrics](const char* name, const char* age, double value) {
    prometheus::BuildHistogram()
        .Name(name)
        .Register(*metrics.registry())
        .Add({{"layers", "rest"}, {"phase", "decode"}, {"age", age}},
             prometheus::Histogram::BucketBoundaries{0.5, 1})
        .Observe(value);
  };
  observe("longshore_recall_mass_kept", "16+", 0.375);
  observe("longshore_recall_mass_kept", "4-7", 0.875);
  observe("longshore_recall_worst_head_mass_kept", "4-7", 0.25);
  const std::string page = StatusPage(ReportOf(metrics));
  ExpectParts(page, {"Recall", "decode, rest layers", "<td>62.5 %</td>", "<td>25.0 %</td>",
                     "<td>87.5 %</td>", R"(<span class="bad-text">37.5 %</span>)"});
  EXPECT_LT(page.find("age 4-7"), page.find("age 16+")) << "by number";
}

TEST(Html, NumbersAreForPeople) {
  EXPECT_EQ(html::Count(0), "0");
  EXPECT_EQ(html::Count(999), "999");
  EXPECT_EQ(html::Count(12345), "12,345");
  EXPECT_EQ(html::Count(12'345'678), "12.3 M");
  EXPECT_EQ(html::Count(5e18), "5000 P");
  EXPECT_EQ(html::Bytes(1023), "1,023 B");
  EXPECT_EQ(html::Bytes(1536), "1.50 KiB");
  EXPECT_EQ(html::Bytes((1 << 30) - 40'000), "1.00 GiB") << "not 1024 MiB";
  EXPECT_EQ(html::Bytes(8.0 * 1024 * 1024 * 1024 * 1024), "8.00 TiB");
  EXPECT_EQ(html::Seconds(0.00084), "840 µs");
  EXPECT_EQ(html::Seconds(0.0123), "12.3 ms");
  EXPECT_EQ(html::Seconds(3.4), "3.40 s");
  EXPECT_EQ(html::Duration(59.9), "59 s");
  EXPECT_EQ(html::Duration(3 * 86400 + 4 * 3600), "3 d 4 h");
  EXPECT_EQ(html::Percent(1, 0), "–");
  EXPECT_EQ(html::Percent(15, 16), "93.8 %");
}

TEST(MetricReader, QuantilesAreInterpolated) {
  prometheus::Registry registry;
  auto& family = prometheus::BuildHistogram().Name("h").Register(registry);
  const prometheus::Histogram::BucketBoundaries bounds = {1, 2, 4};
  auto& one = family.Add({{"of", "one"}}, bounds);
  auto& two = family.Add({{"of", "two"}}, bounds);
  for (const double value : {0.5, 0.5, 1.5, 1.5}) {
    one.Observe(value);
  }
  two.Observe(3);
  two.Observe(100);
  const auto families = registry.Collect();
  const MetricReader reader(families);
  const Distribution of_one = reader.Merge("h", {{"of", "one"}});
  EXPECT_EQ(of_one.count, 4U);
  EXPECT_DOUBLE_EQ(of_one.Mean(), 1);
  EXPECT_DOUBLE_EQ(of_one.Quantile(0.25), 0.5);
  EXPECT_DOUBLE_EQ(of_one.Quantile(0.75), 1.5);
  const Distribution both = reader.Merge("h");
  EXPECT_EQ(both.count, 6U);
  EXPECT_DOUBLE_EQ(both.Quantile(0.999), 4) << "the largest bound stands for what is beyond";
  EXPECT_EQ(reader.ValuesOf("h", "of"), (std::vector<std::string>{"one", "two"}));
  EXPECT_FALSE(reader.Has("g"));
  EXPECT_EQ(reader.Merge("g").Quantile(0.5), 0);
}

}  // namespace
}  // namespace longshore
