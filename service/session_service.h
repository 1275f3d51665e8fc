#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "longshore/v1/session.grpc.pb.h"
#include "service/device_queue.h"
#include "service/metrics.h"
#include "service/session_registry.h"
#include "service/unary_call.h"

namespace longshore {

/// The Sessions service with handlers that take bytes; see ParseMessage().
using SessionsBase = v1::Sessions::WithRawCallbackMethod_OpenSession<
    v1::Sessions::WithRawCallbackMethod_DescribeSession<
        v1::Sessions::WithRawCallbackMethod_ListSessions<
            v1::Sessions::WithRawCallbackMethod_TruncateSession<
                v1::Sessions::WithRawCallbackMethod_CloseSession<v1::Sessions::Service>>>>>;

/// How long sessions live without a call.
struct LeaseLimits {
  std::chrono::milliseconds default_lease;  ///< of one that does not say
  std::chrono::milliseconds max_lease;
};

/// The wire's Sessions service: each call is one job of the queue. No state besides references.
class SessionService final : public SessionsBase {
 public:
  SessionService(std::string instance_id,
                 const LeaseLimits& leases,
                 SessionRegistry* registry,
                 DeviceQueue* queue,
                 Metrics* metrics)
      : instance_id_(std::move(instance_id)),
        leases_(leases),
        registry_(registry),
        queue_(queue),
        metrics_(metrics) {}

  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DescribeSession(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* TruncateSession(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;

 private:
  struct Opening;  // what an OpenSession call asks for, checked

  absl::StatusOr<Opening> CheckOpen(const v1::OpenSessionRequest& request,
                                    const grpc::CallbackServerContext& context) const;
  absl::Status Open(Opening* opening, Engine& engine, v1::OpenSessionResponse* answer);
  // Queues `body`, (Engine&, const Request&, Response*) -> Status, and answers the call with what
  // it returns.
  template <typename Request, typename Response, typename Body>
  grpc::ServerUnaryReactor* Queue(std::shared_ptr<UnaryCall<Request, Response>> call, Body body);

  const std::string instance_id_;
  const LeaseLimits leases_;
  SessionRegistry* registry_;
  DeviceQueue* queue_;
  Metrics* metrics_;
};

}  // namespace longshore
