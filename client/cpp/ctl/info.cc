// longshorectl info: what a daemon is and takes.

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "client/cpp/ctl/commands.h"
#include "client/cpp/ctl/json.h"
#include "client/cpp/ctl/options.h"
#include "client/cpp/ctl/text.h"

namespace longshore::ctl {
namespace {

struct InfoOptions {
  DaemonOptions daemon;
  bool json = false;
};

Json LimitsJson(const client::Limits& limits) {
  return {{"max_message_bytes", limits.max_message_bytes},
          {"max_rows_per_prefill", limits.max_rows_per_prefill},
          {"max_rows_per_decode_item", limits.max_rows_per_decode_item},
          {"max_items_per_call", limits.max_items_per_call},
          {"max_sessions", limits.max_sessions},
          {"max_tokens_per_session", limits.max_tokens_per_session},
          {"max_queued_calls", limits.max_queued_calls},
          {"pool_bytes", limits.pool_bytes},
          {"max_steps_in_flight", limits.max_steps_in_flight},
          {"max_queued_bytes", limits.max_queued_bytes},
          {"max_table_bytes", limits.max_table_bytes},
          {"max_score_bytes", limits.max_score_bytes},
          {"default_lease_seconds", absl::ToDoubleSeconds(limits.default_lease)},
          {"max_lease_seconds", absl::ToDoubleSeconds(limits.max_lease)}};
}

Json InfoJson(const std::string& target, const client::ServerInfo& info) {
  Json backends = Json::array();
  for (const client::BackendInfo& backend : info.backends) {
    backends.push_back({{"name", backend.name},
                        {"device", backend.device},
                        {"threads", backend.threads},
                        {"device_bytes", backend.device_bytes}});
  }
  return {{"target", target},
          {"version", info.version},
          {"instance_id", info.instance_id},
          {"uptime_seconds", absl::ToDoubleSeconds(info.uptime)},
          {"backends", backends},
          {"limits", LimitsJson(info.limits)},
          {"presets", info.presets},
          {"extensions", info.extensions}};
}

std::string InfoText(const std::string& target, const client::ServerInfo& info) {
  std::string text =
      absl::StrCat("longshored ", info.version, " at ", target, "\n  instance ", info.instance_id,
                   ", up ", absl::FormatDuration(absl::Trunc(info.uptime, absl::Seconds(1))));
  for (const client::BackendInfo& backend : info.backends) {
    absl::StrAppend(&text, "\n  backend ", backend.name, ": ", backend.device);
    if (backend.device_bytes > 0) {
      absl::StrAppend(&text, ", ", ByteText(static_cast<double>(backend.device_bytes)));
    }
  }
  absl::StrAppend(&text, "\n  presets ", absl::StrJoin(info.presets, ", "), "\n");
  if (!info.extensions.empty()) {
    absl::StrAppend(&text, "  extensions ", absl::StrJoin(info.extensions, ", "), "\n");
  }
  std::vector<std::vector<std::string>> rows = {{"limit", "value"}};
  const Json limits = LimitsJson(info.limits);
  for (const auto& [name, value] : limits.items()) {
    rows.push_back({name, value.is_number_integer() ? WithCommas(value.get<int64_t>())
                                                    : absl::StrCat(value.get<double>())});
  }
  return text + Table(rows, {"limit"});
}

absl::StatusOr<int> Info(const InfoOptions& options) {
  const absl::StatusOr<client::Client> daemon = options.daemon.Connect();
  if (!daemon.ok()) {
    return daemon.status();
  }
  const absl::StatusOr<client::ServerInfo> info = daemon->Info(options.daemon.call());
  if (!info.ok()) {
    return info.status();
  }
  if (options.json) {
    PrintJson(InfoJson(daemon->target(), *info));
  } else {
    Print(InfoText(daemon->target(), *info));
  }
  return kExitOk;
}

}  // namespace

void AddInfo(CommandLine& root) {
  const auto options = std::make_shared<InfoOptions>();
  CommandLine command = root.Command("info", "version, backends, limits and presets of a daemon");
  options->daemon.AddTo(command);
  command.AddFlag("json", &options->json, kJsonHelp);
  command.Run([options] { return Info(*options); });
}

}  // namespace longshore::ctl
