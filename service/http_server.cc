#include "service/http_server.h"

#include <civetweb.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include <absl/strings/str_cat.h>
#include <spdlog/spdlog.h>

namespace longshore {
namespace {

// What a browser may do with any of our pages: show it, with the styles inside it. Nothing is
// loaded, sent, framed or kept.
constexpr char kHeaders[] =
    "Cache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Connection: close\r\n";

const char* NameOfCode(int32_t code) {
  switch (code) {
    case 200: return "OK";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 503: return "Service Unavailable";
    default: return "Internal Server Error";
  }
}

// civetweb would write to stderr.
int LogMessage(const mg_connection* /*connection*/, const char* message) {
  spdlog::debug("http: {}", message);
  return 1;
}

// Connects and hangs up.
void Knock(const Address& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  if (getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) != 0) {
    return;
  }
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
      (void)connect(fd, at->ai_addr, at->ai_addrlen);  // whether it gets through is no matter
      close(fd);
    }
  }
  freeaddrinfo(found);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Address& address, Pages pages) {
  auto server = std::unique_ptr<HttpServer>(new HttpServer(address, std::move(pages)));
  const std::string listen = address.ToString();
  const char* options[] = {"listening_ports",
                           listen.c_str(),
                           "num_threads",
                           "16",
                           "request_timeout_ms",
                           "2000",
                           "tcp_nodelay",
                           "1",
                           nullptr};
  mg_callbacks callbacks{};
  callbacks.begin_request = &HttpServer::Handle;
  callbacks.log_message = &LogMessage;
  server->context_ = mg_start(&callbacks, server.get(), options);
  if (server->context_ == nullptr) {  // civetweb says no more than that it failed
    return absl::FailedPreconditionError(absl::StrCat(
        "metrics cannot be served at ", listen,
        ": is the port in use? Choose another with --metrics-listen, or \"\" for none"));
  }
  mg_server_port port{};
  if (mg_get_server_ports(server->context_, 1, &port) == 1) {
    server->address_.port = port.port;
  }
  return server;
}

// civetweb looks at its stop flag when somebody connects, or every two seconds: a drain would wait
// for that longer than for anything else.
HttpServer::~HttpServer() {
  if (context_ == nullptr) {
    return;
  }
  static constexpr std::chrono::milliseconds kPause{5};
  std::atomic<bool> stopped = false;
  std::thread knocking([this, &stopped] {
    while (!stopped) {
      std::this_thread::sleep_for(kPause);
      Knock(address_);
    }
  });
  mg_stop(context_);
  stopped = true;
  knocking.join();
}

HttpAnswer HttpServer::AnswerTo(const std::string& method, const std::string& path) const {
  const auto page = pages_.find(path);
  if (page == pages_.end()) {
    HttpAnswer answer{.code = 404, .body = "no such page; there are:"};
    for (const auto& [known, unused] : pages_) {
      absl::StrAppend(&answer.body, " ", known);
    }
    answer.body += "\n";
    return answer;
  }
  if (method != "GET" && method != "HEAD") {
    return {.code = 405, .body = "only GET and HEAD\n"};
  }
  try {
    return page->second();
  } catch (const std::bad_alloc&) {  // the frames below are C
    return {.code = 500, .body = "no memory\n"};
  }
}

// Takes every request, so that civetweb itself serves nothing.
int HttpServer::Handle(mg_connection* connection) {
  const mg_request_info* request = mg_get_request_info(connection);
  const auto* server = static_cast<const HttpServer*>(request->user_data);
  const std::string method = request->request_method;
  const HttpAnswer answer = server->AnswerTo(method, request->local_uri);
  std::string text = absl::StrCat("HTTP/1.1 ", answer.code, " ", NameOfCode(answer.code), "\r\n");
  absl::StrAppend(&text, "Content-Type: ", answer.content_type, "\r\n");
  absl::StrAppend(&text, "Content-Length: ", answer.body.size(), "\r\n");
  absl::StrAppend(&text, answer.code == 405 ? "Allow: GET, HEAD\r\n" : "", kHeaders, "\r\n");
  if (method != "HEAD") {
    text += answer.body;
  }
  mg_write(connection, text.data(), text.size());
  return answer.code;
}

}  // namespace longshore
