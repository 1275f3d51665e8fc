#include "service/session_service.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/service/test_server.h"

namespace longshore {
namespace {

WireError Open(TestServer& server, const v1::OpenSessionRequest& request) {
  grpc::ClientContext context;
  v1::OpenSessionResponse response;
  return ErrorOf(server.sessions().OpenSession(&context, request, &response));
}

WireError Truncate(TestServer& server,
                   uint64_t session_id,
                   int64_t position,
                   v1::TruncateSessionResponse* response) {
  grpc::ClientContext context;
  v1::TruncateSessionRequest request;
  request.set_session_id(session_id);
  request.set_position(position);
  return ErrorOf(server.sessions().TruncateSession(&context, request, response));
}

WireError Close(TestServer& server, uint64_t session_id) {
  grpc::ClientContext context;
  v1::CloseSessionRequest request;
  request.set_session_id(session_id);
  v1::CloseSessionResponse response;
  return ErrorOf(server.sessions().CloseSession(&context, request, &response));
}

TEST(SessionService, OpenAnswersWithThePolicyInFull) {
  TestServer server;
  grpc::ClientContext context;
  v1::OpenSessionResponse response;
  ASSERT_TRUE(server.sessions().OpenSession(&context, TestOpenRequest(), &response).ok());
  EXPECT_NE(response.session_id(), 0U);
  EXPECT_EQ(response.instance_id(), (*server).instance_id());
  EXPECT_EQ(response.policy().decode().rest().stages(1).selector(), v1::SELECTOR_EXACT);
  EXPECT_EQ(response.policy().sink_tokens(), 256);
}

TEST(SessionService, DescribeAndListTellWhatIsThere) {
  TestServer server;
  v1::OpenSessionRequest open = TestOpenRequest();
  open.set_name("a label");
  const uint64_t session = server.Open(open);
  v1::PrefillResponse response;
  ASSERT_TRUE(server.Prefill(TestStep<v1::PrefillRequest>(session, 0, 65), &response).ok());

  const v1::SessionInfo info = server.Describe(session);
  EXPECT_EQ(info.name(), "a label");
  EXPECT_EQ(info.max_tokens(), 1024);
  EXPECT_EQ(info.model().num_heads(), kTestHeads);
  EXPECT_EQ(info.policy().query_block(), 64);
  EXPECT_EQ(info.layer_tokens_size(), kTestLayers);
  const int64_t page_bytes = int64_t{2} * 64 * kTestKvHeads * kTestHeadDim * 4;
  EXPECT_EQ(info.page_bytes_used(), 2 * page_bytes);
  EXPECT_EQ(info.page_bytes_reserved(), (1024 / 64 * kTestLayers - 2) * page_bytes);

  server.Open();
  grpc::ClientContext context;
  v1::ListSessionsResponse list;
  ASSERT_TRUE(server.sessions().ListSessions(&context, v1::ListSessionsRequest(), &list).ok());
  ASSERT_EQ(list.sessions_size(), 2);
  EXPECT_EQ(list.sessions(0).session_id(), session);
  EXPECT_FALSE(list.sessions(0).has_model());
}

TEST(SessionService, EveryWrongFieldIsNamed) {
  struct Case {
    std::string field;
    std::function<void(v1::OpenSessionRequest*)> spoil;
  };
  const std::vector<Case> cases = {
      {"model", [](auto* request) { request->clear_model(); }},
      {"policy", [](auto* request) { request->clear_policy(); }},
      {"policy.preset", [](auto* request) { request->mutable_policy()->clear_spec(); }},
      {"policy.preset", [](auto* request) { request->mutable_policy()->set_preset("no\nsuch"); }},
      {"name", [](auto* request) { request->set_name(std::string(65, 'n')); }},
      {"max_tokens", [](auto* request) { request->set_max_tokens(0); }},
      {"max_tokens", [](auto* request) { request->set_max_tokens(int64_t{1} << 62); }},
      {"model.head_dim", [](auto* request) { request->mutable_model()->set_head_dim(63); }},
      {"model.kv_dtype", [](auto* request) { request->mutable_model()->clear_kv_dtype(); }},
      {"policy.policy.ranking", [](auto* request) { request->mutable_policy()->mutable_policy(); }},
  };
  TestServer server;
  for (const Case& spoiled : cases) {
    v1::OpenSessionRequest request = TestOpenRequest();
    spoiled.spoil(&request);
    const WireError error = Open(server, request);
    EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT) << error.message;
    EXPECT_EQ(error.reason, "INVALID_FIELD") << error.message;
    EXPECT_EQ(error.field, spoiled.field) << error.message;
  }
}

TEST(SessionService, WhatIsNotServedYetIsUnimplemented) {
  TestServer server;
  v1::OpenSessionRequest request = TestOpenRequest();
  request.mutable_model()->set_kv_dtype(v1::DTYPE_F8E4M3);
  WireError error = Open(server, request);
  EXPECT_EQ(error.code, grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(error.reason, "NOT_IMPLEMENTED");
  EXPECT_EQ(error.field, "model.kv_dtype");
}

TEST(SessionService, AFullPoolIsToldWhenOpening) {
  TestServer server;
  v1::OpenSessionRequest request = TestOpenRequest();
  request.set_max_tokens(1 << 20);
  const WireError error = Open(server, request);
  EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(error.reason, "POOL_FULL");
  EXPECT_TRUE(error.retry);
}

TEST(SessionService, TooManySessionsIsTold) {
  Config config = TestConfig();
  config.engine.max_sessions = 1;
  TestServer server(config);
  const uint64_t session = server.Open();
  const WireError error = Open(server, TestOpenRequest());
  EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(error.reason, "TOO_MANY_SESSIONS");
  EXPECT_TRUE(error.retry);
  EXPECT_EQ(Close(server, session).code, grpc::StatusCode::OK);
  EXPECT_EQ(Open(server, TestOpenRequest()).code, grpc::StatusCode::OK);
}

TEST(SessionService, TruncateForgetsAndThePositionIsFreeAgain) {
  TestServer server;
  const uint64_t session = server.Open();
  v1::PrefillResponse response;
  ASSERT_TRUE(server.Prefill(TestStep<v1::PrefillRequest>(session, 0, 130), &response).ok());
  v1::TruncateSessionResponse truncated;
  EXPECT_EQ(Truncate(server, session, 131, &truncated).reason, "TRUNCATE_PAST_END");
  EXPECT_EQ(Truncate(server, session, -1, &truncated).code, grpc::StatusCode::OUT_OF_RANGE);
  ASSERT_EQ(Truncate(server, session, 64, &truncated).code, grpc::StatusCode::OK);
  EXPECT_EQ(truncated.layer_tokens(0), 64);
  EXPECT_EQ(truncated.layer_tokens(1), 0);
  EXPECT_TRUE(server.Prefill(TestStep<v1::PrefillRequest>(session, 64, 10), &response).ok());
}

TEST(SessionService, AClosedSessionIsNotFound) {
  TestServer server;
  const uint64_t session = server.Open();
  EXPECT_EQ(Close(server, session).code, grpc::StatusCode::OK);
  const WireError error = Close(server, session);
  EXPECT_EQ(error.code, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(error.reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(error.field, "session_id");
  v1::TruncateSessionResponse truncated;
  EXPECT_EQ(Truncate(server, session, 0, &truncated).reason, "SESSION_NOT_FOUND");
  v1::DecodeStepResponse response;
  EXPECT_EQ(
      ErrorOf(server.Decode(TestStep<v1::DecodeStepRequest>(session, 0, 1), &response)).reason,
      "SESSION_NOT_FOUND");
}

}  // namespace
}  // namespace longshore
