#include "service/caller.h"

#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/strip.h>

namespace longshore {

std::string CallerOfPeer(absl::string_view peer) {
  if (absl::StartsWith(peer, "unix")) {  // unix: and unix-abstract:
    return kLocalCaller;
  }
  if (!absl::ConsumePrefix(&peer, "ipv4:") && !absl::ConsumePrefix(&peer, "ipv6:")) {
    return absl::StrCat("peer:", peer);
  }
  // Without the port: it is another one after a reconnect.
  return absl::StrCat(
      "host:", absl::StrReplaceAll(peer.substr(0, peer.rfind(':')), {{"%5B", "["}, {"%5D", "]"}}));
}

std::string CallerOf(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth != nullptr && auth->IsPeerAuthenticated()) {
    const std::vector<grpc::string_ref> names = auth->GetPeerIdentity();
    if (!names.empty()) {
      return absl::StrCat("name:", absl::string_view(names[0].data(), names[0].size()));
    }
  }
  return CallerOfPeer(context.peer());
}

}  // namespace longshore
