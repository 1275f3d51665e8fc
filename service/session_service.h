#pragma once

#include <string>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "longshore/v1/session.grpc.pb.h"
#include "service/device_queue.h"
#include "service/metrics.h"

namespace longshore {

/// The Sessions service with handlers that take bytes; see ParseMessage().
using SessionsBase = v1::Sessions::WithRawCallbackMethod_OpenSession<
    v1::Sessions::WithRawCallbackMethod_DescribeSession<
        v1::Sessions::WithRawCallbackMethod_ListSessions<
            v1::Sessions::WithRawCallbackMethod_TruncateSession<
                v1::Sessions::WithRawCallbackMethod_CloseSession<v1::Sessions::Service>>>>>;

/// The wire's Sessions service: each call is one job of the queue. No state besides references.
class SessionService final : public SessionsBase {
 public:
  SessionService(std::string instance_id, DeviceQueue* queue, Metrics* metrics)
      : instance_id_(std::move(instance_id)),
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
  const std::string instance_id_;
  DeviceQueue* queue_;
  Metrics* metrics_;
};

}  // namespace longshore
