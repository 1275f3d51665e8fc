#pragma once

#include "service/config.h"

namespace longshore {

/// Reads the command line: the file of --config, and the other flags on top of it. Ends the process
/// for --help, --version and flags that do not exist, as Abseil does. InvalidArgument names the
/// field.
absl::StatusOr<Config> ConfigFromCommandLine(int argc, char** argv);

/// What --version prints.
std::string VersionText();

}  // namespace longshore
