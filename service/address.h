#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "engine/core/status.h"

namespace longshore {

/// Where to listen: a Unix socket, or a TCP host and port.
struct Address {
  std::string unix_path;  ///< empty: TCP
  std::string host;       ///< as written, without the brackets of an IPv6 address
  int32_t port = 0;       ///< 0: any free one

  bool is_unix() const { return !unix_path.empty(); }
  /// As gRPC takes it: unix:/path, host:port or [host]:port.
  std::string ToString() const;
  bool operator==(const Address&) const = default;
};

/// Parses unix:/path or host:port. InvalidArgument says what is wrong with `text`.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

/// True for a Unix socket, `localhost`, 127.0.0.0/8 and ::1. No name is looked up.
bool IsLocal(const Address& address);

/// The socket to listen on when none is configured: $XDG_RUNTIME_DIR/longshored.sock;
/// /run/longshored.sock for root; else longshored.sock in PrivateDirectory(). Clients look in the
/// same order.
Address DefaultAddress();

/// /tmp/longshored-UID: where a user without a runtime directory has the default socket. Others may
/// write to /tmp, so the directory must be this user's and nobody else's, or somebody could wait
/// there for this user's clients.
std::string PrivateDirectory();

/// Makes `directory` with mode 0700 unless it is there. FailedPrecondition if it is something else
/// than a directory of this user with that mode.
absl::Status MakePrivateDirectory(const std::string& directory);

/// A Unix socket's path, taken: the holder alone may listen there.
///
/// What holds it is a lock on PATH.lock, which the kernel drops with the process. That file stays:
/// whoever removed it could leave two daemons with a lock on different files of one name.
class SocketLock {
 public:
  /// Takes the path, and removes the socket that a dead daemon left there. Makes the directory if
  /// it is PrivateDirectory(). FailedPrecondition when another daemon has the path, something
  /// answers there, or the file is no socket; nothing is touched then.
  static absl::StatusOr<SocketLock> Take(const Address& address);

  SocketLock(SocketLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  SocketLock& operator=(SocketLock&&) = delete;
  ~SocketLock();

 private:
  explicit SocketLock(int fd) : fd_(fd) {}

  int fd_;
};

}  // namespace longshore
