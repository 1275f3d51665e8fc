#include "service/flags.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <absl/flags/flag.h>
#include <absl/flags/parse.h>
#include <absl/flags/usage.h>
#include <absl/flags/usage_config.h>
#include <absl/strings/match.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/types/optional.h>

#include "service/host_memory.h"
#include "service/version.h"

namespace longshore {
namespace {

/// A flag that knows whether it was given: only then does it replace what the config file says.
/// absl::optional would take an empty text for absent, and `--metrics-listen=` means "none".
struct GivenText {
  bool given = false;
  std::string text;
};

bool AbslParseFlag(absl::string_view text, GivenText* flag, std::string* /*error*/) {
  *flag = {.given = true, .text = std::string{text}};
  return true;
}

std::string AbslUnparseFlag(const GivenText& flag) { return flag.text; }

}  // namespace
}  // namespace longshore

using longshore::GivenText;

ABSL_FLAG(std::string, config, "", "a file in protobuf text format; schema: service/config.proto");
ABSL_FLAG(GivenText,
          listen,
          GivenText{},
          "unix:/path or host:port; several: separated by commas, or the flag again. Default: "
          "unix:$XDG_RUNTIME_DIR/longshored.sock, or unix:/run/longshored.sock for root");
ABSL_FLAG(bool,
          allow_remote,
          false,
          "let --listen and --metrics_listen name a host that is not loopback; there is no "
          "authentication");
ABSL_FLAG(GivenText, backend, GivenText{}, "what computes: cpu, or cuda where it is built");
ABSL_FLAG(absl::optional<int32_t>,
          threads,
          absl::nullopt,
          "CPU threads that compute; 0: one for each core, which is the default");
ABSL_FLAG(GivenText, pool_bytes, GivenText{}, "host memory for keys and values, for example 4GiB");
ABSL_FLAG(
    bool,
    allow_overcommit_memory,
    false,
    "let --pool_bytes be more than the memory that there is; the kernel ends the process when "
    "the pool fills past it");
ABSL_FLAG(GivenText,
          metrics_listen,
          GivenText{},
          "host:port of the Prometheus endpoint /metrics; empty turns it off. Default: "
          "127.0.0.1:9464");
ABSL_FLAG(GivenText,
          log_level,
          GivenText{},
          "trace, debug, info, warning, error, critical or off. Default: info");

namespace longshore {
namespace {

// Abseil spells flags with underscores and keeps the last of several --listen; people write dashes
// and expect all of them to count.
std::vector<std::string> NormalizeArguments(int argc, char** argv) {
  std::vector<std::string> arguments;
  std::vector<std::string> listen;
  for (int index = 0; index < argc; ++index) {
    std::string argument = argv[index];
    if (index > 0 && absl::StartsWith(argument, "--")) {
      const size_t end = std::min(argument.find('='), argument.size());
      std::replace(argument.begin() + 2, argument.begin() + static_cast<std::ptrdiff_t>(end), '-',
                   '_');
    }
    if (argument == "--listen" && index + 1 < argc) {
      listen.emplace_back(argv[++index]);
    } else if (absl::StartsWith(argument, "--listen=")) {
      listen.push_back(argument.substr(argument.find('=') + 1));
    } else {
      arguments.push_back(std::move(argument));
    }
  }
  if (!listen.empty()) {
    arguments.push_back(absl::StrCat("--listen=", absl::StrJoin(listen, ",")));
  }
  return arguments;
}

void SetUp() {
  absl::SetProgramUsageMessage(
      "serves attention over a long context to model runners.\n\n"
      "longshored [--config FILE] [--listen ADDRESS] [--pool-bytes 4GiB] [--threads N]");
  absl::FlagsUsageConfig usage;
  usage.version_string = [] { return VersionText() + "\n"; };
  usage.contains_help_flags = [](absl::string_view file) {
    return absl::EndsWith(file, "service/flags.cc");
  };
  usage.contains_helpshort_flags = usage.contains_help_flags;
  usage.normalize_filename = [](absl::string_view file) {
    const size_t start = file.rfind("service/");
    return std::string{file.substr(start == absl::string_view::npos ? 0 : start)};
  };
  absl::SetFlagsUsageConfig(usage);
}

void ApplyFlags(config::DaemonConfig* config) {
  if (const GivenText listen = absl::GetFlag(FLAGS_listen); listen.given) {
    config->clear_listen();
    for (const absl::string_view address :
         absl::StrSplit(listen.text, ',', absl::SkipWhitespace())) {
      config->add_listen(std::string{address});
    }
  }
  if (absl::GetFlag(FLAGS_allow_remote)) {
    config->set_allow_remote(true);
  }
  if (const absl::optional<int32_t> threads = absl::GetFlag(FLAGS_threads); threads.has_value()) {
    config->set_threads(*threads);
  }
  if (const GivenText backend = absl::GetFlag(FLAGS_backend); backend.given) {
    config->set_backend(backend.text);
  }
  if (const GivenText pool_bytes = absl::GetFlag(FLAGS_pool_bytes); pool_bytes.given) {
    config->set_pool_bytes(pool_bytes.text);
  }
  if (absl::GetFlag(FLAGS_allow_overcommit_memory)) {
    config->set_allow_overcommit_memory(true);
  }
  if (const GivenText log_level = absl::GetFlag(FLAGS_log_level); log_level.given) {
    config->set_log_level(log_level.text);
  }
  if (const GivenText metrics = absl::GetFlag(FLAGS_metrics_listen); metrics.given) {
    config->set_metrics_listen(metrics.text);
  }
}

}  // namespace

std::string VersionText() {
  return absl::StrCat("longshored ", kVersion, " (", kBuildType, ", ", __VERSION__, ")");
}

absl::StatusOr<Config> ConfigFromCommandLine(int argc, char** argv) {
  SetUp();
  std::vector<std::string> arguments = NormalizeArguments(argc, argv);
  std::vector<char*> pointers;
  pointers.reserve(arguments.size());
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  const std::vector<char*> rest =
      absl::ParseCommandLine(static_cast<int>(pointers.size()), pointers.data());
  if (rest.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument \"", rest[1], "\": every setting is a flag, see --help"));
  }
  config::DaemonConfig config;
  if (const std::string path = absl::GetFlag(FLAGS_config); !path.empty()) {
    ASSIGN_OR_RETURN(config, ReadConfigFile(path));
  }
  ApplyFlags(&config);
  ASSIGN_OR_RETURN(Config resolved, ResolveConfig(config));
  if (!resolved.allow_overcommit_memory) {
    RETURN_IF_ERROR(CheckPoolFits(resolved.engine.pool_bytes, UsableHostMemory()));
  }
  return resolved;
}

}  // namespace longshore
