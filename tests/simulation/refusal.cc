#include "tests/simulation/refusal.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace longshore::simulation {
namespace {

using absl::StatusCode;

bool Matches(const Refusal& refusal, const Outcome& outcome) {
  return refusal.code == outcome.code && refusal.reason == outcome.reason &&
         refusal.field == outcome.field && !outcome.message.empty() &&
         refusal.expected_position == outcome.expected_position;
}

}  // namespace

Refusal Invalid(std::string field) {
  return {StatusCode::kInvalidArgument, "INVALID_FIELD", std::move(field)};
}

std::string TextOf(const std::vector<Refusal>& refusals) {
  return absl::StrJoin(refusals, " or ", [](std::string* out, const Refusal& refusal) {
    absl::StrAppend(out, absl::StatusCodeToString(refusal.code), " ", refusal.reason, " ",
                    refusal.field);
    if (refusal.expected_position.has_value()) {
      absl::StrAppend(out, " expected_position ", *refusal.expected_position);
    }
  });
}

bool MatchesAny(const std::vector<Refusal>& refusals, const Outcome& outcome) {
  return std::any_of(refusals.begin(), refusals.end(),
                     [&](const Refusal& refusal) { return Matches(refusal, outcome); });
}

std::optional<Refusal> MessageRefusal(const Operation& operation) {
  switch (operation.flaw) {
    case Flaw::kNoItems: return Invalid("items");
    case Flaw::kRepeatedSession:
      return Invalid(absl::StrCat("items[", operation.items.size(), "].session_id"));
    case Flaw::kNoRows:
    case Flaw::kTooManyRows: return Invalid("items[0].rows");
    case Flaw::kNegativePosition: return Invalid("items[0].position");
    case Flaw::kNoKeys: return Invalid("k");
    case Flaw::kUnknownDtype: return Invalid("k.dtype");
    case Flaw::kWrongRows: return Invalid("k.shape[0]");
    case Flaw::kMissingBytes: return Invalid("v.inline_data");
    case Flaw::kRegion: return Refusal{StatusCode::kUnimplemented, "NOT_IMPLEMENTED", "v.region"};
    case Flaw::kMixedDtypes: return Invalid("v.dtype");
    default: return std::nullopt;
  }
}

std::vector<Refusal> Unwanted(const Operation& operation) {
  std::vector<Refusal> refusals;
  if (operation.cancelled) {
    refusals.push_back({StatusCode::kCancelled, "CANCELLED", ""});
  }
  if (operation.expired) {
    refusals.push_back({StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED", ""});
  }
  return refusals;
}

}  // namespace longshore::simulation
