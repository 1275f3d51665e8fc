// longshorectl recall: how much attention mass the selections keep, as the daemon measures it.

#include "client/cpp/ctl/recall.h"

#include <algorithm>
#include <optional>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include "client/cpp/ctl/commands.h"
#include "client/cpp/ctl/json.h"
#include "client/cpp/ctl/metrics_text.h"
#include "client/cpp/ctl/options.h"
#include "client/cpp/ctl/text.h"

namespace longshore::ctl {
namespace {

constexpr char kSamples[] = "longshore_recall_samples_total";
constexpr char kMassKept[] = "longshore_recall_mass_kept";
constexpr char kWorstHead[] = "longshore_recall_worst_head_mass_kept";

struct RecallOptions {
  DaemonOptions daemon;
  bool json = false;
};

std::string LabelOf(const HistogramSeries& series, const std::string& name) {
  const auto found = series.labels.find(name);
  return found == series.labels.end() ? "" : found->second;
}

// Ages are names like 0, 1-3, 4-15, 16+ in the order of their first number.
double FirstNumber(const std::string& age) { return std::atof(age.c_str()); }

Json DistributionJson(const HistogramSeries& series) {
  Json buckets = Json::array();
  for (const auto& [bound, up_to] : series.buckets) {
    buckets.push_back({{"le", absl::StrCat(bound)}, {"count", up_to}});
  }
  return {{"mean", series.Mean()},
          {"p10", series.Quantile(0.1)},
          {"p50", series.Quantile(0.5)},
          {"buckets", buckets}};
}

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

}  // namespace

std::vector<RecallRow> RecallRows(const MetricsText& metrics) {
  std::vector<RecallRow> rows;
  const std::vector<HistogramSeries> worst = metrics.Histograms(kWorstHead);
  for (const HistogramSeries& mass : metrics.Histograms(kMassKept)) {
    if (mass.count == 0) {
      continue;
    }
    RecallRow row{.layers = LabelOf(mass, "layers"),
                  .phase = LabelOf(mass, "phase"),
                  .age = LabelOf(mass, "age"),
                  .mass_kept = mass,
                  .worst_head = {}};
    const auto same = std::find_if(worst.begin(), worst.end(), [&](const HistogramSeries& one) {
      return one.labels == mass.labels;
    });
    if (same != worst.end()) {
      row.worst_head = *same;
    }
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const RecallRow& left, const RecallRow& right) {
    return std::tuple(left.phase, left.layers, FirstNumber(left.age)) <
           std::tuple(right.phase, right.layers, FirstNumber(right.age));
  });
  return rows;
}

std::string RecallText(const std::vector<RecallRow>& rows) {
  std::vector<std::vector<std::string>> table = {
      {"phase", "layers", "mask age", "samples", "mass kept", "p10", "worst head", "p10 of worst"}};
  for (const RecallRow& row : rows) {
    table.push_back({row.phase, row.layers, row.age, absl::StrFormat("%.0f", row.mass_kept.count),
                     Percent(row.mass_kept.Mean()), Percent(row.mass_kept.Quantile(0.1)),
                     Percent(row.worst_head.Mean()), Percent(row.worst_head.Quantile(0.1))});
  }
  return Table(table, {"phase", "layers", "mask age"});
}

std::string SamplesText(const MetricsText& metrics) {
  const double all = metrics.Sum(kSamples);
  if (all == 0) {
    return "no block has been sampled since the daemon started: none left tokens out, or its "
           "config has recall.sample_every 0\n";
  }
  std::string text = absl::StrFormat("of %.0f sampled blocks ", all);
  std::vector<std::string> parts;
  for (const std::string& result : metrics.ValuesOf(kSamples, "result")) {
    const double blocks = metrics.Sum(kSamples, {{"result", result}});
    if (blocks > 0) {
      parts.push_back(absl::StrFormat("%.0f %s", blocks, result));
    }
  }
  return absl::StrCat(text, absl::StrJoin(parts, ", "), "\n");
}

namespace {

absl::StatusOr<int> Recall(const RecallOptions& options) {
  const absl::StatusOr<client::Client> daemon = options.daemon.Connect();
  if (!daemon.ok()) {
    return daemon.status();
  }
  const absl::StatusOr<std::string> text = daemon->Metrics(options.daemon.call());
  if (!text.ok()) {
    return text.status();
  }
  const MetricsText metrics(*text);
  const std::vector<RecallRow> rows = RecallRows(metrics);
  if (options.json) {
    Json all = Json::array();
    for (const RecallRow& row : rows) {
      all.push_back({{"phase", row.phase},
                     {"layers", row.layers},
                     {"age", row.age},
                     {"samples", row.mass_kept.count},
                     {"mass_kept", DistributionJson(row.mass_kept)},
                     {"worst_head_mass_kept", DistributionJson(row.worst_head)}});
    }
    PrintJson(all);
  } else if (metrics.Has(kSamples)) {
    Print(absl::StrCat(rows.empty() ? "no recall yet: " : RecallText(rows), SamplesText(metrics)));
  } else {
    Print(absl::StrCat("this daemon measures no recall: its metrics have no ", kSamples, "\n"));
  }
  return kExitOk;
}

}  // namespace

void AddRecall(CommandLine& root) {
  const auto options = std::make_shared<RecallOptions>();
  CommandLine command = root.Command(
      "recall", "attention mass that the selections keep, as the daemon samples it",
      "mass kept: share of a query block's true attention that its selection keeps, mean over\n"
      "heads; worst head: the same of the head that loses most. p10: a tenth of the samples are\n"
      "below. mask age: steps since the selection was made. A small worst head hurts more than a\n"
      "small mean: raise the policy's keep_tokens or lower refresh_steps.");
  options->daemon.AddTo(command);
  command.AddFlag("json", &options->json, kJsonHelp);
  command.Run([options] { return Recall(*options); });
}

}  // namespace longshore::ctl
