// When a server answers what: while it loads, when its queue is full, while it drains, after its
// device failed.

#include <unistd.h>

#include <array>
#include <future>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "service/server.h"
#include "tests/service/raw_call.h"
#include "tests/service/test_server.h"

namespace longshore {
namespace {

using std::chrono::milliseconds;

constexpr char kServing[] = "\x08\x01";     // grpc.health.v1.HealthCheckResponse{status: SERVING}
constexpr char kNotServing[] = "\x08\x02";  // {status: NOT_SERVING}

std::string Health(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  // HealthCheckRequest{service}
  const std::string request =
      service.empty() ? "" : "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
  std::string response;
  const grpc::Status status = CallRaw(channel, "/grpc.health.v1.Health/Check", request, &response);
  return status.ok() ? response : status.error_message();
}

// A decode step that has begun and is held at the fake device.
class HeldDecode {
 public:
  HeldDecode(TestServer* server, FakeDevice* device) : device_(device), session_(server->Open()) {
    device->Hold();
    call_ = std::async(std::launch::async, [server, session = session_] {
      v1::DecodeStepResponse response;
      return server->Decode(TestStep<v1::DecodeStepRequest>(session, 0, 1), &response);
    });
    device->AwaitHeld();
  }
  uint64_t session() const { return session_; }
  grpc::Status Release() {
    device_->Release();
    return call_.get();
  }

 private:
  FakeDevice* device_;
  uint64_t session_;
  std::future<grpc::Status> call_;
};

TEST(ServerLife, HealthFollowsTheEngineAndTheDrain) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  EXPECT_EQ(Health(server.channel(), ""), kServing);
  EXPECT_EQ(Health(server.channel(), "longshore.v1.Attention"), kServing);
  HeldDecode held(&server, &device);
  std::future<bool> drained = std::async(std::launch::async, [&] { return (*server).Drain(); });
  for (int attempt = 0; attempt < 100 && Health(server.channel(), "") == kServing; ++attempt) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(Health(server.channel(), ""), kNotServing);
  EXPECT_EQ(Health(server.channel(), "longshore.v1.Attention"), kNotServing);
  EXPECT_TRUE(held.Release().ok());
  EXPECT_TRUE(drained.get());
}

TEST(ServerLife, AFullQueueAnswersAtOnce) {
  FakeDevice device;
  Config config = TestConfig();
  config.max_queued_calls = 1;
  TestServer server(config, &device);
  HeldDecode held(&server, &device);
  // Of two calls one finds the only place taken; the other waits.
  std::array<std::future<grpc::Status>, 2> calls;
  for (std::future<grpc::Status>& call : calls) {
    call = std::async(std::launch::async, [&] {
      v1::DecodeStepResponse response;
      return server.Decode(TestStep<v1::DecodeStepRequest>(held.session(), 1, 1), &response);
    });
  }
  while (calls[0].wait_for(milliseconds(1)) != std::future_status::ready) {
    std::swap(calls[0], calls[1]);
  }
  const WireError error = ErrorOf(calls[0].get());
  EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(error.reason, "QUEUE_FULL");
  EXPECT_TRUE(error.retry);
  EXPECT_TRUE(held.Release().ok());
  EXPECT_TRUE(calls[1].get().ok());
}

// Names, policies and padding count as tensors do, in session calls as in steps: whichever of the
// two comes second does not fit beside the first.
TEST(ServerLife, AllBytesOfARequestCountInTheQueue) {
  FakeDevice device;
  Config config = TestConfig();
  const v1::OpenSessionRequest open = TestOpenRequest();
  v1::TruncateSessionRequest truncate;  // small, and padded with a field that nobody knows
  truncate.GetReflection()->MutableUnknownFields(&truncate)->AddLengthDelimited(
      1000, std::string(open.ByteSizeLong(), 'x'));
  config.max_queued_bytes = static_cast<int64_t>(truncate.ByteSizeLong());
  TestServer server(config, &device);
  HeldDecode held(&server, &device);
  truncate.set_session_id(held.session());
  std::array<std::future<grpc::Status>, 2> calls = {
      std::async(std::launch::async,
                 [&] {
                   grpc::ClientContext context;
                   v1::OpenSessionResponse response;
                   return server.sessions().OpenSession(&context, open, &response);
                 }),
      std::async(std::launch::async, [&] {
        grpc::ClientContext context;
        v1::TruncateSessionResponse response;
        return server.sessions().TruncateSession(&context, truncate, &response);
      })};
  for (int attempt = 0; attempt < 5000; ++attempt) {
    if (calls[0].wait_for(milliseconds(1)) == std::future_status::ready) {
      break;
    }
    std::swap(calls[0], calls[1]);
  }
  const bool refused = calls[0].wait_for(milliseconds(0)) == std::future_status::ready;
  EXPECT_TRUE(held.Release().ok());
  ASSERT_TRUE(refused) << "both waited";
  EXPECT_EQ(ErrorOf(calls[0].get()).reason, "QUEUE_FULL");
  EXPECT_TRUE(calls[1].get().ok());
}

TEST(ServerLife, ACallWhoseDeadlinePassesInTheQueueChangesNothing) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  HeldDecode held(&server, &device);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(20));
  v1::DecodeStepResponse response;
  EXPECT_EQ(
      server.attention()
          .DecodeStep(&context, TestStep<v1::DecodeStepRequest>(held.session(), 1, 1), &response)
          .error_code(),
      grpc::StatusCode::DEADLINE_EXCEEDED);
  // The deadline travels as the time that is left, so the server's passes a little later.
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(held.Release().ok());
  EXPECT_EQ(server.Describe(held.session()).layer_tokens(0), 1);
  EXPECT_EQ(device.appends(), 1);
}

