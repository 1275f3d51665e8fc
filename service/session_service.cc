#include "service/session_service.h"

#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include <absl/cleanup/cleanup.h>
#include <absl/hash/hash.h>
#include <spdlog/spdlog.h>

#include "service/caller.h"
#include "service/convert_model.h"
#include "service/convert_policy.h"
#include "service/convert_session.h"
#include "service/errors.h"

namespace longshore {
namespace {

double SecondsOf(std::chrono::duration<double> duration) { return duration.count(); }

// `own_uses`: how many of the session's calls are the one that asks.
v1::SessionInfo InfoToWire(const SessionInfo& info,
                           const SessionRegistry::Entry& entry,
                           int64_t own_uses) {
  v1::SessionInfo wire;
  wire.set_session_id(info.id);
  wire.set_name(info.spec.name);
  wire.set_max_tokens(info.spec.max_tokens);
  wire.set_overcommit(info.spec.overcommit);
  wire.mutable_layer_tokens()->Assign(info.layer_tokens.begin(), info.layer_tokens.end());
  wire.set_page_bytes_used(info.page_bytes_used);
  wire.set_page_bytes_reserved(info.page_bytes_reserved);
  wire.set_owner(entry.owner);
  wire.set_lease_seconds(SecondsOf(entry.lease));
  const bool idle = entry.uses <= own_uses;
  wire.set_idle_seconds(idle ? SecondsOf(SessionRegistry::Clock::now() - entry.last_used) : 0);
  return wire;
}

// The session that a call names, if it does.
template <typename Request>
std::optional<uint64_t> SessionOf(const Request& request) {
  if constexpr (requires { request.session_id(); }) {
    return request.session_id();
  } else {
    return std::nullopt;
  }
}

}  // namespace

struct SessionService::Opening {
  SessionSpec spec;
  SessionRegistry::Entry entry;
};

template <typename Request, typename Response, typename Body>
grpc::ServerUnaryReactor* SessionService::Queue(std::shared_ptr<UnaryCall<Request, Response>> call,
                                                Body body) {
  grpc::ServerUnaryReactor* reactor = call->reactor();
  if (call->refused()) {
    return reactor;
  }
  Job job;
  std::optional<SessionRegistry::Use> use;
  if (const std::optional<uint64_t> id = SessionOf(call->request()); id.has_value()) {
    absl::StatusOr<SessionRegistry::Use> begun = registry_->Begin(*id, CallerOf(*call->context()));
    if (!begun.ok()) {
      call->Finish(begun.status());
      return reactor;
    }
    use.emplace(*std::move(begun));
    job.sessions = {*id};
  }
  job.bytes = call->request_bytes();
  job.deadline = call->context()->deadline();
  job.cancelled = [call] { return call->context()->IsCancelled(); };
  job.run = [call, body = std::move(body)](Engine& engine) mutable -> absl::Status {
    return body(engine, call->request(), call->response());
  };
  job.done = [call, use = std::move(use)](const absl::Status& status) mutable {
    use.reset();  // first, so that who has the answer sees the lease renewed
    call->Finish(status);
  };
  queue_->Push(std::move(job));
  return reactor;
}

absl::StatusOr<SessionService::Opening> SessionService::CheckOpen(
    const v1::OpenSessionRequest& request,
    const grpc::CallbackServerContext& context) const {
  Opening opening;
  ASSIGN_OR_RETURN(opening.spec, SpecFromWire(request));
  const double seconds = request.lease_seconds();
  if (!(seconds >= 0 && seconds <= SecondsOf(leases_.max_lease))) {
    return InvalidField("lease_seconds", seconds, " is not in 0..", SecondsOf(leases_.max_lease));
  }
  const auto asked = std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
  opening.entry.lease = seconds == 0 ? leases_.default_lease : asked;
  opening.entry.owner = CallerOf(context);
  opening.entry.open_id = request.open_id();
  if (request.open_id() != 0) {
    opening.entry.request_fingerprint = absl::HashOf(request.SerializeAsString());
  }
  return opening;
}

// On the engine's thread. What needs memory comes before the session is opened or closes it again:
// nobody would know of a session whose answer could not be filled.
absl::Status SessionService::Open(Opening* opening,
                                  Engine& engine,
                                  v1::OpenSessionResponse* answer) {
  *answer->mutable_policy() = PolicyToWire(opening->spec.policy);
  answer->set_instance_id(instance_id_);
  answer->set_lease_seconds(SecondsOf(opening->entry.lease));
  SessionRegistry::Entry& entry = opening->entry;
  if (const uint64_t id = registry_->FindOpened(entry.open_id, entry.owner); id != 0) {
    if (registry_->Find(id).request_fingerprint != entry.request_fingerprint) {
      return InvalidField("open_id", entry.open_id, " has opened session ", id,
                          " by another request");
    }
    answer->set_session_id(id);
    return registry_->Begin(id, entry.owner).status();  // renews it
  }
  const int64_t max_tokens = opening->spec.max_tokens;
  const absl::StatusOr<uint64_t> opened = engine.Open(std::move(opening->spec));
  if (!engine.device_status().ok()) {
    queue_->DeviceLost(engine.device_status());
    return DeviceLostError("the session was not opened");
  }
  RETURN_IF_ERROR(opened.status());
  absl::Cleanup close = [&] { (void)engine.Close(*opened); };
  entry.last_used = SessionRegistry::Clock::now();
  registry_->Add(*opened, std::move(entry));
  std::move(close).Cancel();
  answer->set_session_id(*opened);
  spdlog::info("session {} opened: up to {} tokens", *opened, max_tokens);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* SessionService::OpenSession(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  const auto call = std::make_shared<UnaryCall<v1::OpenSessionRequest, v1::OpenSessionResponse>>(
      Method::kOpenSession, RawCall{context, request, response}, metrics_);
  if (call->refused()) {
    return call->reactor();
  }
  absl::StatusOr<Opening> opening = CheckOpen(call->request(), *context);
  if (!opening.ok()) {
    call->Finish(opening.status());
    return call->reactor();
  }
  return Queue(call, [this, opening = *std::move(opening)](
                         Engine& engine, const v1::OpenSessionRequest& /*request*/,
                         v1::OpenSessionResponse* answer) mutable {
    return Open(&opening, engine, answer);
  });
}

grpc::ServerUnaryReactor* SessionService::DescribeSession(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request,
                                                          grpc::ByteBuffer* response) {
  const auto call =
      std::make_shared<UnaryCall<v1::DescribeSessionRequest, v1::DescribeSessionResponse>>(
          Method::kDescribeSession, RawCall{context, request, response}, metrics_);
  return Queue(call,
               [this](Engine& engine, const v1::DescribeSessionRequest& asked,
                      v1::DescribeSessionResponse* answer) -> absl::Status {
                 ASSIGN_OR_RETURN(const SessionInfo info, engine.Describe(asked.session_id()));
                 v1::SessionInfo* wire = answer->mutable_session();
                 *wire = InfoToWire(info, registry_->Find(info.id), 1);
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
  return Queue(call, [this, caller = CallerOf(*context)](Engine& engine,
                                                         const v1::ListSessionsRequest& /*asked*/,
                                                         v1::ListSessionsResponse* answer) {
    for (const SessionInfo& info : engine.List()) {
      const SessionRegistry::Entry entry = registry_->Find(info.id);
      if (MayUse(caller, entry.owner)) {
        *answer->add_sessions() = InfoToWire(info, entry, 0);
      }
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
  return Queue(call,
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
  return Queue(call,
               [this](Engine& engine, const v1::CloseSessionRequest& asked,
                      v1::CloseSessionResponse* /*answer*/) -> absl::Status {
                 RETURN_IF_ERROR(engine.Close(asked.session_id()));
                 registry_->Remove(asked.session_id());
                 spdlog::info("session {} closed", asked.session_id());
                 return absl::OkStatus();
               });
}

}  // namespace longshore
