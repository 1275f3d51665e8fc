#include "service/attention_service.h"

#include <memory>

#include "service/caller.h"
#include "service/step_stream.h"

namespace longshore {

template <typename Request, typename Response>
grpc::ServerUnaryReactor* AttentionService::Start(Method method, const RawCall& raw) {
  const auto call = std::make_shared<UnaryCall<Request, Response>>(method, raw, metrics_);
  if (!call->refused()) {
    runner_->Start(MessageOf(call->request(), call->response()),
                   {.request_bytes = call->request_bytes(),
                    .deadline = raw.context->deadline(),
                    .cancelled = [call] { return call->context()->IsCancelled(); },
                    .name = CallerOf(*raw.context)},
                   [call](const absl::Status& status) { call->Send(status); });
  }
  return call->reactor();
}

grpc::ServerUnaryReactor* AttentionService::AppendKV(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return Start<v1::AppendKVRequest, v1::AppendKVResponse>(Method::kAppendKv,
                                                          {context, request, response});
}

grpc::ServerUnaryReactor* AttentionService::Prefill(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  return Start<v1::PrefillRequest, v1::PrefillResponse>(Method::kPrefill,
                                                        {context, request, response});
}

grpc::ServerUnaryReactor* AttentionService::DecodeStep(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return Start<v1::DecodeStepRequest, v1::DecodeStepResponse>(Method::kDecodeStep,
                                                              {context, request, response});
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AttentionService::StreamSteps(
    grpc::CallbackServerContext* context) {
  return new StepStream(max_steps_in_flight_, context, runner_, metrics_);
}

}  // namespace longshore
