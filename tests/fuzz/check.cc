#include "tests/fuzz/check.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>

#include "service/errors.h"
#include "service/messages.h"

namespace longshore::fuzz {

void Finding(const std::string& what) {
  std::fprintf(stderr, "FINDING: %s\n", what.c_str());
  std::abort();
}

std::span<const Row> KnownRows() {
  using absl::StatusCode;
  static const std::vector<Row> rows = {
      {StatusCode::kInvalidArgument, "INVALID_FIELD"},
      {StatusCode::kInvalidArgument, "MALFORMED_MESSAGE"},
      {StatusCode::kInvalidArgument, "NON_FINITE"},
      {StatusCode::kInvalidArgument, "OUT_OF_RANGE_VALUE"},
      {StatusCode::kNotFound, "SESSION_NOT_FOUND"},
      {StatusCode::kNotFound, "INSTANCE_CHANGED"},
      {StatusCode::kAborted, "POSITION_CONFLICT"},
      {StatusCode::kOutOfRange, "POSITION_GAP"},
      {StatusCode::kOutOfRange, "MAX_TOKENS"},
      {StatusCode::kOutOfRange, "TRUNCATE_PAST_END"},
      {StatusCode::kOutOfRange, "TOKENS_EXPIRED"},
      {StatusCode::kResourceExhausted, "POOL_FULL"},
      {StatusCode::kResourceExhausted, "TOO_MANY_SESSIONS"},
      {StatusCode::kResourceExhausted, "TABLES_FULL"},
      {StatusCode::kUnimplemented, "NOT_IMPLEMENTED"},
  };
  return rows;
}

void RequireWellFormed(const absl::Status& status) {
  if (status.ok()) {
    return;
  }
  const std::string text = LogText(status);
  const std::string wire = ToRpcStatus(status).SerializeAsString();
  google::rpc::Status rpc;
  Require(rpc.ParseFromString(wire), "clients cannot parse the status ", text);
  Require(!rpc.message().empty(), "no message: ", text);
  google::rpc::ErrorInfo info;
  Require(rpc.details_size() > 0 && rpc.details(0).UnpackTo(&info), "no ErrorInfo: ", text);
  Require(info.domain() == kErrorDomain, "domain ", info.domain(), ": ", text);
  const std::span<const Row> rows = KnownRows();
  Require(std::any_of(rows.begin(), rows.end(),
                      [&](const Row& row) {
                        return static_cast<int>(row.code) == rpc.code() &&
                               info.reason() == row.reason;
                      }),
          "reason ", info.reason(), " is not in the table: ", text);
  for (const google::protobuf::Any& detail : rpc.details()) {
    google::rpc::BadRequest bad_request;
    if (detail.UnpackTo(&bad_request)) {
      Require(!bad_request.field_violations(0).field().empty(), "a blamed field is empty: ", text);
    }
  }
  // Not byte by byte: the entries of a map have no order.
  const grpc::Status grpc = ToGrpcStatus(status);
  google::rpc::Status of_call;
  Require(of_call.ParseFromString(grpc.error_details()) && of_call.code() == rpc.code() &&
              of_call.message() == rpc.message() && of_call.details_size() == rpc.details_size() &&
              grpc.error_message() == rpc.message(),
          "the two forms of a status differ: ", text);
}

bool Parse(std::string_view bytes, google::protobuf::MessageLite* message) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  grpc::ByteBuffer buffer(&slice, 1);
  const absl::Status status = ParseMessage(&buffer, message);
  RequireWellFormed(status);
  return status.ok();
}

}  // namespace longshore::fuzz
