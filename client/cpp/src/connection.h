#pragma once

#include <memory>
#include <string>

#include <absl/status/status.h>
#include <absl/time/clock.h>
#include <grpcpp/grpcpp.h>

#include "longshore/client/client.h"
#include "longshore/v1/attention.grpc.pb.h"
#include "longshore/v1/server.grpc.pb.h"
#include "longshore/v1/session.grpc.pb.h"

namespace longshore::client {

/// What a call is to the retry policy.
enum class Repeat : uint8_t {
  kRead,   ///< changes nothing: may always be sent again
  kOpen,   ///< has an open_id
  kReplay  ///< concerns a session that only lives in this instance of the daemon
};

/// Whether a call that failed with `status` is to be sent again, and how long to wait before:
/// nothing for no.
std::optional<absl::Duration> PauseBeforeRepeat(const absl::Status& status,
                                                Repeat repeat,
                                                const RetryPolicy& policy,
                                                int32_t attempts);

/// A new channel to `target`, with options that suit a daemon on the same host: any message size,
/// no web proxy, a connection of its own.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target);

/// A point in time as gRPC takes deadlines.
std::chrono::system_clock::time_point ToDeadline(absl::Time time);

/// One channel to a daemon, and the calls of the wire contract on it. Thread-safe.
class Connection {
 public:
  Connection(std::string target, const RetryPolicy& retry);

  /// Calls a stub's unary method until it succeeds, may not be repeated, or its time is over.
  template <typename Stub, typename Request, typename Response>
  absl::Status Call(Stub* stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request,
                    Response* response,
                    Repeat repeat,
                    const CallOptions& options) {
    const absl::Time deadline = absl::Now() + options.timeout;
    for (int32_t attempts = 1;; ++attempts) {
      grpc::ClientContext context;
      context.set_deadline(ToDeadline(deadline));
      absl::Status status = ToStatus((stub->*method)(&context, request, response));
      if (status.ok() || !WaitToRepeat(status, repeat, attempts, deadline)) {
        return status;
      }
    }
  }

  /// What a call's status means for a caller.
  absl::Status ToStatus(const grpc::Status& status) const;

  const std::string& target() const { return target_; }
  v1::Attention::Stub* attention() const { return attention_.get(); }
  v1::Sessions::Stub* sessions() const { return sessions_.get(); }
  v1::Server::Stub* server() const { return server_.get(); }

 private:
  // Sleeps and returns true if the call is to be sent again.
  bool WaitToRepeat(const absl::Status& status,
                    Repeat repeat,
                    int32_t attempts,
                    absl::Time deadline) const;

  std::string target_;
  RetryPolicy retry_;
  std::unique_ptr<v1::Attention::Stub> attention_;
  std::unique_ptr<v1::Sessions::Stub> sessions_;
  std::unique_ptr<v1::Server::Stub> server_;
};

}  // namespace longshore::client
