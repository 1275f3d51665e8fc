#include "service/status_page.h"

#include <algorithm>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "service/html.h"
#include "service/metric_reader.h"
#include "service/status_style.h"

namespace longshore {
namespace {

using html::Bar;
using html::Bytes;
using html::Card;
using html::Count;
using html::Duration;
using html::Escape;
using html::Percent;
using html::Seconds;
using html::Table;

constexpr size_t kMaxSessionsShown = 100;
constexpr char kWave[] =
    R"(<svg viewBox="0 0 38 38" fill="none" stroke="currentColor" stroke-width="3.4" )"
    R"(stroke-linecap="round" aria-hidden="true"><path d="M3 12c5.3-6 10.7-6 16 0s10.7 6 16 0"/>)"
    R"(<path d="M3 21c5.3-6 10.7-6 16 0s10.7 6 16 0" opacity=".65"/>)"
    R"(<path d="M3 30c5.3-6 10.7-6 16 0s10.7 6 16 0" opacity=".3"/></svg>)";
constexpr char kIcon[] =
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 38 38' fill='none' "
    "stroke='%230a7488' stroke-width='5' stroke-linecap='round'%3E%3Cpath d='M3 13c5.3-8 10.7-8 16 "
    "0s10.7 8 16 0M3 27c5.3-8 10.7-8 16 0s10.7 8 16 0'/%3E%3C/svg%3E";

const char* PillClass(Readiness readiness) {
  switch (readiness) {
    case Readiness::kServing: return "good";
    case Readiness::kLoading:
    case Readiness::kDraining: return "warn";
    case Readiness::kDeviceLost: return "bad";
  }
  return "bad";
}

std::string Header(const StatusReport& report, const MetricReader& metrics) {
  const StatusBoard::View& board = report.board;
  std::string device = "no backend yet";
  if (board.device.has_value()) {
    device = Escape(absl::StrCat(board.device->backend, " backend (", board.device->device, ")"));
  }
  return absl::StrCat("<header>", kWave, "<div><h1>longshore</h1><p>", Escape(report.version), " ",
                      Escape(report.build), ", ", device, "</p></div>\n",
                      R"(<div class="state"><span class=")", "pill ", PillClass(board.readiness),
                      R"(">)", NameOf(board.readiness), "</span><p>up ",
                      Duration(metrics.Sum("longshore_uptime_seconds")), ", instance <code>",
                      Escape(board.instance_id.substr(0, 8)), "</code></p></div></header>\n");
}

std::string Tile(absl::string_view title, absl::string_view value, absl::string_view below) {
  return absl::StrCat(R"(<section class="card tile"><h2>)", title, "</h2><b>", value, "</b><p>",
                      below, "</p></section>\n");
}

std::string OfLimit(const MetricReader& metrics, const char* value, const char* limit) {
  return absl::StrCat(Count(metrics.Sum(value)), " <span>of ", Count(metrics.Sum(limit)),
                      "</span>");
}

std::string Tiles(const MetricReader& metrics, const MetricReader& past) {
  const double requests = metrics.Sum("longshore_requests_total");
  const double rejected = metrics.Sum("longshore_rejected_total");
  const double expired = metrics.Sum("longshore_lease_expiries_total");
  constexpr char kWait[] = "longshore_queue_wait_seconds";
  const Distribution wait = metrics.Merge(kWait).Since(past.Merge(kWait));
  const Distribution batch = metrics.Merge("longshore_step_items", {{"kind", "decode"}});
  const std::string waited = wait.count == 0
                                 ? "nothing has waited lately"
                                 : absl::StrCat("waits: ", Seconds(wait.Quantile(0.5)), " p50, ",
                                                Seconds(wait.Quantile(0.99)), " p99");
  return absl::StrCat(
      Tile("Open sessions", OfLimit(metrics, "longshore_sessions", "longshore_sessions_limit"),
           absl::StrCat(Count(expired), expired == 1 ? " lease has" : " leases have", " ended")),
      Tile("Queue", OfLimit(metrics, "longshore_queue_depth", "longshore_queue_limit"), waited),
      Tile("Decode steps", Count(static_cast<double>(batch.count)),
           absl::StrCat(absl::StrFormat("%.2f", batch.Mean()), " sessions each; ",
                        Count(metrics.Sum("longshore_steps_total", {{"kind", "prefill"}})),
                        " prefills")),
      Tile("Calls", Count(requests),
           absl::StrCat(Count(rejected), " with an error, ", Percent(rejected, requests))));
}