TEST(ServerLife, ACallThatIsCancelledAfterItBeganCommits) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  const uint64_t session = server.Open();
  device.Hold();
  grpc::ClientContext context;
  std::future<grpc::Status> call = std::async(std::launch::async, [&] {
    v1::DecodeStepResponse response;
    return server.attention().DecodeStep(&context, TestStep<v1::DecodeStepRequest>(session, 0, 1),
                                         &response);
  });
  device.AwaitHeld();
  context.TryCancel();
  EXPECT_EQ(call.get().error_code(), grpc::StatusCode::CANCELLED);
  device.Release();
  v1::DecodeStepResponse replayed;
  EXPECT_TRUE(server.Decode(TestStep<v1::DecodeStepRequest>(session, 0, 1), &replayed).ok());
  EXPECT_EQ(server.Describe(session).layer_tokens(0), 1);
}

TEST(ServerLife, DrainRefusesNewCallsAndFinishesOldOnes) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  HeldDecode held(&server, &device);
  std::future<bool> drained = std::async(std::launch::async, [&] { return (*server).Drain(); });
  WireError error;
  for (int attempt = 0; attempt < 100 && error.reason != "DRAINING"; ++attempt) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + milliseconds(20));
    v1::ListSessionsResponse response;
    error = ErrorOf(server.sessions().ListSessions(&context, v1::ListSessionsRequest(), &response));
  }
  EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(error.reason, "DRAINING");
  EXPECT_TRUE(error.retry);
  EXPECT_TRUE(held.Release().ok());
  EXPECT_TRUE(drained.get());
}

TEST(ServerLife, DrainAnswersQueuedCallsAtOnceAndChangesNothing) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  const uint64_t session = server.Open();
  HeldDecode held(&server, &device);
  std::future<grpc::Status> queued = std::async(std::launch::async, [&] {
    v1::DecodeStepResponse response;
    return server.Decode(TestStep<v1::DecodeStepRequest>(session, 0, 1), &response);
  });
  std::this_thread::sleep_for(milliseconds(50));  // it may or may not be queued by now
  std::future<bool> drained = std::async(std::launch::async, [&] { return (*server).Drain(); });
  const WireError error = ErrorOf(queued.get());  // while the other one still runs
  EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(error.reason, "DRAINING");
  EXPECT_TRUE(error.retry);
  EXPECT_TRUE(held.Release().ok());
  EXPECT_TRUE(drained.get());
}

TEST(ServerLife, DrainDoesNotWaitForEver) {
  FakeDevice device;
  Config config = TestConfig();
  config.drain_limit = milliseconds(50);
  TestServer server(config, &device);
  HeldDecode held(&server, &device);
  EXPECT_FALSE((*server).Drain());
  EXPECT_NE(access(config.listen[0].unix_path.c_str(), F_OK), 0) << "its socket is gone";
  EXPECT_TRUE(held.Release().ok());
}

