// longshorectl top: what a daemon does now, from its metrics, refreshed every second.

#include <unistd.h>

#include <optional>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/time/clock.h>

#include "client/cpp/ctl/commands.h"
#include "client/cpp/ctl/json.h"
#include "client/cpp/ctl/metrics_text.h"
#include "client/cpp/ctl/options.h"
#include "client/cpp/ctl/recall.h"
#include "client/cpp/ctl/text.h"

namespace longshore::ctl {
namespace {

constexpr char kClearScreen[] = "\x1b[H\x1b[2J";
constexpr char kSeconds[] = "longshore_request_seconds";
constexpr char kLookups[] = "longshore_mask_cache_lookups_total";

struct TopOptions {
  DaemonOptions daemon;
  bool once = false;
  bool json = false;
  double interval_seconds = 1.0;
};

// The metrics at one moment.
struct Sample {
  absl::Time time;
  client::ServerInfo info;
  MetricsText metrics;
};

// Two moments; with one sample alone, the time since the daemon started.
class Span {
 public:
  Span(const Sample& now, const Sample* before) : now_(now), before_(before) {}

  double seconds() const {
    const absl::Duration span = before_ == nullptr ? now_.info.uptime : now_.time - before_->time;
    return std::max(1e-9, absl::ToDoubleSeconds(span));
  }
  // A counter's growth.
  double Growth(const std::string& name, const Labels& labels = {}) const {
    const double now = now_.metrics.Sum(name, labels);
    const double before = before_ == nullptr ? 0 : before_->metrics.Sum(name, labels);
    return now < before ? now : now - before;  // it went back: another daemon
  }
  double Rate(const std::string& name, const Labels& labels = {}) const {
    return Growth(name, labels) / seconds();
  }
  std::vector<HistogramSeries> Histograms(const std::string& name,
                                          const std::string& summed) const {
    std::vector<HistogramSeries> all = now_.metrics.Histograms(name, summed);
    if (before_ != nullptr) {
      const std::vector<HistogramSeries> older = before_->metrics.Histograms(name, summed);
      for (HistogramSeries& series : all) {
        for (const HistogramSeries& old : older) {
          series = old.labels == series.labels ? series.Since(old) : series;
        }
      }
    }
    return all;
  }
  const MetricsText& now() const { return now_.metrics; }
  const client::ServerInfo& info() const { return now_.info; }

