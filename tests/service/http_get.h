#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

namespace longshore {

/// The whole answer, head included, of 127.0.0.1:port to the bytes of a request.
inline std::string HttpAnswerTo(int32_t port, const std::string& request) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(port));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char part[4096];
  for (ssize_t count = 0; (count = read(fd, part, sizeof(part))) > 0;) {
    answer.append(part, static_cast<size_t>(count));
  }
  close(fd);
  return answer;
}

/// The same of GET http://127.0.0.1:port/path.
inline std::string HttpGet(int32_t port, const std::string& path) {
  return HttpAnswerTo(port, "GET " + path + " HTTP/1.0\r\n\r\n");
}

}  // namespace longshore
