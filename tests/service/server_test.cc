#include "service/server.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <future>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>

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
  const grpc::Status status = RawCall(channel, "/grpc.health.v1.Health/Check", request, &response);
  return status.ok() ? response : status.error_message();
}

// Writes bytes to the server's socket and hangs up.
void SendGarbage(const Address& address, const std::string& bytes) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, address.unix_path.data(), address.unix_path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  EXPECT_GE(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  close(fd);
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

TEST(Server, SaysWhatItIs) {
  TestServer server;
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(v1::Server::NewStub(server.channel())
                  ->GetServerInfo(&context, v1::GetServerInfoRequest(), &info)
                  .ok());
  EXPECT_EQ(info.instance_id(), (*server).instance_id());
  EXPECT_EQ(info.instance_id().size(), 32U);
  EXPECT_FALSE(info.version().empty());
  EXPECT_EQ(info.backends(0).name(), "cpu");
  EXPECT_EQ(info.backends(0).threads(), 1);
  EXPECT_EQ(info.limits().pool_bytes(), 64 << 20);
  EXPECT_EQ(info.limits().max_message_bytes(), 64 << 20);
  EXPECT_EQ(info.presets(0), "standard");
}

TEST(Server, RegionsAreUnimplemented) {
  TestServer server;
  const auto regions = v1::Regions::NewStub(server.channel());
  grpc::ClientContext open_context;
  v1::OpenRegionResponse opened;
  const WireError error =
      ErrorOf(regions->OpenRegion(&open_context, v1::OpenRegionRequest(), &opened));
  EXPECT_EQ(error.code, grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(error.reason, "NOT_IMPLEMENTED");
  grpc::ClientContext close_context;
  v1::CloseRegionResponse closed;
  EXPECT_EQ(ErrorOf(regions->CloseRegion(&close_context, v1::CloseRegionRequest(), &closed)).code,
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST(Server, ReflectionListsTheServices) {
  TestServer server;
  // ServerReflectionRequest{list_services: "*"}
  const std::string answer =
      RawExchange(server.channel(),
                  "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*")
          .Await();
  for (const char* service :
       {"longshore.v1.Attention", "longshore.v1.Sessions", "longshore.v1.Server",
        "longshore.v1.Regions", "grpc.health.v1.Health"}) {
    EXPECT_NE(answer.find(service), std::string::npos) << service;
  }
}

TEST(Server, HealthFollowsTheEngineAndTheDrain) {
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

TEST(Server, BeforeTheEngineIsThereCallsAnswerLoading) {
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
  EXPECT_EQ(Health(channel, ""), kNotServing);
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
  EXPECT_EQ(Health(channel, ""), kServing);
}

TEST(Server, AFullQueueAnswersAtOnce) {
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

TEST(Server, ACallWhoseDeadlinePassesInTheQueueChangesNothing) {
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
  EXPECT_TRUE(held.Release().ok());
  EXPECT_EQ(server.Describe(held.session()).layer_tokens(0), 1);
  EXPECT_EQ(device.appends(), 1);
}

TEST(Server, ACallThatIsCancelledAfterItBeganCommits) {
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

TEST(Server, DrainRefusesNewCallsAndFinishesOldOnes) {
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

TEST(Server, DrainDoesNotWaitForEver) {
  FakeDevice device;
  Config config = TestConfig();
  config.drain_limit = milliseconds(50);
  TestServer server(config, &device);
  HeldDecode held(&server, &device);
  EXPECT_FALSE((*server).Drain());
  EXPECT_NE(access(config.listen[0].unix_path.c_str(), F_OK), 0) << "its socket is gone";
  EXPECT_TRUE(held.Release().ok());
}

TEST(Server, AnIdleStreamDoesNotHoldUpTheDrain) {
  TestServer server;
  grpc::ClientContext context;
  const auto stream = server.attention().StreamSteps(&context);
  stream->Write(v1::StreamStepsRequest());
  v1::StreamStepsResponse answer;
  EXPECT_TRUE(stream->Read(&answer));
  EXPECT_TRUE((*server).Drain());
  EXPECT_FALSE(stream->Finish().ok());
}

TEST(Server, ALostDeviceEndsEverything) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  const uint64_t session = server.Open();
  device.FailWaits(absl::InternalError("an address of ours: /secret 0x1234"));
  v1::DecodeStepResponse response;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const WireError error =
        ErrorOf(server.Decode(TestStep<v1::DecodeStepRequest>(session, 0, 1), &response));
    EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(error.reason, "DEVICE_LOST");
    EXPECT_EQ(error.message.find("secret"), std::string::npos) << error.message;
  }
  EXPECT_TRUE(server.device_lost);
}

TEST(Server, GarbageOnTheSocketHarmsNobody) {
  TestServer server;
  const uint64_t session = server.Open();
  std::mt19937 random(1);
  for (int attempt = 0; attempt < 20; ++attempt) {
    std::string garbage = attempt % 2 == 0 ? "" : "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (int byte = 0; byte < 2000; ++byte) {
      garbage.push_back(static_cast<char>(random()));
    }
    SendGarbage((*server).addresses()[0], garbage);
  }
  SendGarbage((*server).addresses()[0], "GET / HTTP/1.1\r\n\r\n");
  v1::PrefillResponse response;
  EXPECT_TRUE(server.Prefill(TestStep<v1::PrefillRequest>(session, 0, 10), &response).ok());
}

TEST(Server, BytesThatAreNoMessageAreInvalid) {
  TestServer server;
  const uint64_t session = server.Open();
  std::string response;
  for (const char* method :
       {"/longshore.v1.Attention/Prefill", "/longshore.v1.Attention/DecodeStep",
        "/longshore.v1.Attention/AppendKV", "/longshore.v1.Sessions/OpenSession",
        "/longshore.v1.Sessions/CloseSession", "/longshore.v1.Server/GetServerInfo",
        "/longshore.v1.Regions/OpenRegion"}) {
    // Garbage, and a field that is cut short.
    for (const char* bytes : {"\xff\xff\xff\xff garbage", "\x12\x7f"}) {
      const WireError error = ErrorOf(RawCall(server.channel(), method, bytes, &response));
      EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT) << method << error.message;
      EXPECT_EQ(error.reason, "MALFORMED_MESSAGE");
    }
  }
  EXPECT_EQ(RawCall(server.channel(), "/longshore.v1.Attention/NoSuch", "", &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  v1::PrefillResponse prefilled;
  EXPECT_TRUE(server.Prefill(TestStep<v1::PrefillRequest>(session, 0, 10), &prefilled).ok());
}

TEST(Server, BytesThatAreNoMessageDoNotEndAStream) {
  TestServer server;
  v1::StreamStepsResponse answer;
  ASSERT_TRUE(answer.ParseFromString(
      RawExchange(server.channel(), "/longshore.v1.Attention/StreamSteps", "\xff\xff\xff")
          .Await()));
  EXPECT_EQ(ErrorOf(answer.status()).reason, "MALFORMED_MESSAGE");
}

TEST(Server, SessionIdsOfTwoProcessesDiffer) {
  TestServer first;
  TestServer second;
  const uint64_t id = first.Open();
  EXPECT_GE(id, uint64_t{1} << 32);
  EXPECT_LE(id, uint64_t{1} << 63);
  EXPECT_NE(id, second.Open());
}

TEST(Server, AMessageAboveTheLimitIsRefused) {
  Config config = TestConfig();
  config.max_message_bytes = 100'000;
  TestServer server(config);
  const uint64_t session = server.Open();
  v1::PrefillResponse response;
  EXPECT_EQ(server.Prefill(TestStep<v1::PrefillRequest>(session, 0, 100), &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(server.Prefill(TestStep<v1::PrefillRequest>(session, 0, 20), &response).ok());
}

TEST(Server, TheSocketIsForOwnerAndGroupAndGoesWithTheServer) {
  TestServer server;
  const std::string path = (*server).addresses()[0].unix_path;
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0660U);
  server.Destroy();
  EXPECT_NE(stat(path.c_str(), &info), 0);
}

TEST(Server, ASocketOrPortThatIsTakenIsAnError) {
  Config config = TestConfig();
  config.listen.push_back(*ParseAddress("127.0.0.1:0"));
  TestServer server(config);
  const auto no_backend = []() -> absl::StatusOr<std::unique_ptr<Backend>> {
    return absl::InternalError("not reached");
  };
  for (const Address& address : (*server).addresses()) {
    Config second = TestConfig();
    second.listen = {address};
    const absl::Status status = Server::Start(second, no_backend, [] {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_NE(status.message().find(address.ToString()), absl::string_view::npos) << status;
  }
  EXPECT_NE(server.Open(), 0U) << "the first one still serves";
}

}  // namespace
}  // namespace longshore
