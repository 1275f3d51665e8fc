#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/operation.h"

namespace longshore::simulation {

/// A code and reason, and where one is to blame the field.
struct Refusal {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason;
  std::string field;
  std::optional<int64_t> expected_position = std::nullopt;
};

/// INVALID_ARGUMENT INVALID_FIELD.
Refusal Invalid(std::string field);
/// For people.
std::string TextOf(const std::vector<Refusal>& refusals);
/// Whether it was answered with one of them, and a message.
bool MatchesAny(const std::vector<Refusal>& refusals, const Outcome& outcome);

/// What a step's message alone is refused with; nothing if it is fine.
std::optional<Refusal> MessageRefusal(const Operation& operation);
/// What a call that nobody wants any more is answered with instead of a turn; empty for others.
std::vector<Refusal> Unwanted(const Operation& operation);

}  // namespace longshore::simulation
