#include "service/session_service.h"

#include <memory>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "service/convert_model.h"
#include "service/convert_policy.h"
#include "service/errors.h"
#include "service/unary_call.h"

namespace longshore {
namespace {

constexpr size_t kMaxNameBytes = 64;

absl::StatusOr<SessionSpec> SpecFromWire(const v1::OpenSessionRequest& request) {
  SessionSpec spec;
  if (!request.has_model()) {
    return InvalidField("model", "is missing");
  }
  if (!request.has_policy()) {
    return InvalidField("policy", "is missing: set policy.preset or policy.policy");
  }
  if (request.name().size() > kMaxNameBytes) {
    return InvalidField("name", "has ", request.name().size(), " bytes, the limit is ",
                        kMaxNameBytes);
  }
  ASSIGN_OR_RETURN(spec.model, ModelFromWire(request.model(), "model"));
  ASSIGN_OR_RETURN(spec.policy, PolicyFromWire(request.policy(), "policy"));
  spec.name = request.name();
  spec.max_tokens = request.max_tokens();
  spec.overcommit = request.overcommit();
  return spec;
}

v1::SessionInfo InfoToWire(const SessionInfo& info) {
  v1::SessionInfo wire;
  wire.set_session_id(info.id);
  wire.set_name(info.spec.name);
  wire.set_max_tokens(info.spec.max_tokens);
  wire.set_overcommit(info.spec.overcommit);
  wire.mutable_layer_tokens()->Assign(info.layer_tokens.begin(), info.layer_tokens.end());
  wire.set_page_bytes_used(info.page_bytes_used);
  wire.set_page_bytes_reserved(info.page_bytes_reserved);
  return wire;
}

// What a session's call touches, so that it stays in order with the session's steps.
template <typename Request>
std::vector<uint64_t> SessionsOf(const Request& request) {
  if constexpr (requires { request.session_id(); }) {
    return {request.session_id()};
  } else {
    return {};
  }
}

// Queues `body` (Engine&, const Request&, Response*) -> Status, and answers the call with what it
// returns.
template <typename Request, typename Response, typename Body>
grpc::ServerUnaryReactor* Queue(std::shared_ptr<UnaryCall<Request, Response>> call,
                                DeviceQueue* queue,
                                Body body) {
  grpc::ServerUnaryReactor* reactor = call->reactor();
  if (call->refused()) {
    return reactor;
  }
  Job job;
  job.sessions = SessionsOf(call->request());
  job.bytes = call->request_bytes();
  job.deadline = call->context()->deadline();
  job.cancelled = [call] { return call->context()->IsCancelled(); };
  job.run = [call, body = std::move(body)](Engine& engine) -> absl::Status {
    return body(engine, call->request(), call->response());
  };
  job.done = [call](const absl::Status& status) { call->Finish(status); };
  queue->Push(std::move(job));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* SessionService::OpenSession(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  const auto call = std::make_shared<UnaryCall<v1::OpenSessionRequest, v1::OpenSessionResponse>>(
      Method::kOpenSession, RawCall{context, request, response}, metrics_);
  absl::StatusOr<SessionSpec> spec = SpecFromWire(call->request());
  if (!call->refused() && !spec.ok()) {
    call->Finish(spec.status());
    return call->reactor();
  }
  return Queue(
      call, queue_,
      [this, spec = std::move(spec)](Engine& engine, const v1::OpenSessionRequest& /*request*/,
                                     v1::OpenSessionResponse* answer) -> absl::Status {
        // First what needs memory: nobody would know of a session whose answer could not be filled.
        *answer->mutable_policy() = PolicyToWire(spec->policy);
        answer->set_instance_id(instance_id_);
        const absl::StatusOr<uint64_t> opened = engine.Open(*spec);
        if (!engine.device_status().ok()) {
          queue_->DeviceLost(engine.device_status());
          return DeviceLostError("the session was not opened");
        }
        RETURN_IF_ERROR(opened.status());
        const uint64_t session_id = *opened;
        answer->set_session_id(session_id);
        spdlog::info("session {} opened: {} layers, up to {} tokens", session_id,
                     spec->model.num_layers, spec->max_tokens);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* SessionService::DescribeSession(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request,
                                                          grpc::ByteBuffer* response) {
  const auto call =
      std::make_shared<UnaryCall<v1::DescribeSessionRequest, v1::DescribeSessionResponse>>(
          Method::kDescribeSession, RawCall{context, request, response}, metrics_);
  return Queue(call, queue_,
               [](Engine& engine, const v1::DescribeSessionRequest& asked,
                  v1::DescribeSessionResponse* answer) -> absl::Status {
                 ASSIGN_OR_RETURN(const SessionInfo info, engine.Describe(asked.session_id()));
                 v1::SessionInfo* wire = answer->mutable_session();
                 *wire = InfoToWire(info);
                 *wire->mutable_model() = ModelToWire(info.spec.model);
                 *wire->mutable_policy() = PolicyToWire(info.spec.policy);
                 return absl::OkStatus();
               });
}

grpc::ServerUnaryReactor* SessionService::ListSessions(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  const auto call = std::make_shared<UnaryCall<v1::ListSessionsRequest, v1::ListSessionsResponse>>(
      Method::kListSessions, RawCall{context, request, response}, metrics_);
  return Queue(call, queue_,
               [](Engine& engine, const v1::ListSessionsRequest& /*asked*/,
                  v1::ListSessionsResponse* answer) {
                 for (const SessionInfo& info : engine.List()) {
                   *answer->add_sessions() = InfoToWire(info);
                 }
                 return absl::OkStatus();
               });
}

grpc::ServerUnaryReactor* SessionService::TruncateSession(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request,
                                                          grpc::ByteBuffer* response) {
  const auto call =
      std::make_shared<UnaryCall<v1::TruncateSessionRequest, v1::TruncateSessionResponse>>(
          Method::kTruncateSession, RawCall{context, request, response}, metrics_);
  return Queue(call, queue_,
               [](Engine& engine, const v1::TruncateSessionRequest& asked,
                  v1::TruncateSessionResponse* answer) -> absl::Status {
                 ASSIGN_OR_RETURN(const std::vector<int64_t> layer_tokens,
                                  engine.Truncate(asked.session_id(), asked.position()));
                 answer->mutable_layer_tokens()->Assign(layer_tokens.begin(), layer_tokens.end());
                 return absl::OkStatus();
               });
}

grpc::ServerUnaryReactor* SessionService::CloseSession(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  const auto call = std::make_shared<UnaryCall<v1::CloseSessionRequest, v1::CloseSessionResponse>>(
      Method::kCloseSession, RawCall{context, request, response}, metrics_);
  return Queue(call, queue_,
               [](Engine& engine, const v1::CloseSessionRequest& asked,
                  v1::CloseSessionResponse* /*answer*/) -> absl::Status {
                 RETURN_IF_ERROR(engine.Close(asked.session_id()));
                 spdlog::info("session {} closed", asked.session_id());
                 return absl::OkStatus();
               });
}

}  // namespace longshore
