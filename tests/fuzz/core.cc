#include "tests/fuzz/core.h"

#include <algorithm>
#include <future>
#include <utility>

#include "engine/make_backend.h"
#include "service/caller.h"
#include "service/errors.h"
#include "tests/fuzz/check.h"
#include "tests/support/engine_session.h"
#include "tests/support/host_tensor.h"
#include "tests/support/random_tokens.h"
#include "tests/support/test_model.h"

namespace longshore::fuzz {
namespace {

std::unique_ptr<Core>& TheCore() {
  static std::unique_ptr<Core> core;
  return core;
}

SessionSpec Spec(ModelShape model, const AttentionPolicy& policy, bool overcommit) {
  SessionSpec spec = TestSpec(*NormalizeModelShape(std::move(model)), policy, 1024);
  spec.overcommit = overcommit;
  return spec;
}

std::vector<SessionSpec> MakeSpecs() {
  ModelShape two_layers = TestModel(2, 1, 64);
  two_layers.num_layers = 2;
  two_layers.layer_rope_table = {0, 0};
  two_layers.layer_sliding_window = {0, 0};
  ModelShape window = TestModel(4, 2, 64);
  window.kv_dtype = DType::kBf16;
  window.layer_sliding_window = {64};
  ModelShape half = TestModel(2, 2, 64);
  half.query_dtype = DType::kF16;
  half.kv_dtype = DType::kF16;
  half.rope_tables[0].pairing = RopePairing::kInterleaved;
  half.logit_soft_cap = 30.0F;
  half.sink_logits = {0.5F, -1.0F};
  return {Spec(two_layers, OneStage(4, 64, 3), false), Spec(two_layers, SmallDense(), true),
          Spec(window, SmallStreaming(), true), Spec(half, SmallStreaming(), false)};
}

// As many as the first session's stage needs to drop some, and few of the others.
constexpr int64_t kTokens[kNumSessions] = {260, 30, 130, 5};

// Random rows of a session's layer 0, made once: a Core is made for every call that is applied.
struct Rows {
  HostTensor q;
  HostTensor k;
  HostTensor v;
  HostTensor out;  // of one row
};

Rows MakeRows(uint64_t session) {
  const ModelShape& model = SpecOf(session).model;
  const int64_t rows = TokensOf(session);
  Random random(static_cast<uint32_t>(session));
  const TokenRows tokens = RandomTokens(model, rows, ValueKind::kGaussian, &random);
  const auto shape = [&](int64_t heads) {
    return std::vector<int64_t>{rows, heads, int64_t{model.head_dim}};
  };
  return {HostTensor(model.query_dtype, shape(model.num_heads), tokens.q),
          HostTensor(model.kv_dtype, shape(model.num_kv_heads), tokens.k),
          HostTensor(model.kv_dtype, shape(model.num_kv_heads), tokens.v),
          HostTensor(model.query_dtype, {1, model.num_heads, model.head_dim})};
}

// Rows [begin, begin + rows).
TensorRef Cut(TensorRef tensor, int64_t begin, int64_t rows) {
  tensor.data = static_cast<std::byte*>(tensor.data) + begin * (tensor.Bytes() / tensor.shape[0]);
  tensor.shape[0] = rows;
  return tensor;
}

void Apply(StepKind kind, const StepItem& item, Rows* rows, Engine* engine) {
  const StepCall call{.kind = kind,
                      .layer = 0,
                      .items = {&item, 1},
                      .q = Cut(rows->q.Ref(), item.position, item.rows),
                      .k = Cut(rows->k.Ref(), item.position, item.rows),
                      .v = Cut(rows->v.Ref(), item.position, item.rows),
                      .out = rows->out.Ref()};
  const absl::StatusOr<StepTicket> ticket = engine->Submit(call);
  Require(ticket.ok() && engine->Wait(*ticket).ok(),
          "the first rows: ", ticket.status().ToString());
}

void OpenSessions(Engine* engine) {
  static std::vector<Rows> rows_of;
  for (uint64_t id = rows_of.size() + 1; id <= kNumSessions; ++id) {
    rows_of.push_back(MakeRows(id));
  }
  for (uint64_t id = 1; id <= kNumSessions; ++id) {
    Require(engine->Open(SpecOf(id)).value() == id, "session ids do not count up from 1");
    StepItem item{.session_id = id, .position = 0, .rows = 0, .append_id = kLastAppendId};
    const int64_t last = TokensOf(id) - 1;
    for (; item.position < last; item.position += item.rows) {
      item.rows = std::min(last - item.position, CoreLimits().max_rows_per_prefill);
      Apply(StepKind::kAppend, item, &rows_of[id - 1], engine);
    }
    item.rows = 1;
    Apply(StepKind::kDecode, item, &rows_of[id - 1], engine);
  }
}

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine() {
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakeBackend({.name = "cpu", .threads = 1}));
  ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                   Engine::Create(CoreLimits(), std::move(backend)));
  OpenSessions(engine.get());
  return engine;
}

