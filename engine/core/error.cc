#include "engine/core/error.h"

#include <absl/strings/cord.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

namespace longshore {
namespace {

constexpr absl::string_view kDetailsUrl = "longshore/error-details";

// reason \n field \n key \n value \n key \n value ...: none of them holds a line break.
std::string Serialize(const ErrorDetails& details) {
  std::string text = absl::StrCat(details.reason, "\n", details.field);
  for (const auto& [key, value] : details.metadata) {
    absl::StrAppend(&text, "\n", key, "\n", value);
  }
  return text;
}

}  // namespace

absl::Status MakeError(absl::StatusCode code,
                       absl::string_view message,
                       const ErrorDetails& details) {
  absl::Status status(code, message);
  status.SetPayload(kDetailsUrl, absl::Cord(Serialize(details)));
  return status;
}

std::optional<ErrorDetails> DetailsOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kDetailsUrl);
  if (!payload.has_value()) {
    return std::nullopt;
  }
  const std::string text(*payload);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  ErrorDetails details;
  details.reason = lines[0];
  details.field = lines.size() > 1 ? lines[1] : "";
  for (size_t line = 2; line + 1 < lines.size(); line += 2) {
    details.metadata.emplace_back(lines[line], lines[line + 1]);
  }
  return details;
}

absl::Status PrefixField(absl::string_view prefix, const absl::Status& status) {
  std::optional<ErrorDetails> details = DetailsOf(status);
  if (!details.has_value() || details->field.empty()) {
    return status;
  }
  const bool message_names_field = absl::StartsWith(status.message(), details->field);
  details->field = absl::StrCat(prefix, details->field);
  const std::string message =
      message_names_field ? absl::StrCat(prefix, status.message()) : std::string{status.message()};
  return MakeError(status.code(), message, *details);
}

}  // namespace longshore
