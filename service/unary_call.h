#pragma once

#include <chrono>
#include <memory>

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include "service/errors.h"
#include "service/messages.h"
#include "service/metrics.h"

namespace longshore {

/// What gRPC hands to a handler of bytes. All three live until the call is finished.
struct RawCall {
  grpc::CallbackServerContext* context;
  const grpc::ByteBuffer* request;
  grpc::ByteBuffer* response;
};

/// A unary call between its bytes and its answer: parses the request, holds both messages, and
/// counts, logs and sends the outcome.
template <typename Request, typename Response>
class UnaryCall {
 public:
  /// Parses. When that fails the call is answered already, and `refused()`.
  UnaryCall(Method method, const RawCall& raw, Metrics* metrics)
      : method_(method),
        raw_(raw),
        metrics_(metrics),
        reactor_(raw.context->DefaultReactor()),
        request_bytes_(static_cast<int64_t>(raw.request->Length())) {
    // gRPC hands out a const view of bytes that it has no further use for.
    absl::Status parsed = ParseMessage(const_cast<grpc::ByteBuffer*>(raw.request), &request_);
    if (!parsed.ok()) {
      refused_ = true;
      Finish(parsed);
    }
  }

  bool refused() const { return refused_; }
  const Request& request() const { return request_; }
  /// Of the request as it came, all of its fields and what we do not know of it.
  int64_t request_bytes() const { return request_bytes_; }
  Response* response() { return &response_; }
  grpc::CallbackServerContext* context() const { return raw_.context; }
  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

  /// Answers; once, from any thread.
  void Finish(const absl::Status& status) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    metrics_->CountRequest(method_, status, elapsed.count());
    if (!status.ok()) {
      spdlog::debug("{} refused: {}", NameOf(method_), LogText(status));
    }
    Send(status);
  }
  /// The same, for a call that is counted elsewhere.
  void Send(absl::Status status) {
    if (status.ok()) {
      status = SerializeMessage(response_, raw_.response);
    }
    reactor_->Finish(ToGrpcStatus(status));
  }

 private:
  Method method_;
  RawCall raw_;
  Metrics* metrics_;
  grpc::ServerUnaryReactor* reactor_;
  int64_t request_bytes_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool refused_ = false;
  Request request_;
  Response response_;
};

}  // namespace longshore
