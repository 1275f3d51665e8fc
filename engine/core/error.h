#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/status.h"

namespace longshore {

/// What an error carries besides its code and message: a reason that programs compare, the field to
/// blame where there is one, and values that a caller acts on. The service turns it into google.rpc
/// details.
struct ErrorDetails {
  std::string reason;  ///< UPPER_SNAKE, for example "POSITION_GAP"
  std::string field;   ///< path in the request, for example "items[2].position"; empty if none
  std::vector<std::pair<std::string, std::string>> metadata;  ///< {"expected_position", "128"}
};

/// A status of `code` whose details travel with it.
absl::Status MakeError(absl::StatusCode code,
                       absl::string_view message,
                       const ErrorDetails& details);

/// INVALID_ARGUMENT with reason INVALID_FIELD; the message starts with the field.
template <typename... Parts>
absl::Status InvalidField(absl::string_view field, const Parts&... parts) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, " ", parts...),
                   {.reason = "INVALID_FIELD", .field = std::string{field}, .metadata = {}});
}

/// UNIMPLEMENTED with reason NOT_IMPLEMENTED, for a value that the contract knows and this build
/// does not.
template <typename... Parts>
absl::Status NotImplemented(absl::string_view field, const Parts&... parts) {
  return MakeError(absl::StatusCode::kUnimplemented, absl::StrCat(field, " ", parts...),
                   {.reason = "NOT_IMPLEMENTED", .field = std::string{field}, .metadata = {}});
}

/// The details of a status from MakeError; nothing for any other.
std::optional<ErrorDetails> DetailsOf(const absl::Status& status);

/// The same status with `prefix` in front of its field (and of a message that starts with the
/// field).
absl::Status PrefixField(absl::string_view prefix, const absl::Status& status);

}  // namespace longshore
