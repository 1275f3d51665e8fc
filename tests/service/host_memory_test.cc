#include "service/host_memory.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/temp_directory.h"

namespace longshore {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// A machine's /proc and /sys, as far as anybody looks at them here.
class FakeRoot {
 public:
  explicit FakeRoot(const std::string& groups) : path_(TempDirectory::Get() / "root") {
    std::filesystem::remove_all(path_);
    Write("/proc/self/cgroup", groups);
  }
  void Write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path_ + file).parent_path());
    std::ofstream(path_ + file) << text;
  }
  HostMemory Read() const { return UsableHostMemory(path_); }

 private:
  std::string path_;
};

TEST(HostMemory, IsThePhysicalOneWithoutLimits) {
  const HostMemory bare = UsableHostMemory("/no/such/root");
  EXPECT_EQ(bare.source, "physical memory");
  EXPECT_GT(bare.bytes, 64 * kMiB);
  FakeRoot root("0::/user.slice\n");
  root.Write("/sys/fs/cgroup/user.slice/memory.max", "max\n");
  EXPECT_EQ(root.Read().source, "physical memory");
  EXPECT_EQ(root.Read().bytes, bare.bytes);
  EXPECT_LE(UsableHostMemory().bytes, bare.bytes);
}

TEST(HostMemory, AControlGroupOfVersion2LimitsIt) {
  FakeRoot root("0::/system.slice/longshored.service\n");
  root.Write("/sys/fs/cgroup/system.slice/longshored.service/memory.max", "67108864\n");
  EXPECT_EQ(root.Read().bytes, 64 * kMiB);
  EXPECT_EQ(root.Read().source, "/sys/fs/cgroup/system.slice/longshored.service/memory.max");
  root.Write("/sys/fs/cgroup/system.slice/memory.max", "33554432\n");
  EXPECT_EQ(root.Read().bytes, 32 * kMiB) << "the parent's limit binds, too";
}

TEST(HostMemory, AControlGroupOfVersion1LimitsIt) {
  FakeRoot root("5:cpu,cpuacct:/other\n4:memory:/box\n0::/\n");
  root.Write("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "50331648\n");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("/sys/fs/cgroup/memory/other/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(root.Read().bytes, 48 * kMiB);
}

// In a container the group's path may be the host's, and its files lie at the root.
TEST(HostMemory, AContainersLimitIsAtItsRoot) {
  FakeRoot root("4:memory:/docker/0123\n");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "16777216\n");
  EXPECT_EQ(root.Read().bytes, 16 * kMiB);
  FakeRoot unified("0::/\n");
  unified.Write("/sys/fs/cgroup/memory.max", "8388608\n");
  EXPECT_EQ(unified.Read().bytes, 8 * kMiB);
}

TEST(HostMemory, APoolFitsWithItsSummaries) {
  const HostMemory memory{.bytes = 33 * kMiB, .source = "a test"};
  EXPECT_TRUE(CheckPoolFits(32 * kMiB, memory).ok());
  const absl::Status status = CheckPoolFits(33 * kMiB, memory);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "pool_bytes 34603008 needs 35684352 bytes with its key summaries, the limit is "
            "34603008 (a test): choose a smaller --pool-bytes, or set --allow-overcommit-memory");
  EXPECT_FALSE(CheckPoolFits(int64_t{8} << 40, memory).ok());
}

}  // namespace
}  // namespace longshore
