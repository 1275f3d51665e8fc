#pragma once

#include <string>

#include <absl/strings/string_view.h>
#include <grpcpp/grpcpp.h>

namespace longshore {

/// Who called through a Unix socket: whoever its file's permissions let in.
inline constexpr char kLocalCaller[] = "local";

/// Who is at the other end of a connection, so far as it tells: "name:NAME" of an authenticated
/// peer, kLocalCaller, or "host:ADDRESS". The same for every connection of the same peer.
std::string CallerOf(const grpc::ServerContextBase& context);

/// The same from what gRPC says of an unauthenticated peer: "unix:/path", "ipv4:127.0.0.1:4711",
/// "ipv6:%5B::1%5D:4711".
std::string CallerOfPeer(absl::string_view peer);

}  // namespace longshore
