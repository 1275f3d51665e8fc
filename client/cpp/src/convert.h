#pragma once

#include <absl/status/statusor.h>

#include "longshore/client/client.h"
#include "longshore/v1/server.pb.h"
#include "longshore/v1/session.pb.h"

// Between this library's plain structs and the wire's messages. What the daemon checks is not
// checked here.
namespace longshore::client {

v1::DType ToWire(DType dtype);
v1::ModelShape ToWire(const ModelShape& model);
/// INVALID_ARGUMENT where the text of a policy is none.
absl::StatusOr<v1::PolicySpec> ToWire(const Policy& policy);

ModelShape FromWire(const v1::ModelShape& wire);
SessionInfo FromWire(const v1::SessionInfo& wire);
ServerInfo FromWire(const v1::GetServerInfoResponse& wire);

}  // namespace longshore::client
