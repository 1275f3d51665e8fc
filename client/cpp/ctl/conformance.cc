// longshorectl conformance: the wire-level suite against any target.

#include "client/cpp/ctl/conformance.h"

#include <utility>

#include <absl/strings/match.h>

#include "client/cpp/ctl/commands.h"
#include "client/cpp/ctl/json.h"
#include "client/cpp/ctl/options.h"
#include "client/cpp/ctl/text.h"

namespace longshore::ctl {
namespace {

struct ConformanceOptions {
  DaemonOptions daemon;
  std::string filter;
  bool list = false;
  bool json = false;
};

std::vector<ConformanceCase> AllCases(const std::string& filter) {
  std::vector<ConformanceCase> cases;
  for (const auto part :
       {SessionCases(), StepCases(), RefusalCases(), LimitCases(), StreamCases(), ValueCases()}) {
    for (const ConformanceCase& one : part) {
      if (absl::StrContains(one.name, filter)) {
        cases.push_back(one);
      }
    }
  }
  return cases;
}

struct Outcome {
  const char* result;  // "pass", "fail" or "skip"
  std::string why;
};

Outcome RunCase(const ConformanceCase& one, Wire& wire) {
  const absl::Status status = one.run(wire);
  wire.CloseAll();
  if (status.ok()) {
    return {"pass", ""};
  }
  // A failure that comes straight from a call tells its code; ours are sentences.
  const bool ours = status.code() == absl::StatusCode::kInternal || IsSkip(status);
  return {IsSkip(status) ? "skip" : "fail",
          ours ? std::string{status.message()}
               : status.ToString(absl::StatusToStringMode::kWithNoExtraData)};
}

// A line of the Test Anything Protocol.
std::string TapLine(size_t number, const ConformanceCase& one, const Outcome& outcome) {
  const bool failed = outcome.result == std::string("fail");
  const bool skipped = outcome.result == std::string("skip");
  return absl::StrCat(failed ? "not ok " : "ok ", number, " - ", one.name,
                      skipped ? " # SKIP " + outcome.why : "", "\n",
                      failed ? "  # " + outcome.why + "\n" : "");
}

absl::StatusOr<int> Conformance(const ConformanceOptions& options) {
  const std::vector<ConformanceCase> cases = AllCases(options.filter);
  if (options.list || cases.empty()) {
    for (const ConformanceCase& one : cases) {
      Print(absl::StrCat(one.name, "\n"));
    }
    return cases.empty() ? absl::StatusOr<int>(absl::NotFoundError(
                               absl::StrCat("no case's name contains \"", options.filter, "\"")))
                         : kExitOk;
  }
  const absl::StatusOr<client::Client> daemon = options.daemon.Connect();
  if (!daemon.ok()) {
    return daemon.status();
  }
  absl::StatusOr<client::ServerInfo> info = daemon->Info(options.daemon.call());
  if (!info.ok()) {
    return info.status();
  }
  Wire wire(daemon->target(), *std::move(info), options.daemon.call());
  Json results = Json::array();
  size_t failures = 0;
  if (!options.json) {
    Print(absl::StrCat("1..", cases.size(), "\n"));
  }
  for (const ConformanceCase& one : cases) {
    const Outcome outcome = RunCase(one, wire);
    failures += outcome.result == std::string("fail") ? 1 : 0;
    results.push_back({{"name", one.name}, {"result", outcome.result}, {"why", outcome.why}});
    if (!options.json) {
      Print(TapLine(results.size(), one, outcome));
      std::fflush(stdout);
    }
  }
  if (options.json) {
    PrintJson({{"target", daemon->target()},
               {"version", wire.info().version},
               {"failed", failures},
               {"cases", results}});
  }
  return failures == 0 ? kExitOk : kExitCheckFailed;
}

}  // namespace

void AddConformance(CommandLine& root) {
  const auto options = std::make_shared<ConformanceOptions>();
  CommandLine command = root.Command(
      "conformance", "the wire contract, case by case, against any target",
      "Prints TAP: a line a case, and why where it fails; exit code 1 if one does. It opens small\n"
      "sessions of its own and closes them; nothing else of the daemon's is touched. A lease that\n"
      "ends takes a second or two.");
  options->daemon.AddTo(command);
  command.Add("filter", &options->filter, "only cases whose name contains this");
  command.AddFlag("list", &options->list, "print the names of the cases, and run none");
  command.AddFlag("json", &options->json, kJsonHelp);
  command.Run([options] { return Conformance(*options); });
}

}  // namespace longshore::ctl
