// The pages of a whole server: readiness, and what the status page shows of sessions.

#include <chrono>
#include <future>
#include <string>
#include <thread>

#include <absl/strings/match.h>
#include <gtest/gtest.h>

#include "service/status_board.h"
#include "tests/service/http_get.h"
#include "tests/service/test_server.h"

namespace longshore {
namespace {

using std::chrono::milliseconds;

Config WithHttp() {
  Config config = TestConfig();
  config.metrics_listen = {*ParseAddress("127.0.0.1:0")};
  return config;
}

TEST(HttpPages, MetricsAreInPrometheusTextFormat) {
  TestServer server(WithHttp());
  const std::string answer = HttpGet((*server).metrics_port(), "/metrics");
  EXPECT_TRUE(
      absl::StrContains(answer, "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"))
      << answer;
}

TEST(HttpPages, ReadinessFollowsTheEngine) {
  FakeDevice device;
  std::promise<void> gate;
  const absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(
      WithHttp(),
      [&]() -> absl::StatusOr<std::unique_ptr<Backend>> {
        gate.get_future().wait();
        return std::make_unique<FakeBackend>(&device);
      },
      [] {});
  ASSERT_TRUE(server.ok()) << server.status();
  const int32_t port = (*server)->metrics_port();
  const std::string loading = HttpGet(port, "/readyz");
  EXPECT_TRUE(absl::StartsWith(loading, "HTTP/1.1 503 ")) << loading;
  EXPECT_TRUE(absl::EndsWith(loading, "\r\n\r\nloading\n")) << loading;
  EXPECT_TRUE(absl::StartsWith(HttpGet(port, "/healthz"), "HTTP/1.1 200 "));
  EXPECT_TRUE(absl::StrContains(HttpGet(port, "/"), "no backend yet"));
  EXPECT_TRUE(absl::StrContains(HttpGet(port, "/metrics"), "\nlongshore_ready 0\n"));
  gate.set_value();
  ASSERT_TRUE((*server)->WaitReady().ok());
  EXPECT_TRUE(absl::StartsWith(HttpGet(port, "/readyz"), "HTTP/1.1 200 "));
  EXPECT_TRUE(absl::StrContains(HttpGet(port, "/metrics"), "\nlongshore_ready 1\n"));
}

// A drain waits for the step that is held at the device, and says so meanwhile.
TEST(HttpPages, ADrainingDaemonIsNotReady) {
  FakeDevice device;
  TestServer server(WithHttp(), &device);
  const int32_t port = (*server).metrics_port();
  const uint64_t session = server.Open();
  device.Hold();
  std::future<grpc::Status> held = std::async(std::launch::async, [&] {
    v1::DecodeStepResponse response;
    return server.Decode(TestStep<v1::DecodeStepRequest>(session, 0, 1), &response);
  });
  device.AwaitHeld();
  std::future<bool> drained = std::async(std::launch::async, [&] { return (*server).Drain(); });
  std::string answer = HttpGet(port, "/readyz");
  for (int attempt = 0; attempt < 100 && absl::StartsWith(answer, "HTTP/1.1 200"); ++attempt) {
    std::this_thread::sleep_for(milliseconds(1));
    answer = HttpGet(port, "/readyz");
  }
  EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 503 ")) << answer;
  EXPECT_TRUE(absl::EndsWith(answer, "\r\n\r\ndraining\n")) << answer;
  device.Release();
  EXPECT_TRUE(held.get().ok());
  EXPECT_TRUE(drained.get());
}

TEST(HttpPages, ALostDeviceIsNamed) {
  FakeDevice device;
  TestServer server(WithHttp(), &device);
  const uint64_t session = server.Open();
  device.Fail(FakeVerb::kAppend, absl::InternalError("gone"));
  v1::DecodeStepResponse response;
  EXPECT_FALSE(server.Decode(TestStep<v1::DecodeStepRequest>(session, 0, 1), &response).ok());
  const std::string answer = HttpGet((*server).metrics_port(), "/readyz");
  EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 503 ")) << answer;
  EXPECT_TRUE(absl::EndsWith(answer, "\r\n\r\ndevice lost\n")) << answer;
}

TEST(HttpPages, SessionsAreShownWhileTheyAreOpen) {
  TestServer server(WithHttp());
  const int32_t port = (*server).metrics_port();
  v1::OpenSessionRequest open = TestOpenRequest();
  open.set_name("<b>bold</b>");
  const uint64_t session = server.Open(open);
  std::string page = HttpGet(port, "/");
  EXPECT_TRUE(absl::StrContains(page, "&lt;b&gt;bold&lt;/b&gt;")) << page;
  EXPECT_TRUE(absl::StrContains(page, absl::StrCat(session))) << page;
  EXPECT_FALSE(absl::StrContains(page, "<b>bold"));
  grpc::ClientContext context;
  v1::CloseSessionRequest close;
  close.set_session_id(session);
  v1::CloseSessionResponse closed;
  ASSERT_TRUE(server.sessions().CloseSession(&context, close, &closed).ok());
  page = HttpGet(port, "/");
  EXPECT_TRUE(absl::StrContains(page, "No session is open.")) << page;
}

TEST(StatusBoard, ADeviceThatWasLostStaysLost) {
  StatusBoard board("id");
  EXPECT_EQ(board.readiness(), Readiness::kLoading);
  board.SetReadiness(Readiness::kDeviceLost);
  board.SetReadiness(Readiness::kDraining);
  EXPECT_EQ(board.readiness(), Readiness::kDeviceLost);
}

// Between two looks nothing is copied, unless a session was opened or closed.
TEST(StatusBoard, LooksAtSessionsNowAndThen) {
  FakeDevice device;
  const auto engine =
      Engine::Create({.pool_bytes = int64_t{64} << 20}, std::make_unique<FakeBackend>(&device));
  ASSERT_TRUE(engine.ok()) << engine.status();
  StatusBoard board("id");
  int lines = 0;
  const auto count = [&lines](SessionLine* line) {
    ++lines;
    line->lease_seconds = 30;
  };
  board.Update(**engine, count);
  SessionSpec spec;
  spec.name = "one";
  spec.model.num_layers = 2;
  spec.model.num_heads = 2;
  spec.model.num_kv_heads = 1;
  spec.model.head_dim = 64;
  spec.policy = *PresetPolicy("dense");
  spec.max_tokens = 100;
  ASSERT_TRUE((*engine)->Open(spec).ok());
  board.Update(**engine, count);
  EXPECT_EQ(lines, 1);
  const StatusBoard::View view = board.Read();
  ASSERT_EQ(view.sessions.size(), 1U);
  EXPECT_EQ(view.sessions[0].name, "one");
  EXPECT_EQ(view.sessions[0].max_tokens, 100);
  EXPECT_EQ(view.sessions[0].lease_seconds, 30);
  EXPECT_GT(view.sessions[0].bytes_reserved, 0);
  board.Update(**engine, count);
  EXPECT_EQ(lines, 1) << "it looked again at once";
  std::this_thread::sleep_for(StatusBoard::kPeriod);
  board.Update(**engine, count);
  EXPECT_EQ(lines, 2);
}

}  // namespace
}  // namespace longshore
