#include "service/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include "engine/core/error.h"
#include "engine/engine.h"

namespace longshore {
namespace {

// The limit in a file of a control group. Nothing for "max", and for files that are not there.
void ApplyLimit(const std::string& root, const std::string& path, HostMemory* memory) {
  std::ifstream file(root + path);
  std::string text;
  int64_t bytes = 0;
  if (file >> text && absl::SimpleAtoi(text, &bytes) && bytes < memory->bytes) {
    *memory = {.bytes = bytes, .source = path};
  }
}

// A group's limit binds those below it, too. A container may see its group's path and not the
// group, or its group as the root: whatever is there counts.
void ApplyGroup(const std::string& root,
                const std::string& hierarchy,
                std::string group,
                const std::string& file,
                HostMemory* memory) {
  while (!group.empty() && group != "/") {
    ApplyLimit(root, absl::StrCat(hierarchy, group, "/", file), memory);
    group.resize(group.rfind('/'));
  }
  ApplyLimit(root, absl::StrCat(hierarchy, "/", file), memory);
}

}  // namespace

HostMemory UsableHostMemory(const std::string& root) {
  HostMemory memory{.bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE),
                    .source = "physical memory"};
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // id:controllers:/group; version 2 has the id 0 and no controllers.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) {
      continue;
    }
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (parts[0] == "0" && parts[1].empty()) {
      ApplyGroup(root, "/sys/fs/cgroup", parts[2], "memory.max", &memory);
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      ApplyGroup(root, "/sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes", &memory);
    }
  }
  return memory;
}

absl::Status CheckPoolFits(int64_t pool_bytes, const HostMemory& memory) {
  const int64_t needed = pool_bytes + Engine::SummaryBytes(pool_bytes);
  if (needed <= memory.bytes) {
    return absl::OkStatus();
  }
  return InvalidField("pool_bytes", pool_bytes, " needs ", needed,
                      " bytes with its key summaries, the limit is ", memory.bytes, " (",
                      memory.source,
                      "): choose a smaller --pool-bytes, or set --allow-overcommit-memory");
}

}  // namespace longshore
