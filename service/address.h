#pragma once

#include <cstdint>
#include <string>

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
/// /run/longshored.sock for root; else /tmp/longshored-UID.sock. Clients look in the same order.
Address DefaultAddress();

/// Makes way for a Unix socket: removes the one that a dead daemon left behind. FailedPrecondition
/// if a daemon answers there, or something else than a socket lies there.
absl::Status RemoveStaleSocket(const Address& address);

}  // namespace longshore