std::string LegendItem(const char* classes, absl::string_view name, double bytes, double whole) {
  return absl::StrCat(R"(<li><i class=")", classes, R"("></i>)", name, "<br/><b>", Bytes(bytes),
                      "</b> <span>", Percent(bytes, whole), "</span></li>");
}

std::string MemoryCard(const MetricReader& metrics) {
  const double used = metrics.Sum("longshore_pool_bytes", {{"state", "used"}});
  const double reserved = metrics.Sum("longshore_pool_bytes", {{"state", "reserved"}});
  const double total = metrics.Sum("longshore_pool_bytes");
  const double tables = metrics.Sum("longshore_table_bytes");
  const double tables_limit = metrics.Sum("longshore_table_limit_bytes");
  const double whole = std::max(total, 1.0);
  const std::string pool = absl::StrCat(
      R"(<div class="tall">)", Bar({{used / whole, "sea"}, {reserved / whole, "shallow"}}),
      R"(</div><ul class="legend">)", LegendItem("sea", "used", used, total),
      LegendItem("shallow", "reserved", reserved, total),
      LegendItem("track", "free", total - used - reserved, total), "</ul>");
  const std::string beside = absl::StrCat(
      R"(<div class="tall">)", Bar({{tables / std::max(tables_limit, 1.0), "sea"}}),
      R"(</div><ul class="legend">)",
      LegendItem("sea", "tables beside the pool", tables, tables_limit),
      LegendItem("track", "free", tables_limit - tables, tables_limit),
      R"(</ul><p class="note">Process: )", Bytes(metrics.Sum("process_resident_memory_bytes")),
      " resident, ", Count(metrics.Sum("process_open_fds")), " open files, ",
      Duration(metrics.Sum("process_cpu_seconds_total")), " of CPU time</p>");
  return Card("half", "Memory", absl::StrCat("pool of ", Bytes(total)), pool + beside);
}

std::string MaskCacheCard(const MetricReader& metrics) {
  constexpr char kLookups[] = "longshore_mask_cache_lookups_total";
  constexpr char kRefreshes[] = "longshore_stage_refreshes_total";
  std::vector<std::vector<std::string>> rows;
  for (const std::string& stage : metrics.ValuesOf(kLookups, "stage")) {
    const double lookups = metrics.Sum(kLookups, {{"stage", stage}});
    const double cached = metrics.Sum(kLookups, {{"stage", stage}, {"result", "cached"}});
    if (lookups + metrics.Sum(kRefreshes, {{"stage", stage}}) == 0) {
      continue;
    }
    const auto refreshes = [&](const char* reason) {
      return Count(metrics.Sum(kRefreshes, {{"stage", stage}, {"reason", reason}}));
    };
    const Distribution ages = metrics.Merge("longshore_mask_age_tokens", {{"stage", stage}});
    rows.push_back({Escape(stage), Bar({{lookups > 0 ? cached / lookups : 0, "sea"}}),
                    Percent(cached, lookups), Count(lookups), refreshes("clock"),
                    refreshes("propagated"), refreshes("first"), refreshes("invalidated"),
                    refreshes("prefill"), absl::StrFormat("%.1f", ages.Mean())});
  }
  const std::string content = rows.empty()
                                  ? R"(<p class="note">No stage has run yet.</p>)"
                                  : Table({"Stage", "", "hits", "lookups", "clock", "propagated",
                                           "first", "invalidated", "prefill", "mean age"},
                                          rows);
  return Card("", "Mask cache",
              "decode lookups that a cached selection served; refreshes by reason", content);
}

