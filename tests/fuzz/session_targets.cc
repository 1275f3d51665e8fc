// OpenSession, DescribeSession, ListSessions, TruncateSession and CloseSession.

#include <algorithm>
#include <string>

#include "longshore/v1/session.pb.h"
#include "service/convert_model.h"
#include "service/convert_policy.h"
#include "service/convert_session.h"
#include "service/errors.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/core.h"
#include "tests/fuzz/target.h"
#include "tests/support/engine_session.h"

namespace longshore::fuzz {
namespace {

// What a client is told of its model and policy is what the daemon would take for the same.
void RequireSameWay(const SessionSpec& spec) {
  const auto model = ModelFromWire(ModelToWire(spec.model), "model");
  Require(model.ok() && *model == spec.model, "the model's shape is another after a round trip");
  v1::PolicySpec wire;
  *wire.mutable_policy() = PolicyToWire(spec.policy);
  const auto policy = PolicyFromWire(wire, "policy");
  Require(policy.ok() && *policy == spec.policy, "the policy is another after a round trip");
}

// A session that was opened takes rows of zeros.
void RequireUsable(Engine* engine, uint64_t id, const SessionSpec& spec) {
  constexpr int64_t kMaxElements = int64_t{1} << 16;
  if (int64_t{spec.model.num_heads} * spec.model.head_dim > kMaxElements) {
    return;  // slow, and no other code
  }
  const int64_t rows = std::min({int64_t{3}, spec.max_tokens, CoreLimits().max_rows_per_prefill});
  CallPart part{.session_id = id, .append_id = 1, .rows = {}};
  part.rows.tokens = rows;
  const int64_t heads = rows * spec.model.head_dim;
  part.rows.q.resize(static_cast<size_t>(heads * spec.model.num_heads));
  part.rows.k.resize(static_cast<size_t>(heads * spec.model.num_kv_heads));
  part.rows.v = part.rows.k;
  const int32_t layer = spec.model.num_layers - 1;
  const auto output = RunCall(engine, StepKind::kPrefill, layer, {&part, 1});
  const bool full =
      spec.overcommit && output.status().code() == absl::StatusCode::kResourceExhausted;
  Require(output.ok() || full, "the first rows: ", LogText(output.status()));
}

}  // namespace

void RunOpenSession(std::string_view bytes) {
  v1::OpenSessionRequest request;
  if (!Parse(bytes, &request)) {
    return;
  }
  const absl::StatusOr<SessionSpec> spec = SpecFromWire(request);
  RequireWellFormed(spec.status());
  if (!spec.ok()) {
    return;
  }
  RequireSameWay(*spec);
  Core& core = Core::Get();
  uint64_t id = 0;
  const absl::Status status = core.Run([&](Engine& engine) -> absl::Status {
    ASSIGN_OR_RETURN(id, engine.Open(*spec));
    RequireUsable(&engine, id, *spec);
    return engine.Close(id);
  });
  RequireWellFormed(status);
  core.RequireUnchanged(status);  // closed again, too
}

void RunDescribeSession(std::string_view bytes) {
  v1::DescribeSessionRequest request;
  if (Parse(bytes, &request)) {
    Core& core = Core::Get();
    const absl::Status status =
        core.Run([&](Engine& engine) { return engine.Describe(request.session_id()).status(); });
    RequireWellFormed(status);
    Require(status.ok() == (request.session_id() - 1 < kNumSessions), "session ",
            request.session_id(), ": ", LogText(status));
    core.RequireUnchanged(status);
  }
}

void RunListSessions(std::string_view bytes) {
  v1::ListSessionsRequest request;
  if (Parse(bytes, &request)) {
    Core::Get().RequireUnchanged(absl::OkStatus());
  }
}

void RunTruncateSession(std::string_view bytes) {
  v1::TruncateSessionRequest request;
  if (!Parse(bytes, &request)) {
    return;
  }
  Core& core = Core::Get();
  std::vector<int64_t> layer_tokens;
  const absl::Status status = core.Run([&](Engine& engine) -> absl::Status {
    ASSIGN_OR_RETURN(layer_tokens, engine.Truncate(request.session_id(), request.position()));
    return absl::OkStatus();
  });
  RequireWellFormed(status);
  if (!status.ok()) {
    core.RequireUnchanged(status);
    return;
  }
  Require(layer_tokens.at(0) == std::min(TokensOf(request.session_id()), request.position()),
          "layer 0 holds ", layer_tokens.at(0), " tokens, was cut to ", request.position());
  Core::Spoil();
}

void RunCloseSession(std::string_view bytes) {
  v1::CloseSessionRequest request;
  if (!Parse(bytes, &request)) {
    return;
  }
  Core& core = Core::Get();
  const absl::Status status =
      core.Run([&](Engine& engine) { return engine.Close(request.session_id()); });
  RequireWellFormed(status);
  if (!status.ok()) {
    core.RequireUnchanged(status);
    return;
  }
  Require(core.State().sessions.size() == kNumSessions - 1, "another session went, too");
  Core::Spoil();
}

}  // namespace longshore::fuzz
