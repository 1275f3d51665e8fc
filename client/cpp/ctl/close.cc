// longshorectl close ID.

#include "client/cpp/ctl/commands.h"
#include "client/cpp/ctl/options.h"

namespace longshore::ctl {
namespace {

struct CloseOptions {
  DaemonOptions daemon;
  uint64_t session_id = 0;
};

absl::StatusOr<int> Close(const CloseOptions& options) {
  const absl::StatusOr<client::Client> daemon = options.daemon.Connect();
  if (!daemon.ok()) {
    return daemon.status();
  }
  if (absl::Status status = daemon->Close(options.session_id, options.daemon.call());
      !status.ok()) {
    return status;
  }
  return kExitOk;
}

}  // namespace

void AddClose(CommandLine& root) {
  const auto options = std::make_shared<CloseOptions>();
  CommandLine command =
      root.Command("close", "close a session, whoever opened it; its tokens are forgotten");
  options->daemon.AddTo(command);
  command.AddArgument("ID", &options->session_id, "as `longshorectl sessions` lists it");
  command.Run([options] { return Close(*options); });
}

}  // namespace longshore::ctl
