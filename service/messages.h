#pragma once

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include "engine/core/status.h"

namespace longshore {

/// Parses a request, and frees its bytes. InvalidArgument with reason MALFORMED_MESSAGE.
///
/// Handlers take bytes and parse them here, because gRPC would answer UNIMPLEMENTED for bytes that
/// are no message, and end a stream as if the client had.
absl::Status ParseMessage(grpc::ByteBuffer* bytes, google::protobuf::MessageLite* message);

/// Internal if the message has more than 2 GiB.
absl::Status SerializeMessage(const google::protobuf::MessageLite& message,
                              grpc::ByteBuffer* bytes);

}  // namespace longshore
