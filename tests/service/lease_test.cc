// Whose sessions are, how long they live, and how they are opened once.

#include <cmath>
#include <future>
#include <thread>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/service/http_get.h"
#include "tests/service/test_server.h"

namespace longshore {
namespace {

using std::chrono::milliseconds;

struct Opened {
  WireError error;
  v1::OpenSessionResponse response;
};

Opened OpenOver(v1::Sessions::Stub& sessions, const v1::OpenSessionRequest& request) {
  grpc::ClientContext context;
  Opened opened;
  opened.error = ErrorOf(sessions.OpenSession(&context, request, &opened.response));
  return opened;
}

WireError DescribeOver(v1::Sessions::Stub& sessions,
                       uint64_t session_id,
                       v1::SessionInfo* info = nullptr) {
  grpc::ClientContext context;
  v1::DescribeSessionRequest request;
  request.set_session_id(session_id);
  v1::DescribeSessionResponse response;
  const grpc::Status status = sessions.DescribeSession(&context, request, &response);
  if (info != nullptr) {
    *info = response.session();
  }
  return ErrorOf(status);
}

int NumSessionsOver(v1::Sessions::Stub& sessions) {
  grpc::ClientContext context;
  v1::ListSessionsResponse response;
  EXPECT_TRUE(sessions.ListSessions(&context, v1::ListSessionsRequest(), &response).ok());
  return response.sessions_size();
}

void AwaitNoSessions(TestServer& server) {
  while (NumSessionsOver(server.sessions()) > 0) {
    std::this_thread::sleep_for(milliseconds(5));
  }
}

TEST(Lease, EndsTheSessionFreesItsPagesAndSaysSo) {
  TestServer server;
  v1::OpenSessionRequest request = TestOpenRequest();
  request.set_lease_seconds(0.1);
  const Opened opened = OpenOver(server.sessions(), request);
  ASSERT_EQ(opened.error.code, grpc::StatusCode::OK);
  EXPECT_EQ(opened.response.lease_seconds(), 0.1);
  AwaitNoSessions(server);
  const uint64_t session = opened.response.session_id();
  WireError error = DescribeOver(server.sessions(), session);
  EXPECT_EQ(error.code, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(error.reason, "SESSION_EXPIRED");
  EXPECT_EQ(error.metadata["lease_seconds"], "0.1");
  v1::DecodeStepResponse response;
  error = ErrorOf(server.Decode(TestStep<v1::DecodeStepRequest>(session, 0, 1), &response));
  EXPECT_EQ(error.reason, "SESSION_EXPIRED");
  EXPECT_EQ(error.field, "items[0].session_id");
}

TEST(Lease, FreesItsPagesForOthers) {
  Config config = TestConfig();
  TestServer server(config);
  v1::OpenSessionRequest request = TestOpenRequest();
  request.set_max_tokens(int64_t{1} << 15);  // all of the pool
  request.set_lease_seconds(0.1);
  int opened = 0;
  while (OpenOver(server.sessions(), request).error.code == grpc::StatusCode::OK) {
    ++opened;
  }
  ASSERT_GT(opened, 0);
  AwaitNoSessions(server);
  EXPECT_EQ(OpenOver(server.sessions(), request).error.code, grpc::StatusCode::OK);
}

TEST(Lease, IsHeldByACallThatRunsLonger) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  v1::OpenSessionRequest request = TestOpenRequest();
  request.set_lease_seconds(0.05);
  const uint64_t session = server.Open(request);
  device.Hold();
  std::future<grpc::Status> call = std::async(std::launch::async, [&] {
    v1::DecodeStepResponse response;
    return server.Decode(TestStep<v1::DecodeStepRequest>(session, 0, 1), &response);
  });
  device.AwaitHeld();
  std::this_thread::sleep_for(milliseconds(100));
  device.Release();
  EXPECT_TRUE(call.get().ok());
}

TEST(Lease, IsTheDaemonsWhenNoneIsAskedFor) {
  Config config = TestConfig();
  config.default_lease = milliseconds(1500);
  TestServer server(config);
  v1::SessionInfo info;
  ASSERT_EQ(DescribeOver(server.sessions(), server.Open(), &info).code, grpc::StatusCode::OK);
  EXPECT_EQ(info.lease_seconds(), 1.5);
  EXPECT_EQ(info.owner(), "local");
}

// Describing is a call, and renews the lease; but who asks wants to know of the calls before.
TEST(Lease, DescribeTellsHowLongNobodyElseHasCalled) {
  TestServer server;
  const uint64_t session = server.Open();
  std::this_thread::sleep_for(milliseconds(100));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_GE(server.Describe(session).idle_seconds(), 0.1);
  const double idle_seconds = server.Describe(session).idle_seconds();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  EXPECT_LT(idle_seconds, passed.count()) << "since the one before";
}

void AwaitQueueDepth(TestServer& server, int depth) {
  const std::string line = absl::StrCat("longshore_queue_depth ", depth, "\n");
  while (!absl::StrContains(HttpGet((*server).metrics_port(), "/metrics"), line)) {
    std::this_thread::sleep_for(milliseconds(5));
  }
}

TEST(Lease, DescribeTellsOfACallThatWaitsBehindIt) {
  FakeDevice device;
  Config config = TestConfig();
  config.metrics_listen.push_back(*ParseAddress("127.0.0.1:0"));
  TestServer server(config, &device);
  const uint64_t other = server.Open();
  const uint64_t session = server.Open();
  device.Hold();
  const auto decode = [&server](uint64_t of) {
    v1::DecodeStepResponse response;
    return server.Decode(TestStep<v1::DecodeStepRequest>(of, 0, 1), &response);
  };
  std::future<grpc::Status> first = std::async(std::launch::async, decode, other);
  device.AwaitHeld();
  std::future<v1::SessionInfo> described =
      std::async(std::launch::async, [&] { return server.Describe(session); });
  AwaitQueueDepth(server, 1);
  std::future<grpc::Status> behind = std::async(std::launch::async, decode, session);
  AwaitQueueDepth(server, 2);
  device.Release();
  EXPECT_EQ(described.get().idle_seconds(), 0);
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(behind.get().ok());
}

TEST(Lease, LongerThanTheDaemonAllowsIsRefused) {
  Config config = TestConfig();
  config.max_lease = milliseconds(60000);
  TestServer server(config);
  for (const double seconds : {60.5, -1.0, std::nan("")}) {
    v1::OpenSessionRequest request = TestOpenRequest();
    request.set_lease_seconds(seconds);
    const WireError error = OpenOver(server.sessions(), request).error;
    EXPECT_EQ(error.reason, "INVALID_FIELD");
    EXPECT_EQ(error.field, "lease_seconds");
  }
  EXPECT_EQ(NumSessionsOver(server.sessions()), 0);
}

TEST(Instance, IdsOfAnotherDaemonAreTold) {
  uint64_t session = 0;
  {
    TestServer before;
    session = before.Open();
  }
  TestServer server;
  WireError error = DescribeOver(server.sessions(), session);
  EXPECT_EQ(error.code, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(error.reason, "INSTANCE_CHANGED");
  EXPECT_EQ(error.metadata["instance_id"], (*server).instance_id());
  v1::DecodeStepResponse response;
  error = ErrorOf(server.Decode(TestStep<v1::DecodeStepRequest>(session, 0, 1), &response));
  EXPECT_EQ(error.reason, "INSTANCE_CHANGED");
}

TEST(OpenId, TheSameRequestOpensOneSession) {
  TestServer server;
  v1::OpenSessionRequest request = TestOpenRequest();
  request.set_open_id(42);
  const Opened first = OpenOver(server.sessions(), request);
  const Opened second = OpenOver(server.sessions(), request);
  ASSERT_EQ(second.error.code, grpc::StatusCode::OK);
  EXPECT_EQ(first.response.SerializeAsString(), second.response.SerializeAsString());
  EXPECT_EQ(NumSessionsOver(server.sessions()), 1);
  request.set_open_id(43);
  EXPECT_NE(OpenOver(server.sessions(), request).response.session_id(),
            first.response.session_id());
}

TEST(OpenId, AnotherRequestUnderTheSameIdIsRefused) {
  TestServer server;
  v1::OpenSessionRequest request = TestOpenRequest();
  request.set_open_id(42);
  ASSERT_EQ(OpenOver(server.sessions(), request).error.code, grpc::StatusCode::OK);
  request.set_max_tokens(request.max_tokens() + 1);
  const WireError error = OpenOver(server.sessions(), request).error;
  EXPECT_EQ(error.reason, "INVALID_FIELD");
  EXPECT_EQ(error.field, "open_id");
  EXPECT_EQ(NumSessionsOver(server.sessions()), 1);
}

TEST(OpenId, IsFreeAgainOnceItsSessionIsClosed) {
  TestServer server;
  v1::OpenSessionRequest request = TestOpenRequest();
  request.set_open_id(42);
  const uint64_t first = OpenOver(server.sessions(), request).response.session_id();
  grpc::ClientContext context;
  v1::CloseSessionRequest close;
  close.set_session_id(first);
  v1::CloseSessionResponse closed;
  ASSERT_TRUE(server.sessions().CloseSession(&context, close, &closed).ok());
  EXPECT_NE(OpenOver(server.sessions(), request).response.session_id(), first);
}

// A server that listens at a Unix socket and at both loopback addresses, which are two hosts.
class Owners : public ::testing::Test {
 protected:
  Owners() : server_(ConfigWithTcp()) {
    for (size_t index = 1; index <= 2; ++index) {
      tcp_.push_back(v1::Sessions::NewStub(grpc::CreateChannel(
          (*server_).addresses()[index].ToString(), grpc::InsecureChannelCredentials())));
    }
  }
  static Config ConfigWithTcp() {
    Config config = TestConfig();
    config.listen.push_back(*ParseAddress("127.0.0.1:0"));
    config.listen.push_back(*ParseAddress("[::1]:0"));
    return config;
  }
  v1::Sessions::Stub& v4() { return *tcp_[0]; }
  v1::Sessions::Stub& v6() { return *tcp_[1]; }

  TestServer server_;
  std::vector<std::unique_ptr<v1::Sessions::Stub>> tcp_;
};

TEST_F(Owners, SeeTheirOwnSessionsAndTheSocketSeesAll) {
  const uint64_t session = OpenOver(v4(), TestOpenRequest()).response.session_id();
  ASSERT_NE(session, 0U);
  v1::SessionInfo info;
  EXPECT_EQ(DescribeOver(v4(), session, &info).code, grpc::StatusCode::OK);
  EXPECT_EQ(info.owner(), "host:127.0.0.1");
  EXPECT_EQ(DescribeOver(v6(), session).reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(DescribeOver(server_.sessions(), session).code, grpc::StatusCode::OK);
  EXPECT_EQ(NumSessionsOver(v4()), 1);
  EXPECT_EQ(NumSessionsOver(v6()), 0);
  EXPECT_EQ(NumSessionsOver(server_.sessions()), 1);
}

TEST_F(Owners, DoNotShareOpenIds) {
  v1::OpenSessionRequest request = TestOpenRequest();
  request.set_open_id(42);
  EXPECT_NE(OpenOver(v4(), request).response.session_id(),
            OpenOver(v6(), request).response.session_id());
}

}  // namespace
}  // namespace longshore
