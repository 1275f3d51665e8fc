#include "tests/fuzz/core.h"

#include <algorithm>
#include <future>
#include <utility>

#include "engine/make_backend.h"
#include "service/caller.h"
#include "service/errors.h"
#include "tests/fuzz/check.h"
#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore::fuzz {
namespace {

std::unique_ptr<Core>& TheCore() {
  static std::unique_ptr<Core> core;
  return core;
}

SessionSpec Spec(ModelShape model, AttentionPolicy policy, bool overcommit) {
  SessionSpec spec = TestSpec(*NormalizeModelShape(std::move(model)), std::move(policy), 1024);
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

void OpenSessions(Engine* engine) {
  Random random;
  for (uint64_t id = 1; id <= kNumSessions; ++id) {
    const SessionSpec& spec = SpecOf(id);
    Require(engine->Open(spec).value() == id, "session ids do not count up from 1");
    CallPart part{.session_id = id, .append_id = 1, .rows = {}};
    const int64_t last = TokensOf(id) - 1;
    for (; part.position < last; part.position += part.rows.tokens) {
      const int64_t rows = std::min(last - part.position, CoreLimits().max_rows_per_prefill);
      part.rows = RandomTokens(spec.model, rows, ValueKind::kGaussian, &random);
      Require(RunCall(engine, StepKind::kAppend, 0, {&part, 1}).ok(), "the first rows");
    }
    part.append_id = kLastAppendId;
    part.rows = RandomTokens(spec.model, 1, ValueKind::kGaussian, &random);
    Require(RunCall(engine, StepKind::kDecode, 0, {&part, 1}).ok(), "the last row");
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
