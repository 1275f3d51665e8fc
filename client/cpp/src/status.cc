#include "client/cpp/src/status.h"

#include <utility>

#include <absl/strings/cord.h>
#include <absl/strings/numbers.h>
#include <google/protobuf/any.pb.h>
#include <google/rpc/error_details.pb.h>

namespace longshore::client {
namespace {

// Under it a status carries the google.rpc.Status that it was made from.
constexpr char kPayloadUrl[] = "type.googleapis.com/google.rpc.Status";

absl::Duration ToDuration(const google::protobuf::Duration& wire) {
  return absl::Seconds(wire.seconds()) + absl::Nanoseconds(wire.nanos());
}

}  // namespace

absl::Status StatusFromRpc(const google::rpc::Status& rpc) {
  if (rpc.code() == 0) {
    return absl::OkStatus();
  }
  absl::Status status(static_cast<absl::StatusCode>(rpc.code()), rpc.message());
  status.SetPayload(kPayloadUrl, absl::Cord(rpc.SerializeAsString()));
  return status;
}

absl::Status MakeError(absl::StatusCode code,
                       absl::string_view message,
                       const ErrorDetails& details) {
  google::rpc::Status rpc;
  rpc.set_code(static_cast<int>(code));
  rpc.set_message(std::string{message});
  google::rpc::ErrorInfo info;
  info.set_reason(details.reason);
  info.mutable_metadata()->insert(details.metadata.begin(), details.metadata.end());
  rpc.add_details()->PackFrom(info);
  if (!details.field.empty()) {
    google::rpc::BadRequest request;
    request.add_field_violations()->set_field(details.field);
    rpc.add_details()->PackFrom(request);
  }
  return StatusFromRpc(rpc);
}

ErrorDetails DetailsOf(const absl::Status& status) {
  ErrorDetails details;
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayloadUrl);
  google::rpc::Status rpc;
  if (!payload.has_value() || !rpc.ParseFromString(std::string{*payload})) {
    return details;
  }
  for (const google::protobuf::Any& detail : rpc.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest request;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&info)) {
      details.reason = info.reason();
      details.metadata.insert(info.metadata().begin(), info.metadata().end());
    } else if (detail.UnpackTo(&request) && request.field_violations_size() > 0) {
      details.field = request.field_violations(0).field();
    } else if (detail.UnpackTo(&retry)) {
      details.retry_delay = ToDuration(retry.retry_delay());
    }
  }
  return details;
}

std::string ReasonOf(const absl::Status& status) { return DetailsOf(status).reason; }

std::optional<int64_t> ExpectedPosition(const absl::Status& status) {
  const ErrorDetails details = DetailsOf(status);
  const auto found = details.metadata.find("expected_position");
  int64_t position = 0;
  if (found == details.metadata.end() || !absl::SimpleAtoi(found->second, &position)) {
    return std::nullopt;
  }
  return position;
}

bool MayHaveBeenApplied(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled: return ReasonOf(status).empty();  // else it never began
    case absl::StatusCode::kUnavailable: {
      const std::string reason = ReasonOf(status);
      return reason.empty() || reason == "DEVICE_LOST";
    }
    default: return false;
  }
}

}  // namespace longshore::client