// Not CANCELLED, which would be the caller's own doing.
TEST(ServerLife, CallsAfterTheDrainAreRefusedLikeThoseBefore) {
  TestServer server;
  const uint64_t session = server.Open();  // connects
  EXPECT_TRUE((*server).Drain());
  v1::DecodeStepResponse response;
  const WireError error =
      ErrorOf(server.Decode(TestStep<v1::DecodeStepRequest>(session, 0, 1), &response));
  EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(error.reason, "DRAINING");
}

TEST(ServerLife, AnIdleStreamDoesNotHoldUpTheDrain) {
  TestServer server;
  grpc::ClientContext context;
  const auto stream = server.attention().StreamSteps(&context);
  stream->Write(v1::StreamStepsRequest());
  v1::StreamStepsResponse answer;
  EXPECT_TRUE(stream->Read(&answer));
  EXPECT_TRUE((*server).Drain());
  context.TryCancel();
  EXPECT_FALSE(stream->Finish().ok());
}

// Whether the device fails while a step is enqueued or while it runs makes no difference.
TEST(ServerLife, ALostDeviceEndsEverything) {
  for (const FakeVerb verb : {FakeVerb::kAppend, FakeVerb::kAttend, FakeVerb::kWait}) {
    FakeDevice device;
    TestServer server(TestConfig(), &device);
    const uint64_t session = server.Open();
    device.Fail(verb, absl::ResourceExhaustedError("an address of ours: /secret 0x1234"));
    v1::DecodeStepResponse response;
    for (int attempt = 0; attempt < 2; ++attempt) {
      const WireError error =
          ErrorOf(server.Decode(TestStep<v1::DecodeStepRequest>(session, 0, 1), &response));
      EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
      EXPECT_EQ(error.reason, "DEVICE_LOST");
      EXPECT_EQ(error.message.find("secret"), std::string::npos) << error.message;
    }
    EXPECT_TRUE(server.device_lost);
    for (const char* service : {"", "longshore.v1.Attention", "longshore.v1.Server"}) {
      EXPECT_EQ(Health(server.channel(), service), kNotServing) << "before anybody drains";
    }
  }
}

TEST(ServerLife, ADeviceThatFailsWhileASessionOpensIsLost) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  device.Fail(FakeVerb::kCopy, absl::InternalError("an address of ours: /secret 0x1234"));
  grpc::ClientContext context;
  v1::OpenSessionResponse response;
  const WireError error =
      ErrorOf(server.sessions().OpenSession(&context, TestOpenRequest(), &response));
  EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(error.reason, "DEVICE_LOST");
  EXPECT_EQ(error.message.find("secret"), std::string::npos) << error.message;
  EXPECT_TRUE(server.device_lost);
}

TEST(ServerLife, BeforeTheEngineIsThereCallsAnswerLoading) {
  FakeDevice device;
  std::promise<void> gate;
  const absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(
      TestConfig(),
      [&]() -> absl::StatusOr<std::unique_ptr<Backend>> {
        gate.get_future().wait();
        return std::make_unique<FakeBackend>(&device);
      },
      [] {});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto channel =
      grpc::CreateChannel((*server)->addresses()[0].ToString(), grpc::InsecureChannelCredentials());
  const char* const services[] = {"", "longshore.v1.Attention", "longshore.v1.Sessions",
                                  "longshore.v1.Server"};
  for (const char* service : services) {
    EXPECT_EQ(Health(channel, service), kNotServing) << service;
  }
  grpc::ClientContext open_context;
  v1::OpenSessionResponse opened;
  WireError error = ErrorOf(
      v1::Sessions::NewStub(channel)->OpenSession(&open_context, TestOpenRequest(), &opened));
  EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(error.reason, "LOADING");
  EXPECT_TRUE(error.retry);
  grpc::ClientContext info_context;
  v1::GetServerInfoResponse info;
  EXPECT_EQ(ErrorOf(v1::Server::NewStub(channel)->GetServerInfo(&info_context,
                                                                v1::GetServerInfoRequest(), &info))
                .reason,
            "LOADING");
  gate.set_value();
  EXPECT_TRUE((*server)->WaitReady().ok());
  for (const char* service : services) {
    EXPECT_EQ(Health(channel, service), kServing) << service;
  }
}

}  // namespace
}  // namespace longshore