constexpr char kKept[] = "longshore_recall_mass_kept";
constexpr char kWorst[] = "longshore_recall_worst_head_mass_kept";

// Labels such as "0", "4-7" and "16+", by their first number.
std::vector<std::string> RecallAges(const MetricReader& metrics) {
  std::vector<std::string> ages = metrics.ValuesOf(kKept, "age");
  const auto first = [](const std::string& age) {
    int number = 0;
    return absl::SimpleAtoi(age.substr(0, age.find_first_of("-+")), &number) ? number : -1;
  };
  std::sort(ages.begin(), ages.end(), [&first](const std::string& left, const std::string& right) {
    return first(left) < first(right);
  });
  return ages;
}

std::string RecallCell(const Distribution& kept) {
  constexpr double kPoor = 0.5;
  if (kept.count == 0) {
    return "–";
  }
  const std::string percent = Percent(kept.Mean(), 1);
  return kept.Mean() < kPoor ? absl::StrCat(R"(<span class="bad-text">)", percent, "</span>")
                             : percent;
}

// Of the recall monitor, where there is one: a row for each group of layers and phase.
std::string RecallCard(const MetricReader& metrics) {
  const std::vector<std::string> ages = RecallAges(metrics);
  std::vector<std::string> head = {"", "", "mean", "worst head", "samples"};
  for (const std::string& age : ages) {
    head.push_back(absl::StrCat("age ", Escape(age)));
  }
  std::vector<std::vector<std::string>> rows;
  for (const std::string& phase : metrics.ValuesOf(kKept, "phase")) {
    for (const std::string& layers : metrics.ValuesOf(kKept, "layers")) {
      MetricReader::Labels labels = {{"phase", phase}, {"layers", layers}};
      const Distribution kept = metrics.Merge(kKept, labels);
      if (kept.count == 0) {
        continue;
      }
      std::vector<std::string> row = {absl::StrCat(Escape(phase), ", ", Escape(layers), " layers"),
                                      Bar({{kept.Mean(), "sea"}}), RecallCell(kept),
                                      Percent(metrics.Merge(kWorst, labels).Mean(), 1),
                                      Count(static_cast<double>(kept.count))};
      for (const std::string& age : ages) {
        labels["age"] = age;
        row.push_back(RecallCell(metrics.Merge(kKept, labels)));
      }
      rows.push_back(std::move(row));
    }
  }
  if (rows.empty()) {
    return "";
  }
  return Card("", "Recall",
              "share of true attention mass that the attended tokens hold, sampled; by positions "
              "since the refresh",
              Table(head, rows));
}

std::string LatencyCard(const MetricReader& metrics, const MetricReader& past, double past_age) {
  constexpr char kName[] = "longshore_request_seconds";
  std::vector<std::vector<std::string>> rows;
  for (const std::string& method : metrics.ValuesOf("longshore_requests_total", "method")) {
    const double calls = metrics.Sum("longshore_requests_total", {{"method", method}});
    const double good =
        metrics.Sum("longshore_requests_total", {{"method", method}, {"code", "OK"}});
    const Distribution seconds =
        metrics.Merge(kName, {{"method", method}}).Since(past.Merge(kName, {{"method", method}}));
    const bool timed = seconds.count > 0;
    rows.push_back(
        {Escape(method), Count(calls),
         calls > good
             ? absl::StrCat(R"(<span class=")", R"(bad-text">)", Count(calls - good), "</span>")
             : "0",
         timed ? Seconds(seconds.Quantile(0.5)) : "–",
         timed ? Seconds(seconds.Quantile(0.99)) : "–", timed ? html::Columns(seconds) : ""});
  }
  const std::string content =
      rows.empty() ? R"(<p class="note">Nobody has called yet.</p>)"
                   : Table({"Method", "calls", "errors", "p50", "p99", "50 µs to 100 s"}, rows);
  return Card("half", "Latency",
              absl::StrCat("arrival to answer, last ", Duration(past_age),
                           "; calls, errors: since the start"),
              content);
}

