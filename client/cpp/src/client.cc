#include "longshore/client/client.h"

#include <random>
#include <utility>

#include <absl/strings/str_cat.h>

#include "client/cpp/src/connection.h"
#include "client/cpp/src/convert.h"
#include "client/cpp/src/random_id.h"
#include "client/cpp/src/session_state.h"
#include "client/cpp/src/target.h"

namespace longshore::client {
namespace {

constexpr absl::Duration kPollPause = absl::Milliseconds(100);

// Whether a daemon may yet come to be.
bool IsStarting(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return status.code() == absl::StatusCode::kUnavailable &&
         (reason.empty() || reason == kNotRunning || reason == "LOADING");
}

absl::StatusOr<v1::SessionInfo> DescribeWire(Connection* connection,
                                             uint64_t session_id,
                                             const CallOptions& call) {
  v1::DescribeSessionRequest request;
  request.set_session_id(session_id);
  v1::DescribeSessionResponse response;
  const absl::Status status =
      connection->Call(connection->sessions(), &v1::Sessions::Stub::DescribeSession, request,
                       &response, Repeat::kReplay, call);
  if (!status.ok()) {
    return status;
  }
  return std::move(*response.mutable_session());
}

}  // namespace

uint64_t RandomId() {
  static thread_local std::random_device device;
  const uint64_t high = device();
  const uint64_t id = (high << 32) | device();
  return id == 0 ? 1 : id;
}

Client::Client(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

absl::StatusOr<Client> Client::Connect(std::string target, const ClientOptions& options) {
  if (target.empty()) {
    target = DefaultTarget();
  }
  if (absl::Status status = CheckPrivate(target); !status.ok()) {
    return status;
  }
  Client client(std::make_shared<Connection>(std::move(target), options.retry));
  const absl::Time give_up = absl::Now() + options.wait_for_daemon;
  for (;;) {
    const absl::Status status = client.Info().status();
    if (status.ok()) {
      return client;
    }
    if (!IsStarting(status) || absl::Now() >= give_up) {
      return status;
    }
    absl::SleepFor(kPollPause);
  }
}

const std::string& Client::target() const { return connection_->target(); }

absl::StatusOr<ServerInfo> Client::Info(const CallOptions& call) const {
  v1::GetServerInfoResponse response;
  const absl::Status status =
      connection_->Call(connection_->server(), &v1::Server::Stub::GetServerInfo,
                        v1::GetServerInfoRequest(), &response, Repeat::kRead, call);
  if (!status.ok()) {
    return status;
  }
  return FromWire(response);
}

absl::StatusOr<std::string> Client::Metrics(const CallOptions& call) const {
  v1::GetMetricsResponse response;
  const absl::Status status =
      connection_->Call(connection_->server(), &v1::Server::Stub::GetMetrics,
                        v1::GetMetricsRequest(), &response, Repeat::kRead, call);
  if (!status.ok()) {
    return status;
  }
  return std::move(*response.mutable_text());
}

absl::StatusOr<Session> Client::Open(const ModelShape& model,
                                     const SessionOptions& options,
                                     const CallOptions& call) const {
  v1::OpenSessionRequest request;
  *request.mutable_model() = ToWire(model);
  absl::StatusOr<v1::PolicySpec> policy = ToWire(options.policy);
  if (!policy.ok()) {
    return policy.status();
  }
  *request.mutable_policy() = *std::move(policy);
  request.set_max_tokens(options.max_tokens);
  request.set_overcommit(options.overcommit);
  request.set_name(options.name);
  request.set_lease_seconds(absl::ToDoubleSeconds(options.lease));
  request.set_open_id(RandomId());
  v1::OpenSessionResponse response;
  absl::Status status = connection_->Call(connection_->sessions(), &v1::Sessions::Stub::OpenSession,
                                          request, &response, Repeat::kOpen, call);
  if (!status.ok()) {
    return status;
  }
  auto state = std::make_shared<SessionState>();
  state->connection = connection_;
  state->id = response.session_id();
  state->model = model;
  state->policy = std::move(*response.mutable_policy());
  state->lease = absl::Seconds(response.lease_seconds());
  state->tokens.assign(static_cast<size_t>(std::max(0, model.num_layers)), 0);
  Session session(std::move(state));  // from here on it is closed if something fails
  const absl::StatusOr<ServerInfo> info = Info(call);
  if (!info.ok()) {
    return info.status();
  }
  session.state_->limits = info->limits;
  return session;
}

absl::StatusOr<Session> Client::Attach(uint64_t session_id, const CallOptions& call) const {
  absl::StatusOr<ServerInfo> info = Info(call);
  if (!info.ok()) {
    return info.status();
  }
  absl::StatusOr<v1::SessionInfo> described = DescribeWire(connection_.get(), session_id, call);
  if (!described.ok()) {
    return described.status();
  }
  auto state = std::make_shared<SessionState>();
  state->connection = connection_;
  state->limits = info->limits;
  state->id = session_id;
  state->model = FromWire(described->model());
  state->policy = std::move(*described->mutable_policy());
  state->lease = absl::Seconds(described->lease_seconds());
  state->tokens.assign(described->layer_tokens().begin(), described->layer_tokens().end());
  return Session(std::move(state));
}

absl::StatusOr<SessionInfo> Client::Describe(uint64_t session_id, const CallOptions& call) const {
  const absl::StatusOr<v1::SessionInfo> described =
      DescribeWire(connection_.get(), session_id, call);
  if (!described.ok()) {
    return described.status();
  }
  return FromWire(*described);
}

absl::StatusOr<std::vector<SessionInfo>> Client::List(const CallOptions& call) const {
  v1::ListSessionsResponse response;
  const absl::Status status =
      connection_->Call(connection_->sessions(), &v1::Sessions::Stub::ListSessions,
                        v1::ListSessionsRequest(), &response, Repeat::kRead, call);
  if (!status.ok()) {
    return status;
  }
  std::vector<SessionInfo> sessions;
  for (const v1::SessionInfo& session : response.sessions()) {
    sessions.push_back(FromWire(session));
  }
  return sessions;
}

absl::Status Client::Close(uint64_t session_id, const CallOptions& call) const {
  v1::CloseSessionRequest request;
  request.set_session_id(session_id);
  v1::CloseSessionResponse response;
  return connection_->Call(connection_->sessions(), &v1::Sessions::Stub::CloseSession, request,
                           &response, Repeat::kReplay, call);
}

StepStream Client::StreamSteps(const CallOptions& call) const { return {connection_, call}; }

}  // namespace longshore::client
