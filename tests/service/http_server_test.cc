#include "service/http_server.h"

#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/service/http_get.h"

namespace longshore {
namespace {

std::unique_ptr<HttpServer> StartServer(const char* address = "127.0.0.1:0") {
  HttpServer::Pages pages;
  pages["/"] = [] { return HttpAnswer{.content_type = "text/html", .body = "<p>hello</p>"}; };
  pages["/broken"] = [] { return HttpAnswer{.code = 503, .body = "not now\n"}; };
  pages["/greedy"] = []() -> HttpAnswer { throw std::bad_alloc(); };
  pages["/large"] = [] { return HttpAnswer{.body = std::string(3 << 20, 'x')}; };
  auto server = HttpServer::Start(*ParseAddress(address), std::move(pages));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

std::string BodyOf(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

TEST(HttpServer, ServesItsPages) {
  const auto server = StartServer();
  const std::string answer = HttpGet(server->port(), "/");
  EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_TRUE(absl::StrContains(answer, "\r\nContent-Type: text/html\r\n")) << answer;
  EXPECT_TRUE(absl::StrContains(answer, "\r\nContent-Length: 12\r\n")) << answer;
  EXPECT_TRUE(absl::StrContains(answer, "default-src 'none'")) << answer;
  EXPECT_EQ(BodyOf(answer), "<p>hello</p>");
  EXPECT_EQ(BodyOf(HttpGet(server->port(), "/?some=query")), "<p>hello</p>");
  const std::string broken = HttpGet(server->port(), "/broken");
  EXPECT_TRUE(absl::StartsWith(broken, "HTTP/1.1 503 Service Unavailable\r\n")) << broken;
  EXPECT_EQ(BodyOf(broken), "not now\n");
  EXPECT_EQ(BodyOf(HttpGet(server->port(), "/large")).size(), size_t{3} << 20);
}

TEST(HttpServer, HeadIsGetWithoutTheBody) {
  const auto server = StartServer();
  const std::string answer = HttpAnswerTo(server->port(), "HEAD / HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_TRUE(absl::StrContains(answer, "\r\nContent-Length: 12\r\n")) << answer;
  EXPECT_EQ(BodyOf(answer), "");
}

TEST(HttpServer, RefusesWhatItDoesNotKnow) {
  const auto server = StartServer();
  for (const char* path : {"/etc/passwd", "/../../etc/passwd", "/metrics", "/index.html"}) {
    const std::string answer = HttpGet(server->port(), path);
    EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 404 ")) << path << "\n" << answer;
    EXPECT_FALSE(absl::StrContains(answer, "root:")) << path;
  }
  for (const char* request :
       {"POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", "DELETE / HTTP/1.0\r\n\r\n",
        "PUT /broken HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
        "OPTIONS / HTTP/1.0\r\nOrigin: http://x\r\nAccess-Control-Request-Method: GET\r\n\r\n"}) {
    const std::string answer = HttpAnswerTo(server->port(), request);
    EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 405 ")) << request << "\n" << answer;
    EXPECT_TRUE(absl::StrContains(answer, "\r\nAllow: GET, HEAD\r\n")) << answer;
  }
  for (const std::string& request :
       {std::string("nonsense\r\n\r\n"), std::string(64, '\0') + "\r\n\r\n",
        "GET /" + std::string(100'000, 'a') + " HTTP/1.0\r\n\r\n"}) {
    const std::string answer = HttpAnswerTo(server->port(), request);
    EXPECT_FALSE(absl::StrContains(answer, " 200 ")) << answer;
  }
  EXPECT_TRUE(absl::StrContains(HttpGet(server->port(), "/"), "hello")) << "and it still serves";
}

TEST(HttpServer, APageThatFindsNoMemoryFailsAlone) {
  const auto server = StartServer();
  const std::string answer = HttpGet(server->port(), "/greedy");
  EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 500 ")) << answer;
  EXPECT_TRUE(absl::StrContains(HttpGet(server->port(), "/"), "hello"));
}

// As browsers do it, to have one at hand.
TEST(HttpServer, ConnectionsThatAskForNothingDoNotKeepOthersWaiting) {
  const auto server = StartServer();
  std::vector<std::unique_ptr<HttpConnection>> silent;
  for (int connection = 0; connection < 8; ++connection) {
    silent.push_back(std::make_unique<HttpConnection>(server->port()));
    silent.back()->Send("GET /");
  }
  EXPECT_TRUE(absl::StrContains(HttpGet(server->port(), "/"), "hello"));
  for (const auto& connection : silent) {
    EXPECT_TRUE(connection->Waits()) << "none had to end first";
  }
}

TEST(HttpServer, StopsAtOnce) {
  for (const char* address : {"127.0.0.1:0", "localhost:0"}) {
    auto server = StartServer(address);
    EXPECT_TRUE(absl::StrContains(HttpGet(server->port(), "/"), "hello")) << address;
    const auto start = std::chrono::steady_clock::now();
    server.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1000)) << address;
  }
}

TEST(HttpServer, ATakenPortIsNamed) {
  const auto first = StartServer();
  const std::string address = absl::StrCat("127.0.0.1:", first->port());
  const auto second = HttpServer::Start(*ParseAddress(address), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(second.status().message(), address)) << second.status();
}

}  // namespace
}  // namespace longshore
