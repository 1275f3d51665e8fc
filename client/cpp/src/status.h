#pragma once

#include <string>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <google/rpc/status.pb.h>

#include "longshore/client/error.h"

namespace longshore::client {

/// A status with details that DetailsOf() reads.
absl::Status MakeError(absl::StatusCode code,
                       absl::string_view message,
                       const ErrorDetails& details);

/// An argument that no daemon could take; the message starts with the field.
template <typename... Parts>
absl::Status InvalidField(absl::string_view field, const Parts&... parts) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, " ", parts...),
                   {.reason = "INVALID_FIELD",
                    .field = std::string{field},
                    .metadata = {},
                    .retry_delay = std::nullopt});
}

/// What the daemon says in band. OK for code 0.
absl::Status StatusFromRpc(const google::rpc::Status& rpc);

}  // namespace longshore::client
