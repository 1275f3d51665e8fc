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

#include "tests/support/temp_directory.h"

namespace longshore {
namespace {

Address InTempDir(const std::string& name) {
  return *ParseAddress("unix:" + TempDirectory::Get() / name);
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

absl::Status Take(const Address& address) { return SocketLock::Take(address).status(); }

TEST(Address, AStaleSocketIsRemoved) {
  const Address address = InTempDir("stale.sock");
  close(Bind(address));
  EXPECT_TRUE(Exists(address));
  EXPECT_TRUE(Take(address).ok());
  EXPECT_FALSE(Exists(address));
}

TEST(Address, ALiveSocketIsAnError) {
  const Address address = InTempDir("live.sock");
  const int fd = Bind(address);
  const absl::Status status = Take(address);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(Exists(address));
  close(fd);
  unlink(address.unix_path.c_str());
}

TEST(Address, AFileIsNotTouched) {
  const Address address = InTempDir("file");
  std::ofstream(address.unix_path) << "precious";
  EXPECT_FALSE(Take(address).ok());
  EXPECT_TRUE(Exists(address));
  unlink(address.unix_path.c_str());
}

TEST(Address, NothingThereIsFine) { EXPECT_TRUE(Take(InTempDir("nothing")).ok()); }

TEST(Address, ADirectoryThatIsNotThereIsNamed) {
  const absl::Status status = Take(*ParseAddress("unix:/no/such/place/a.sock"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("unix:/no/such/place/a.sock"), absl::string_view::npos);
}

// Between a daemon's look at a stale socket and its bind there is time for a second one to look.
TEST(Address, APathHasOneHolder) {
  const Address address = InTempDir("held.sock");
  close(Bind(address));
  {
    const absl::StatusOr<SocketLock> first = SocketLock::Take(address);
    ASSERT_TRUE(first.ok()) << first.status();
    const int fd = Bind(address);  // whose it is now
    close(fd);
    const absl::Status second = Take(address);
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition) << second;
    EXPECT_NE(second.message().find("held.sock.lock"), absl::string_view::npos) << second;
    EXPECT_TRUE(Exists(address)) << "the second one removed the first one's socket";
  }
  EXPECT_TRUE(Take(address).ok());
}

TEST(Address, ALinkIsNoLock) {
  const Address address = InTempDir("link.sock");
  const std::string target = address.unix_path + ".precious";
  ASSERT_EQ(symlink(target.c_str(), (address.unix_path + ".lock").c_str()), 0);
  EXPECT_FALSE(Take(address).ok());
  EXPECT_NE(access(target.c_str(), F_OK), 0) << "made through the link";
  unlink((address.unix_path + ".lock").c_str());
}

TEST(Address, APrivateDirectoryIsTheUsersAlone) {
  const std::string directory = TempDirectory::Get() / "private";
  EXPECT_TRUE(MakePrivateDirectory(directory).ok());
  struct stat info {};
  ASSERT_EQ(lstat(directory.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode, S_IFDIR | 0700U);
  EXPECT_TRUE(MakePrivateDirectory(directory).ok()) << "again";
  chmod(directory.c_str(), 0770);
  const absl::Status status = MakePrivateDirectory(directory);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("mode 0770"), absl::string_view::npos) << status;
  rmdir(directory.c_str());
  ASSERT_EQ(symlink("/tmp", directory.c_str()), 0);
  EXPECT_FALSE(MakePrivateDirectory(directory).ok());
  unlink(directory.c_str());
  if (getuid() == 0) {  // only root can make somebody else's
    ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
    ASSERT_EQ(chown(directory.c_str(), 12345, 12345), 0);
    EXPECT_NE(MakePrivateDirectory(directory).message().find("user 12345"),
              absl::string_view::npos);
    rmdir(directory.c_str());
  }
}

TEST(Address, TheDefaultIsInTheRuntimeDirectory) {
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);  // NOLINT(concurrency-mt-unsafe)
  EXPECT_EQ(DefaultAddress().ToString(), "unix:/run/user/7/longshored.sock");
  unsetenv("XDG_RUNTIME_DIR");  // NOLINT(concurrency-mt-unsafe)
  const std::string expected =
      getuid() == 0 ? "unix:/run/longshored.sock"
                    : absl::StrCat("unix:/tmp/longshored-", getuid(), "/longshored.sock");
  EXPECT_EQ(DefaultAddress().ToString(), expected);
}

}  // namespace
}  // namespace longshore
