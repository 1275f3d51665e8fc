#include "service/server.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "tests/service/raw_call.h"
#include "tests/service/test_server.h"

namespace longshore {
namespace {

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
      const WireError error = ErrorOf(CallRaw(server.channel(), method, bytes, &response));
      EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT) << method << error.message;
      EXPECT_EQ(error.reason, "MALFORMED_MESSAGE");
    }
  }
  EXPECT_EQ(CallRaw(server.channel(), "/longshore.v1.Attention/NoSuch", "", &response).error_code(),
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
