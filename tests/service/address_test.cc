#include "service/address.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace longshore {
namespace {

Address InTempDir(const std::string& name) {
  return *ParseAddress(absl::StrCat("unix:/tmp/longshore-", getpid(), "-", name));
}

bool Exists(const Address& address) {
  struct stat info {};
  return lstat(address.unix_path.c_str(), &info) == 0;
}

// A bound socket; it answers while it listens, and is stale once closed.
int Bind(const Address& address) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, address.unix_path.data(), address.unix_path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  EXPECT_EQ(listen(fd, 1), 0);
  return fd;
}

TEST(Address, AStaleSocketIsRemoved) {
  const Address address = InTempDir("stale.sock");
  close(Bind(address));
  EXPECT_TRUE(Exists(address));
  EXPECT_TRUE(RemoveStaleSocket(address).ok());
  EXPECT_FALSE(Exists(address));
}

TEST(Address, ALiveSocketIsAnError) {
  const Address address = InTempDir("live.sock");
  const int fd = Bind(address);
  const absl::Status status = RemoveStaleSocket(address);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(Exists(address));
  close(fd);
  unlink(address.unix_path.c_str());
}

TEST(Address, AFileIsNotTouched) {
  const Address address = InTempDir("file");
  std::ofstream(address.unix_path) << "precious";
  EXPECT_FALSE(RemoveStaleSocket(address).ok());
  EXPECT_TRUE(Exists(address));
  unlink(address.unix_path.c_str());
}

TEST(Address, NothingThereIsFine) { EXPECT_TRUE(RemoveStaleSocket(InTempDir("nothing")).ok()); }

TEST(Address, TheDefaultIsInTheRuntimeDirectory) {
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);  // NOLINT(concurrency-mt-unsafe)
  EXPECT_EQ(DefaultAddress().ToString(), "unix:/run/user/7/longshored.sock");
  unsetenv("XDG_RUNTIME_DIR");  // NOLINT(concurrency-mt-unsafe)
  const std::string expected = getuid() == 0
                                   ? "unix:/run/longshored.sock"
                                   : absl::StrCat("unix:/tmp/longshored-", getuid(), ".sock");
  EXPECT_EQ(DefaultAddress().ToString(), expected);
}

}  // namespace
}  // namespace longshore
