#include "client/cpp/ctl/metrics_text.h"

#include <cmath>
#include <cstdio>

#include <gtest/gtest.h>

#include "client/cpp/ctl/recall.h"

namespace longshore::ctl {
namespace {

constexpr char kText[] =
    "# HELP calls_total Calls\n"
    "# TYPE calls_total counter\n"
    "calls_total{method=\"Decode\",code=\"OK\"} 12\n"
    "calls_total{method=\"Decode\",code=\"ABORTED\"} 3\n"
    "calls_total{method=\"List\",code=\"OK\"} 1 1700000000\n"
    "depth 4\n"
    "odd{text=\"a \\\"b\\\", {c}\\n\"} 1.5e-3\n"
    "no line of the format\n"
    "latency_bucket{method=\"Decode\",le=\"0.001\"} 50\n"
    "latency_bucket{method=\"Decode\",le=\"0.002\"} 90\n"
    "latency_bucket{method=\"Decode\",le=\"+Inf\"} 100\n"
    "latency_sum{method=\"Decode\"} 0.25\n"
    "latency_count{method=\"Decode\"} 100\n";

TEST(MetricsText, SumsByLabels) {
  const MetricsText metrics(kText);
  EXPECT_EQ(metrics.Sum("calls_total"), 16);
  EXPECT_EQ(metrics.Sum("calls_total", {{"code", "OK"}}), 13);
  EXPECT_EQ(metrics.Sum("calls_total", {{"method", "Decode"}, {"code", "OK"}}), 12);
  EXPECT_EQ(metrics.Sum("depth"), 4);
  EXPECT_EQ(metrics.Sum("nothing"), 0);
  EXPECT_FALSE(metrics.Has("no"));
  EXPECT_EQ(metrics.ValuesOf("calls_total", "code"), (std::vector<std::string>{"ABORTED", "OK"}));
  EXPECT_EQ(metrics.ValuesOf("odd", "text"), (std::vector<std::string>{"a \"b\", {c}\n"}));
}

TEST(MetricsText, ReadsQuantilesOffBuckets) {
  const std::vector<HistogramSeries> all = MetricsText(kText).Histograms("latency");
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].labels, (Labels{{"method", "Decode"}}));
  EXPECT_EQ(all[0].count, 100);
  EXPECT_DOUBLE_EQ(all[0].Mean(), 0.0025);
  EXPECT_DOUBLE_EQ(all[0].Quantile(0.25), 0.0005);
  EXPECT_DOUBLE_EQ(all[0].Quantile(0.7), 0.0015);
  EXPECT_DOUBLE_EQ(all[0].Quantile(0.99), 0.002) << "past the last finite bound: that bound";
  EXPECT_EQ(HistogramSeries().Quantile(0.5), 0);
}

TEST(MetricsText, TellsWhatCameSince) {
  HistogramSeries older;
  older.buckets = {{0.001, 40}, {0.002, 80}, {INFINITY, 80}};
  older.sum = 0.1;
  older.count = 80;
  const HistogramSeries now = MetricsText(kText).Histograms("latency")[0];
  const HistogramSeries since = now.Since(older);
  EXPECT_EQ(since.count, 20);
  EXPECT_DOUBLE_EQ(since.sum, 0.15);
  EXPECT_EQ(since.buckets[1].second, 10);
  EXPECT_EQ(older.Since(now).count, 80) << "a daemon that has been started anew";
}

TEST(MetricsText, SumsHistogramsOverALabel) {
  const MetricsText metrics(
      "h_bucket{m=\"a\",code=\"OK\",le=\"1\"} 3\nh_bucket{m=\"a\",code=\"OK\",le=\"+Inf\"} 4\n"
      "h_bucket{m=\"a\",code=\"BAD\",le=\"1\"} 10\nh_bucket{m=\"a\",code=\"BAD\",le=\"+Inf\"} 10\n"
      "h_sum{m=\"a\",code=\"OK\"} 5\nh_sum{m=\"a\",code=\"BAD\"} 6\n");
  const std::vector<HistogramSeries> all = metrics.Histograms("h", "code");
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].labels, (Labels{{"m", "a"}}));
  EXPECT_EQ(all[0].count, 14);
  EXPECT_EQ(all[0].sum, 11);
  EXPECT_EQ(all[0].buckets[0].second, 13);
  EXPECT_EQ(metrics.Histograms("h").size(), 2U);
}

// One histogram of recall: 10 observations of `mass`, in a bucket that ends there.
std::string Recall(const char* name, const char* labels, double mass) {
  char text[1000];
  std::snprintf(text, sizeof text,
                "longshore_recall_%s_bucket{%s,le=\"%g\"} 10\n"
                "longshore_recall_%s_bucket{%s,le=\"+Inf\"} 10\n"
                "longshore_recall_%s_sum{%s} %g\nlongshore_recall_%s_count{%s} 10\n",
                name, labels, mass, name, labels, name, labels, mass * 10, name, labels);
  return text;
}

TEST(Recall, IsSortedByPhaseLayersAndAge) {
  std::string text;
  const struct {
    const char* labels;
    double mass;
  } given[] = {{"layers=\"rest\",phase=\"decode\",age=\"16+\"", 0.5},
               {"layers=\"rest\",phase=\"decode\",age=\"4-15\"", 0.6},
               {"layers=\"early\",phase=\"decode\",age=\"0\"", 0.9},
               {"layers=\"rest\",phase=\"prefill\",age=\"0\"", 0.8}};
  for (const auto& row : given) {
    text += Recall("mass_kept", row.labels, row.mass);
    text += Recall("worst_head_mass_kept", row.labels, row.mass / 2);
  }
  text +=
      "longshore_recall_mass_kept_bucket{layers=\"early\",phase=\"prefill\",age=\"0\",le=\"+Inf\"} "
      "0\n";
  const std::vector<RecallRow> rows = RecallRows(MetricsText(text));
  ASSERT_EQ(rows.size(), 4U) << "without the one that has no samples";
  EXPECT_EQ(rows[0].layers, "early");
  EXPECT_EQ(rows[1].age, "4-15");
  EXPECT_EQ(rows[2].age, "16+");
  EXPECT_EQ(rows[3].phase, "prefill");
  EXPECT_DOUBLE_EQ(rows[1].mass_kept.Mean(), 0.6);
  EXPECT_DOUBLE_EQ(rows[1].worst_head.Mean(), 0.3);
  const std::string table = RecallText(rows);
  EXPECT_NE(table.find("60.0 %"), std::string::npos) << table;
}

TEST(Recall, SaysWhatBecameOfSamples) {
  const std::string name = "longshore_recall_samples_total";
  EXPECT_EQ(SamplesText(MetricsText(name + "{result=\"dropped_busy\"} 4\n" + name +
                                    "{result=\"dropped_gone\"} 0\n" + name +
                                    "{result=\"measured\"} 3\n")),
            "of 7 sampled blocks 4 dropped_busy, 3 measured\n");
  const std::string none = SamplesText(MetricsText(name + "{result=\"measured\"} 0\n"));
  EXPECT_NE(none.find("sample_every"), std::string::npos) << none;
}

}  // namespace
}  // namespace longshore::ctl
