#pragma once

#include "engine/session.h"
#include "longshore/v1/session.pb.h"

namespace longshore {

/// What a session is opened with, checked so far as the message can tell. InvalidArgument names the
/// field.
absl::StatusOr<SessionSpec> SpecFromWire(const v1::OpenSessionRequest& request);

}  // namespace longshore
