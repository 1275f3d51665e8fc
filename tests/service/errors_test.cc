#include "service/errors.h"

#include <gtest/gtest.h>

#include "tests/service/test_server.h"

namespace longshore {
namespace {

TEST(Errors, DetailsTravelBothWays) {
  const absl::Status status = MakeError(absl::StatusCode::kOutOfRange, "position 9 leaves a gap",
                                        {.reason = "POSITION_GAP",
                                         .field = "items[0].position",
                                         .metadata = {{"expected_position", "7"}}});
  for (const WireError& error : {ErrorOf(ToRpcStatus(status)), ErrorOf(ToGrpcStatus(status))}) {
    EXPECT_EQ(error.code, grpc::StatusCode::OUT_OF_RANGE);
    EXPECT_EQ(error.message, "position 9 leaves a gap");
    EXPECT_EQ(error.reason, "POSITION_GAP");
    EXPECT_EQ(error.domain, "longshore");
    EXPECT_EQ(error.field, "items[0].position");
    EXPECT_EQ(error.metadata.at("expected_position"), "7");
    EXPECT_FALSE(error.retry);
  }
}

TEST(Errors, RetryInfoWhereWaitingHelps) {
  for (const char* reason :
       {"QUEUE_FULL", "LOADING", "DRAINING", "POOL_FULL", "TOO_MANY_SESSIONS"}) {
    EXPECT_TRUE(ErrorOf(ToRpcStatus(MakeReason(absl::StatusCode::kUnavailable, reason, "x"))).retry)
        << reason;
  }
  for (const char* reason : {"INVALID_FIELD", "MAX_TOKENS", "DEVICE_LOST"}) {
    EXPECT_FALSE(
        ErrorOf(ToRpcStatus(MakeReason(absl::StatusCode::kUnavailable, reason, "x"))).retry)
        << reason;
  }
}

TEST(Errors, AStatusWithoutDetailsHasItsCodeForAReason) {
  EXPECT_EQ(ErrorOf(ToRpcStatus(absl::InternalError("x"))).reason, "INTERNAL");
}

TEST(Errors, OkIsOk) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_EQ(ToRpcStatus(absl::OkStatus()).ByteSizeLong(), 0U);
}

}  // namespace
}  // namespace longshore
