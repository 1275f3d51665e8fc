#include "service/messages.h"

#include <limits>

#include <grpcpp/impl/codegen/proto_utils.h>

#include "service/errors.h"

namespace longshore {

absl::Status ParseMessage(grpc::ByteBuffer* bytes, google::protobuf::MessageLite* message) {
  const grpc::Status status =
      grpc::GenericDeserialize<grpc::ProtoBufferReader, google::protobuf::MessageLite>(bytes,
                                                                                       message);
  if (!status.ok()) {
    return MakeReason(absl::StatusCode::kInvalidArgument, kMalformedMessage,
                      absl::StrCat("the request is not a ", message->GetTypeName()));
  }
  return absl::OkStatus();
}

absl::Status SerializeMessage(const google::protobuf::MessageLite& message,
                              grpc::ByteBuffer* bytes) {
  if (message.ByteSizeLong() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InternalError("the answer has more than 2 GiB");
  }
  bool own_buffer = false;
  const grpc::Status status =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::MessageLite>(message, bytes,
                                                                                     &own_buffer);
  return status.ok() ? absl::OkStatus() : absl::InternalError("the answer cannot be serialized");
}

}  // namespace longshore
