#pragma once

#include <cstdint>
#include <string>

#include "engine/core/status.h"

namespace longshore {

/// The memory that this process may have, and what says so.
struct HostMemory {
  int64_t bytes = 0;
  std::string source;  ///< for people: "physical memory", or the file of a control group's limit
};

/// The smallest of the machine's memory and the limits of this process's control groups, of version
/// 1 and 2, theirs and their parents'. `root` is where /proc and /sys are; a test has its own.
HostMemory UsableHostMemory(const std::string& root = "");

/// Whether a pool of `pool_bytes` and the key summaries beside it fit into `memory`.
/// InvalidArgument names both numbers, what sets the limit, and what to do.
absl::Status CheckPoolFits(int64_t pool_bytes, const HostMemory& memory);

}  // namespace longshore
