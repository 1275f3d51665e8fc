#pragma once

#include <string>

#include <absl/status/status.h>

#include "longshore/client/client.h"

namespace longshore::client {

/// The reason of an UNAVAILABLE that this library makes itself: nothing was sent.
inline constexpr char kNotRunning[] = "NOT_RUNNING";

/// FAILED_PRECONDITION if `target` is in this user's directory in /tmp, where anybody may write,
/// and that directory is not this user's alone: somebody may wait there for its clients.
absl::Status CheckPrivate(const std::string& target);

}  // namespace longshore::client
