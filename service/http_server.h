#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "service/address.h"

struct mg_connection;
struct mg_context;

namespace longshore {

struct HttpAnswer {
  int32_t code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

/// Answers GET and HEAD of a few pages at http://address/ until it is destroyed: a page that is not
/// there with 404, another method with 405. Hides civetweb.
///
/// Sixteen threads, each with one client, who has two seconds to say what it wants: browsers keep a
/// connection or two open that they may never use, and probes of readiness wait for no more than a
/// second.
class HttpServer {
 public:
  /// Makes a page anew for each request. On a thread of the server's; may throw std::bad_alloc.
  using Page = std::function<HttpAnswer()>;
  using Pages = std::map<std::string, Page, std::less<>>;  ///< by path

  /// FailedPrecondition names the address when it cannot be had.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Address& address, Pages pages);
  /// A request that has begun is answered.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// The one that was chosen for port 0.
  int32_t port() const { return address_.port; }

 private:
  HttpServer(Address address, Pages pages)
      : address_(std::move(address)),
        pages_(std::move(pages)) {}

  static int Handle(mg_connection* connection);
  HttpAnswer AnswerTo(const std::string& method, const std::string& path) const;

  Address address_;
  const Pages pages_;
  mg_context* context_ = nullptr;
};

}  // namespace longshore