std::string RejectionsCard(const MetricReader& metrics) {
  std::vector<std::pair<double, std::string>> reasons;
  for (const std::string& reason : metrics.ValuesOf("longshore_rejected_total", "reason")) {
    const double count = metrics.Sum("longshore_rejected_total", {{"reason", reason}});
    if (count > 0) {
      reasons.emplace_back(count, reason);
    }
  }
  if (reasons.empty()) {
    return Card("", "Errors by reason", "", R"(<p class="note">None since the start.</p>)");
  }
  std::sort(reasons.rbegin(), reasons.rend());
  std::vector<std::vector<std::string>> rows;
  rows.reserve(reasons.size());
  for (const auto& [count, reason] : reasons) {
    rows.push_back(
        {Escape(reason), Bar({{count / reasons.front().first, "warn-fill"}}), Count(count)});
  }
  return Card("wide", "Errors by reason", "since the start; proto/README.md says what each means",
              Table({"Reason", "", "calls"}, rows));
}

std::string SessionsCard(const StatusBoard::View& board) {
  std::vector<std::vector<std::string>> rows;
  for (const SessionLine& line : board.sessions) {
    if (rows.size() == kMaxSessionsShown) {
      break;
    }
    const double share = static_cast<double>(line.tokens) /
                         static_cast<double>(std::max<int64_t>(line.max_tokens, 1));
    const auto seconds = [](const std::optional<double>& value, double more) {
      return value.has_value() ? Duration(*value + more) : "–";
    };
    const std::string name =
        line.name.empty() ? R"(<span class="quiet">unnamed</span>)"
                          : absl::StrCat(R"(<bdi class="name">)", Escape(line.name), "</bdi>");
    rows.push_back(
        {name, absl::StrCat(R"(<span class="quiet">)", line.id, "</span>"), Bar({{share, "sea"}}),
         absl::StrCat(Count(static_cast<double>(line.tokens)), R"( <span class="quiet">/ )",
                      Count(static_cast<double>(line.max_tokens)), "</span>"),
         Bytes(static_cast<double>(line.bytes_used)),
         Bytes(static_cast<double>(line.bytes_reserved)),
         seconds(line.idle_seconds, board.sessions_age_seconds), seconds(line.lease_seconds, 0)});
  }
  const size_t hidden = board.sessions.size() - rows.size();
  const std::string content =
      rows.empty()
          ? R"(<p class="note">No session is open.</p>)"
          : Table({"Session", "id", "", "tokens", "used", "reserved", "idle", "lease"}, rows);
  return Card("", "Sessions",
              hidden > 0 ? absl::StrCat("the first ", rows.size(), "; ", hidden, " more")
                         : absl::StrCat("seen ", Seconds(board.sessions_age_seconds), " ago"),
              content);
}

}  // namespace

std::string StatusPage(const StatusReport& report) {
  const MetricReader metrics(report.metrics);
  const MetricReader past(report.past.families);
  return absl::StrCat(
      "<!DOCTYPE html>\n", R"(<html lang="en" xmlns="http://www.w3.org/1999/xhtml"><head>)",
      R"(<meta charset="utf-8"/><meta http-equiv="refresh" content="5"/>)",
      R"(<meta name="viewport" content="width=device-width, initial-scale=1"/>)",
      "<title>longshore: ", NameOf(report.board.readiness), R"(</title><link rel="icon" href=")",
      kIcon, "\"/><style>", kStatusStyle, "</style></head>\n<body>\n", Header(report, metrics),
      "<main>\n", Tiles(metrics, past), MemoryCard(metrics),
      LatencyCard(metrics, past, report.past.age_seconds), SessionsCard(report.board),
      MaskCacheCard(metrics), RecallCard(metrics), RejectionsCard(metrics), "</main>\n",
      R"(<footer><span>Renewed every 5 s.</span><span><a href="/metrics">/metrics</a> · )",
      R"(<a href="/readyz">/readyz</a> · <a href="/healthz">/healthz</a></span></footer>)",
      "\n</body></html>\n");
}

}  // namespace longshore
