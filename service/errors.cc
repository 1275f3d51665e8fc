#include "service/errors.h"

#include <string>

#include <absl/time/time.h>
#include <google/rpc/error_details.pb.h>

namespace longshore {
namespace {

struct RetryDelay {
  const char* reason;  // not string_view: GCC's UBSan does not take it for a constant
  absl::Duration delay;
};

// Where the same call may succeed later without anything else done by the caller. A full queue
// moves within a step or a prefill; memory and sessions come back when somebody closes a session.
constexpr RetryDelay kRetryDelays[] = {
    {kQueueFull, absl::Milliseconds(50)},    {kLoading, absl::Milliseconds(500)},
    {kDraining, absl::Seconds(2)},           {"POOL_FULL", absl::Seconds(2)},
    {"TOO_MANY_SESSIONS", absl::Seconds(2)}, {"TABLES_FULL", absl::Seconds(2)},
};

ErrorDetails DetailsOrCode(const absl::Status& status) {
  std::optional<ErrorDetails> details = DetailsOf(status);
  if (details.has_value()) {
    return *std::move(details);
  }
  return {.reason = absl::StatusCodeToString(status.code()), .field = {}, .metadata = {}};
}

}  // namespace

absl::Status MakeReason(absl::StatusCode code,
                        absl::string_view reason,
                        absl::string_view message) {
  return MakeError(code, message, {.reason = std::string{reason}, .field = {}, .metadata = {}});
}

absl::Status LoadingError() {
  return MakeReason(absl::StatusCode::kUnavailable, kLoading, "the daemon is starting");
}

absl::Status DrainingError() {
  return MakeReason(absl::StatusCode::kUnavailable, kDraining, "the daemon is shutting down");
}

absl::Status DeviceLostError(absl::string_view what) {
  return MakeReason(absl::StatusCode::kUnavailable, kDeviceLost,
                    absl::StrCat("the device has failed; ", what));
}

std::string LogText(const absl::Status& status) {
  return status.ToString(absl::StatusToStringMode::kWithNoExtraData);
}

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status rpc;
  rpc.set_code(static_cast<int>(status.code()));
  if (status.ok()) {
    return rpc;
  }
  const std::string message(status.message());
  rpc.set_message(message);
  const ErrorDetails details = DetailsOrCode(status);

  google::rpc::ErrorInfo info;
  info.set_reason(details.reason);
  info.set_domain(kErrorDomain);
  for (const auto& [key, value] : details.metadata) {
    (*info.mutable_metadata())[key] = value;
  }
  rpc.add_details()->PackFrom(info);

  if (!details.field.empty()) {
    google::rpc::BadRequest bad_request;
    google::rpc::BadRequest::FieldViolation* violation = bad_request.add_field_violations();
    violation->set_field(details.field);
    violation->set_description(message);
    rpc.add_details()->PackFrom(bad_request);
  }
  for (const RetryDelay& retry : kRetryDelays) {
    if (details.reason == retry.reason) {
      google::rpc::RetryInfo info_of_retry;
      const int64_t nanoseconds = absl::ToInt64Nanoseconds(retry.delay);
      info_of_retry.mutable_retry_delay()->set_seconds(nanoseconds / 1'000'000'000);
      info_of_retry.mutable_retry_delay()->set_nanos(
          static_cast<int32_t>(nanoseconds % 1'000'000'000));
      rpc.add_details()->PackFrom(info_of_retry);
    }
  }
  return rpc;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  const google::rpc::Status rpc = ToRpcStatus(status);
  return {static_cast<grpc::StatusCode>(rpc.code()), rpc.message(), rpc.SerializeAsString()};
}

}  // namespace longshore
