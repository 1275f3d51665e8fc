#include "tests/support/golden_file.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

namespace longshore {

std::filesystem::path SourceRoot() {
  std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  while (folder.has_relative_path() && !std::filesystem::exists(folder / "proto/longshore/v1")) {
    folder = folder.parent_path();
  }
  return folder;
}

void ExpectGolden(const std::filesystem::path& path, const std::string& rendered) {
  const std::filesystem::path golden = SourceRoot() / path;
  if (std::getenv("LONGSHORE_UPDATE_GOLDEN") != nullptr) {  // NOLINT(concurrency-mt-unsafe)
    std::ofstream(golden) << rendered;
    GTEST_SKIP() << "rewrote " << golden;
  }
  std::ostringstream committed;
  committed << std::ifstream(golden).rdbuf();
  EXPECT_EQ(rendered, committed.str())
      << path << " is not what the code says. A change on purpose? LONGSHORE_UPDATE_GOLDEN=1 "
      << "rewrites it";
}

}  // namespace longshore
