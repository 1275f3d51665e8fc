#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <absl/status/status.h>
#include <absl/time/time.h>

namespace longshore::client {

/// What an error says besides its code and message. proto/README.md has the table of all reasons
/// with what a caller does about each.
struct ErrorDetails {
  /// The daemon's word for it, for programs to compare, for example "POSITION_GAP". Empty where no
  /// daemon answered, as when a connection is lost.
  std::string reason;
  std::string field;  ///< path in the request of what is to blame; empty if nothing is
  std::map<std::string, std::string> metadata;  ///< {"expected_position", "128"}
  /// When the same call may succeed; nothing where waiting alone is no help.
  std::optional<absl::Duration> retry_delay;
};

/// The details of a status that this library returned; all empty for any other.
ErrorDetails DetailsOf(const absl::Status& status);

/// DetailsOf(status).reason.
std::string ReasonOf(const absl::Status& status);

/// The position at which the layer goes on, of a POSITION_CONFLICT or a POSITION_GAP.
std::optional<int64_t> ExpectedPosition(const absl::Status& status);

/// Whether a call that failed so may still have been applied: its connection or its time was lost,
/// or the device failed. The same call again with the same position, rows and append_id is safe.
bool MayHaveBeenApplied(const absl::Status& status);

}  // namespace longshore::client
