// longshorectl sessions: who is there.

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "client/cpp/ctl/commands.h"
#include "client/cpp/ctl/json.h"
#include "client/cpp/ctl/options.h"
#include "client/cpp/ctl/text.h"

namespace longshore::ctl {
namespace {

struct SessionsOptions {
  DaemonOptions daemon;
  bool json = false;
};

int64_t LongestLayer(const client::SessionInfo& session) {
  return session.layer_tokens.empty()
             ? 0
             : *std::max_element(session.layer_tokens.begin(), session.layer_tokens.end());
}

Json SessionJson(const client::SessionInfo& session) {
  Json json = {{"id", absl::StrCat(session.id)},  // as text: a double would lose digits of it
               {"name", session.name},
               {"layer_tokens", session.layer_tokens},
               {"max_tokens", session.max_tokens},
               {"overcommit", session.overcommit},
               {"page_bytes_used", session.page_bytes_used},
               {"page_bytes_reserved", session.page_bytes_reserved},
               {"lease_seconds", absl::ToDoubleSeconds(session.lease)},
               {"idle_seconds", absl::ToDoubleSeconds(session.idle)},
               {"owner", session.owner}};
  if (!session.failure.ok()) {
    json["failure"] = std::string{session.failure.message()};
  }
  return json;
}

std::string SessionsText(const std::vector<client::SessionInfo>& sessions) {
  std::vector<std::vector<std::string>> rows = {
      {"id", "name", "tokens", "of", "used", "reserved", "idle", "lease", "owner", "state"}};
  int64_t bytes = 0;
  for (const client::SessionInfo& session : sessions) {
    bytes += session.page_bytes_used + session.page_bytes_reserved;
    rows.push_back(
        {absl::StrCat(session.id), Harmless(session.name), WithCommas(LongestLayer(session)),
         WithCommas(session.max_tokens), ByteText(static_cast<double>(session.page_bytes_used)),
         ByteText(static_cast<double>(session.page_bytes_reserved)),
         absl::FormatDuration(absl::Trunc(session.idle, absl::Seconds(1))),
         absl::FormatDuration(session.lease), Harmless(session.owner),
         session.failure.ok() ? "ok" : Harmless(std::string{session.failure.message()})});
  }
  return absl::StrCat(Table(rows, {"id", "name", "owner", "state"}), sessions.size(),
                      sessions.size() == 1 ? " session, " : " sessions, ",
                      ByteText(static_cast<double>(bytes)), " of pages\n");
}

absl::StatusOr<int> Sessions(const SessionsOptions& options) {
  const absl::StatusOr<client::Client> daemon = options.daemon.Connect();
  if (!daemon.ok()) {
    return daemon.status();
  }
  const absl::StatusOr<std::vector<client::SessionInfo>> sessions =
      daemon->List(options.daemon.call());
  if (!sessions.ok()) {
    return sessions.status();
  }
  if (!options.json) {
    Print(SessionsText(*sessions));
    return kExitOk;
  }
  Json all = Json::array();
  for (const client::SessionInfo& session : *sessions) {
    all.push_back(SessionJson(session));
  }
  PrintJson(all);
  return kExitOk;
}

}  // namespace

void AddSessions(CommandLine& root) {
  const auto options = std::make_shared<SessionsOptions>();
  CommandLine command =
      root.Command("sessions", "open sessions: tokens, memory, lease and owner of each",
                   "tokens: of the longest layer. used, reserved: bytes of pages in use, and of "
                   "those promised.");
  options->daemon.AddTo(command);
  command.AddFlag("json", &options->json, kJsonHelp);
  command.Run([options] { return Sessions(*options); });
}

}  // namespace longshore::ctl
