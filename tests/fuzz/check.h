#pragma once

#include <span>
#include <string>
#include <string_view>

#include <absl/strings/str_cat.h>
#include <google/protobuf/message_lite.h>

#include "engine/core/status.h"

namespace longshore::fuzz {

/// Ends the process with `what`, for the fuzzer to keep the bytes that led here.
[[noreturn]] void Finding(const std::string& what);

/// What must hold, whatever the bytes.
template <typename... Parts>
void Require(bool holds, const Parts&... parts) {
  if (!holds) {
    Finding(absl::StrCat(parts...));
  }
}

/// A row of the table of errors in proto/README.md.
struct Row {
  absl::StatusCode code;
  const char* reason;
};
/// The rows that bytes alone may lead to.
std::span<const Row> KnownRows();

/// An error as clients are promised it: a known code and reason, ErrorInfo first, our domain, a
/// message, and bytes that a client can parse.
void RequireWellFormed(const absl::Status& status);

/// Parses as the service does. False when the bytes are no such message, and said so properly.
bool Parse(std::string_view bytes, google::protobuf::MessageLite* message);

}  // namespace longshore::fuzz
