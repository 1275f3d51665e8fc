#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

namespace longshore {

/// A connection to 127.0.0.1:port.
class HttpConnection {
 public:
  explicit HttpConnection(int32_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(static_cast<uint16_t>(port));
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;
  ~HttpConnection() { close(fd_); }

  void Send(const std::string& bytes) {
    EXPECT_EQ(write(fd_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  /// The server has neither answered nor closed.
  bool Waits() const {
    char byte = 0;
    return recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }
  /// All that comes until the server closes.
  std::string Receive() {
    std::string answer;
    char part[4096];
    for (ssize_t count = 0; (count = read(fd_, part, sizeof(part))) > 0;) {
      answer.append(part, static_cast<size_t>(count));
    }
    return answer;
  }

 private:
  int fd_;
};

/// The whole answer, head included, of 127.0.0.1:port to the bytes of a request.
inline std::string HttpAnswerTo(int32_t port, const std::string& request) {
  HttpConnection connection(port);
  connection.Send(request);
  return connection.Receive();
}

/// The same of GET http://127.0.0.1:port/path.
inline std::string HttpGet(int32_t port, const std::string& path) {
  return HttpAnswerTo(port, "GET " + path + " HTTP/1.0\r\n\r\n");
}

}  // namespace longshore