EngineState StateOf(const Engine& engine) {
  EngineState state;
  for (const SessionInfo& info : engine.List()) {
    EngineState::OfSession& session = state.sessions.emplace_back();
    session.id = info.id;
    session.used_bytes = info.page_bytes_used;
    session.reserved_bytes = info.page_bytes_reserved;
    for (size_t layer = 0; layer < info.layer_tokens.size(); ++layer) {
      const LayerSelection selection =
          engine.SelectionOf(info.id, static_cast<int32_t>(layer)).value();
      session.layers.push_back({info.layer_tokens[layer], selection.mask, selection.stages});
    }
  }
  state.used_bytes = engine.pool_usage().used_bytes;
  state.free_bytes = engine.pool_usage().free_bytes;
  state.table_bytes = engine.table_bytes();
  return state;
}

}  // namespace

const SessionSpec& SpecOf(uint64_t session) {
  static const std::vector<SessionSpec> specs = MakeSpecs();
  return specs[session - 1];
}

int64_t TokensOf(uint64_t session) { return kTokens[session - 1]; }

const EngineOptions& CoreLimits() {
  static const EngineOptions limits = {.pool_bytes = int64_t{24} << 20,
                                       .max_sessions = 6,
                                       .max_tokens_per_session = 4096,
                                       .max_items_per_call = 4,
                                       .max_rows_per_prefill = 80,
                                       .max_rows_per_decode_item = 4,
                                       .max_table_bytes = int64_t{4} << 20,
                                       .max_score_bytes = int64_t{1} << 20,
                                       .first_session_id = 1};
  return limits;
}

Core& Core::Get() {
  std::unique_ptr<Core>& core = TheCore();
  if (core == nullptr) {
    core = std::make_unique<Core>();
  }
  return *core;
}

void Core::Spoil() { TheCore().reset(); }

Core::Core()
    : registry_("fuzzed", CoreLimits().first_session_id),
      queue_({}, MakeEngine),
      runner_(CoreLimits(), &registry_, &queue_, &metrics_) {
  for (uint64_t id = 1; id <= kNumSessions; ++id) {
    registry_.Add(id, {.owner = kLocalCaller,
                       .lease = std::chrono::hours(1),
                       .last_used = SessionRegistry::Clock::now()});
  }
  Require(queue_.WaitReady().ok(), "no engine");
  initial_state_ = State();
}

absl::Status Core::Run(const StepMessage& message, int64_t request_bytes) {
  std::promise<absl::Status> answer;
  runner_.Start(message,
                {.request_bytes = request_bytes,
                 .deadline = std::chrono::system_clock::time_point::max(),
                 .cancelled = nullptr,
                 .name = kLocalCaller},
                [&](const absl::Status& status) { answer.set_value(status); });
  return answer.get_future().get();
}

absl::Status Core::Run(const std::function<absl::Status(Engine&)>& work) {
  std::promise<absl::Status> answer;
  Job job;
  job.run = [&](Engine& engine) { return work(engine); };
  job.done = [&](const absl::Status& status) { answer.set_value(status); };
  queue_.Push(std::move(job));
  return answer.get_future().get();
}

EngineState Core::State() {
  EngineState state;
  const absl::Status status = Run([&](Engine& engine) {
    state = StateOf(engine);
    return absl::OkStatus();
  });
  Require(status.ok(), "the engine does not answer: ", LogText(status));
  return state;
}

void Core::RequireUnchanged(const absl::Status& refusal) {
  Require(State() == initial_state_, "a refused call changed something: ", LogText(refusal));
}

}  // namespace longshore::fuzz