 private:
  const Sample& now_;
  const Sample* before_;
};

Json MethodsJson(const Span& span) {
  Json methods = Json::array();
  for (const HistogramSeries& series : span.Histograms(kSeconds, "code")) {
    if (series.count > 0) {
      const auto method = series.labels.find("method");
      methods.push_back({{"method", method == series.labels.end() ? "" : method->second},
                         {"per_second", series.count / span.seconds()},
                         {"p50_seconds", series.Quantile(0.5)},
                         {"p99_seconds", series.Quantile(0.99)}});
    }
  }
  return methods;
}

// Share of a stage's query blocks that used its cached result.
Json HitsJson(const Span& span) {
  Json stages = Json::array();
  for (const std::string& stage : span.now().ValuesOf(kLookups, "stage")) {
    const double cached = span.Growth(kLookups, {{"stage", stage}, {"result", "cached"}});
    const double all = span.Growth(kLookups, {{"stage", stage}});
    if (all > 0) {
      stages.push_back({{"stage", stage}, {"hit_ratio", cached / all}, {"lookups", all}});
    }
  }
  return stages;
}

Json RecallJson(const Span& span) {
  Json rows = Json::array();
  for (const RecallRow& row : RecallRows(span.now())) {
    rows.push_back({{"phase", row.phase},
                    {"layers", row.layers},
                    {"age", row.age},
                    {"mass_kept", row.mass_kept.Mean()},
                    {"worst_head_mass_kept", row.worst_head.Mean()},
                    {"samples", row.mass_kept.count}});
  }
  return rows;
}

Json TopJson(const Span& span) {
  const MetricsText& now = span.now();
  Json pool = Json::object();
  for (const std::string& state : now.ValuesOf("longshore_pool_bytes", "state")) {
    pool[state] = now.Sum("longshore_pool_bytes", {{"state", state}});
  }
  return {{"instance_id", span.info().instance_id},
          {"uptime_seconds", absl::ToDoubleSeconds(span.info().uptime)},
          {"span_seconds", span.seconds()},
          {"sessions", now.Sum("longshore_sessions")},
          {"queue_depth", now.Sum("longshore_queue_depth")},
          {"steps_per_second", span.Rate("longshore_steps_total")},
          {"tokens_per_second", span.Rate("longshore_tokens_appended_total")},
          {"errors_per_second", span.Rate("longshore_requests_total") -
                                    span.Rate("longshore_requests_total", {{"code", "OK"}})},
          {"pool_bytes", pool},
          {"methods", MethodsJson(span)},
          {"mask_cache", HitsJson(span)},
          {"recall", RecallJson(span)}};
}

std::string PoolText(const Json& pool) {
  double total = 0;
  std::string text;
  for (const auto& [state, bytes] : pool.items()) {
    total += bytes.get<double>();
    absl::StrAppend(&text, text.empty() ? "" : ", ", state, " ", ByteText(bytes.get<double>()));
  }
  const double free = pool.value("free", 0.0);
  const double taken = total > 0 ? 100 * (total - free) / total : 0;
  return absl::StrFormat("pool      %.0f %% of %s taken: %s\n", taken, ByteText(total), text);
}

std::string TopText(const std::string& target, const Json& top) {
  std::string text = absl::StrFormat(
      "longshored at %s, instance %s, up %s; over %.1f s\n"
      "calls     %.0f waiting, %.0f sessions, %.1f errors/s\n"
      "steps     %.1f /s, %.0f tokens/s (all layers)\n",
      target, top["instance_id"].get<std::string>(),
      absl::FormatDuration(absl::Seconds(std::floor(top["uptime_seconds"].get<double>()))),
      top["span_seconds"].get<double>(), top["queue_depth"].get<double>(),
      top["sessions"].get<double>(), top["errors_per_second"].get<double>(),
      top["steps_per_second"].get<double>(), top["tokens_per_second"].get<double>());
  absl::StrAppend(&text, PoolText(top["pool_bytes"]));
  for (const Json& stage : top["mask_cache"]) {
    absl::StrAppendFormat(&text, "cache     %s: %.1f %% of %.0f lookups hit\n",
                          stage["stage"].get<std::string>(), 100 * stage["hit_ratio"].get<double>(),
                          stage["lookups"].get<double>());
  }
  std::vector<std::vector<std::string>> methods = {{"method", "per s", "p50", "p99"}};
  for (const Json& method : top["methods"]) {
    methods.push_back({method["method"].get<std::string>(),
                       absl::StrFormat("%.1f", method["per_second"].get<double>()),
                       SecondsText(method["p50_seconds"].get<double>()),
                       SecondsText(method["p99_seconds"].get<double>())});
  }
  if (methods.size() > 1) {
    absl::StrAppend(&text, "\n", Table(methods, {"method"}));
  }
  return text;
}

absl::StatusOr<Sample> TakeSample(const client::Client& daemon, const client::CallOptions& call) {
  absl::StatusOr<client::ServerInfo> info = daemon.Info(call);
  if (!info.ok()) {
    return info.status();
  }
  const absl::StatusOr<std::string> text = daemon.Metrics(call);
  if (!text.ok()) {
    return text.status();
  }
  return Sample{absl::Now(), *std::move(info), MetricsText(*text)};
}

void Show(const client::Client& daemon, const TopOptions& options, const Span& span, bool live) {
  const Json top = TopJson(span);
  if (options.json) {
    PrintJsonLine(top);
    std::fflush(stdout);  // whoever reads a pipe wants each line when it is there
    return;
  }
  std::string text = TopText(daemon.target(), top);
  const std::vector<RecallRow> recall = RecallRows(span.now());
  absl::StrAppend(&text, "\n", recall.empty() ? "no recall sampled yet\n" : RecallText(recall));
  Print(live ? kClearScreen + text : text);
  std::fflush(stdout);
}

absl::StatusOr<int> Top(const TopOptions& options) {
  if (!(options.interval_seconds >= 0.1)) {
    return absl::InvalidArgumentError("--interval is less than 0.1 seconds");
  }
  const absl::StatusOr<client::Client> daemon = options.daemon.Connect();
  if (!daemon.ok()) {
    return daemon.status();
  }
  const bool live = !options.once && !options.json && isatty(STDOUT_FILENO) == 1;
  std::optional<Sample> before;
  for (;;) {
    absl::StatusOr<Sample> now = TakeSample(*daemon, options.daemon.call());
    if (!now.ok()) {
      return now.status();
    }
    const bool same = before.has_value() && before->info.instance_id == now->info.instance_id;
    Show(*daemon, options, Span(*now, same ? &*before : nullptr), live);
    if (options.once || (!live && !options.json)) {
      return kExitOk;
    }
    before = *std::move(now);
    absl::SleepFor(absl::Seconds(options.interval_seconds));
  }
}

}  // namespace

void AddTop(CommandLine& root) {
  const auto options = std::make_shared<TopOptions>();
  CommandLine command = root.Command(
      "top", "live: queue, latency, cache hits, pool, sessions, recall",
      "The first screen is of all the time since the daemon started, later ones of the last\n"
      "interval. Where stdout is no terminal: one screen. With --json: a line an interval, until\n"
      "it is stopped; with --once, one. Latencies are read off histogram buckets, straight "
      "between\n"
      "their bounds. Ends with exit code 3 when the daemon does.");
  options->daemon.AddTo(command);
  command.Add("interval", &options->interval_seconds, "seconds between screens");
  command.AddFlag("once", &options->once, "one screen, then end");
  command.AddFlag("json", &options->json, kJsonHelp);
  command.Run([options] { return Top(*options); });
}

}  // namespace longshore::ctl
