#pragma once

#include <string>

#include <google/rpc/status.pb.h>
#include <grpcpp/support/status.h>

#include "engine/core/error.h"

namespace longshore {

/// The domain of every ErrorInfo that this daemon sends.
inline constexpr char kErrorDomain[] = "longshore";

/// Reasons that the service adds to the engine's. proto/README.md lists all of them.
inline constexpr char kMalformedMessage[] = "MALFORMED_MESSAGE";
inline constexpr char kQueueFull[] = "QUEUE_FULL";
inline constexpr char kHostMemory[] = "HOST_MEMORY";
inline constexpr char kLoading[] = "LOADING";
inline constexpr char kDraining[] = "DRAINING";
inline constexpr char kDeviceLost[] = "DEVICE_LOST";
inline constexpr char kSessionNotFound[] = "SESSION_NOT_FOUND";
inline constexpr char kSessionExpired[] = "SESSION_EXPIRED";
inline constexpr char kInstanceChanged[] = "INSTANCE_CHANGED";
inline constexpr char kDeadlineExceeded[] = "DEADLINE_EXCEEDED";
inline constexpr char kCancelled[] = "CANCELLED";

/// A status with that reason, without field and metadata.
absl::Status MakeReason(absl::StatusCode code, absl::string_view reason, absl::string_view message);

/// UNAVAILABLE while the daemon starts and while it stops.
absl::Status LoadingError();
absl::Status DrainingError();
/// UNAVAILABLE once the device has failed; `what` adds what that means for the call.
absl::Status DeviceLostError(absl::string_view what);

/// Code and message, for the log.
std::string LogText(const absl::Status& status);

/// An error as it goes over the wire, in band or as the end of a call: code, message, and details
/// ErrorInfo (always), BadRequest (when a field is to blame), RetryInfo (where waiting helps).
google::rpc::Status ToRpcStatus(const absl::Status& status);

/// The same as the status of a gRPC call; the details travel in grpc-status-details-bin.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace longshore
