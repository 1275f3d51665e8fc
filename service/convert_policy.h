#pragma once

#include "engine/policy.h"
#include "longshore/v1/policy.pb.h"

namespace longshore {

/// A policy by name or in full, checked as ValidatePolicy() does. Errors name fields below `field`:
/// an unknown preset is InvalidArgument and lists the known ones.
absl::StatusOr<AttentionPolicy> PolicyFromWire(const v1::PolicySpec& spec, absl::string_view field);
v1::AttentionPolicy PolicyToWire(const AttentionPolicy& policy);

}  // namespace longshore
