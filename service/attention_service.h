#pragma once

#include <grpcpp/grpcpp.h>

#include "longshore/v1/attention.grpc.pb.h"
#include "service/step_runner.h"
#include "service/unary_call.h"

namespace longshore {

/// The Attention service with handlers that take bytes; see ParseMessage().
using AttentionBase = v1::Attention::WithRawCallbackMethod_AppendKV<
    v1::Attention::WithRawCallbackMethod_Prefill<v1::Attention::WithRawCallbackMethod_DecodeStep<
        v1::Attention::WithRawCallbackMethod_StreamSteps<v1::Attention::Service>>>>;

/// The wire's Attention service: each call is one step, or a stream of them. No state besides
/// references.
class AttentionService final : public AttentionBase {
 public:
  AttentionService(int32_t max_steps_in_flight, StepRunner* runner, Metrics* metrics)
      : max_steps_in_flight_(max_steps_in_flight),
        runner_(runner),
        metrics_(metrics) {}

  grpc::ServerUnaryReactor* AppendKV(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Prefill(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DecodeStep(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StreamSteps(
      grpc::CallbackServerContext* context) override;

 private:
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Start(Method method, const RawCall& raw);

  const int32_t max_steps_in_flight_;
  StepRunner* runner_;
  Metrics* metrics_;
};

}  // namespace longshore
