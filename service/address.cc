#include "service/address.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_format.h>
#include <absl/strings/strip.h>

namespace longshore {
namespace {

constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;
constexpr int32_t kMaxPort = 65535;

absl::Status Invalid(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("address \"", text, "\" ", why));
}

absl::StatusOr<Address> ParseUnix(absl::string_view text) {
  const absl::string_view path = absl::StripPrefix(text, "unix:");
  if (path.empty() || path.front() != '/') {
    return Invalid(text, "needs an absolute path, as in unix:/run/longshored.sock");
  }
  if (path.size() > kMaxPathBytes) {
    return Invalid(
        text, absl::StrCat("has a path of ", path.size(), " bytes, the limit is ", kMaxPathBytes));
  }
  return Address{.unix_path = std::string{path}, .host = {}, .port = 0};
}

// Only for the holder of the path's lock, so that nobody binds between the look and the removal.
absl::Status RemoveStaleSocket(const Address& address) {
  struct stat info {};
  if (lstat(address.unix_path.c_str(), &info) != 0) {
    return absl::OkStatus();  // nothing there; whatever else is wrong, bind will say
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(address.ToString(), " is something else than a socket: not touched"));
  }
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, address.unix_path.data(), address.unix_path.size());
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int connected = connect(probe, reinterpret_cast<const sockaddr*>(&name), sizeof(name));
  const int error = errno;
  close(probe);
  if (connected == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(address.ToString(), " is in use: a daemon answers there"));
  }
  if (error != ECONNREFUSED) {
    return absl::FailedPreconditionError(
        absl::StrCat(address.ToString(), " cannot be probed (errno ", error, "): not touched"));
  }
  unlink(address.unix_path.c_str());
  return absl::OkStatus();
}

}  // namespace

std::string Address::ToString() const {
  if (is_unix()) {
    return absl::StrCat("unix:", unix_path);
  }
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  if (absl::StartsWith(text, "unix:")) {
    return ParseUnix(text);
  }
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) {
    return Invalid(text, "is neither unix:/path nor host:port");
  }
  Address address;
  absl::string_view host = text.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) {
    return Invalid(text, "has [ without ]");
  }
  address.host = std::string{host};
  if (address.host.empty()) {
    return Invalid(text, "has no host, as in 127.0.0.1:50051");
  }
  const absl::string_view port = text.substr(colon + 1);
  if (!absl::SimpleAtoi(port, &address.port) || address.port < 0 || address.port > kMaxPort) {
    return Invalid(text, absl::StrCat("has port \"", port, "\", which is not in 0..", kMaxPort));
  }
  return address;
}

bool IsLocal(const Address& address) {
  in_addr ipv4{};
  const bool loopback =
      inet_pton(AF_INET, address.host.c_str(), &ipv4) == 1 && ntohl(ipv4.s_addr) >> 24 == 127;
  return address.is_unix() || loopback || address.host == "localhost" || address.host == "::1";
}

Address DefaultAddress() {
  // Read once, before any other thread runs.
  const char* runtime_dir = std::getenv("XDG_RUNTIME_DIR");  // NOLINT(concurrency-mt-unsafe)
  std::string path = absl::StrCat(PrivateDirectory(), "/longshored.sock");
  if (runtime_dir != nullptr && runtime_dir[0] == '/') {
    path = absl::StrCat(runtime_dir, "/longshored.sock");
  } else if (getuid() == 0) {
    path = "/run/longshored.sock";
  }
  return Address{.unix_path = path, .host = {}, .port = 0};
}

std::string PrivateDirectory() { return absl::StrCat("/tmp/longshored-", getuid()); }

absl::Status MakePrivateDirectory(const std::string& directory) {
  constexpr mode_t kOwnerOnly = 0700;
  constexpr mode_t kModeBits = 07777;
  mkdir(directory.c_str(), kOwnerOnly);  // whatever comes of it, what is there now counts
  struct stat info {};
  if (lstat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, " is no directory: remove it, or choose another with --listen"));
  }
  if (info.st_uid != getuid() || (info.st_mode & kModeBits) != kOwnerOnly) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s belongs to user %d with mode %04o, not to user %d with mode 0700: remove it, or choose "
        "another place with --listen",
        directory, info.st_uid, info.st_mode & kModeBits, getuid()));
  }
  return absl::OkStatus();
}

absl::StatusOr<SocketLock> SocketLock::Take(const Address& address) {
  constexpr mode_t kOwnerReadsAndWrites = 0600;
  if (absl::StartsWith(address.unix_path, PrivateDirectory() + "/")) {
    RETURN_IF_ERROR(MakePrivateDirectory(PrivateDirectory()));
  }
  const std::string path = address.unix_path + ".lock";
  SocketLock lock(
      open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, kOwnerReadsAndWrites));
  if (lock.fd_ < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen at ", address.ToString(), ": ", path,
                     " cannot be opened: is the directory there and writable?"));
  }
  if (flock(lock.fd_, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(address.ToString(), " is in use: another daemon holds ", path));
  }
  RETURN_IF_ERROR(RemoveStaleSocket(address));
  return lock;
}

SocketLock::~SocketLock() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

}  // namespace longshore
