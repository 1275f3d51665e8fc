#include "tests/support/engine_session.h"

#include <cstdlib>
#include <utility>

#include "engine/make_backend.h"
#include "tests/support/compare.h"
#include "tests/support/guarded_backend.h"
#include "tests/support/host_tensor.h"

namespace longshore {
namespace {

// All parts' rows of one tensor.
std::vector<double> Pack(std::span<const CallPart> parts, std::vector<double> TokenRows::*tensor) {
  std::vector<double> packed;
  for (const CallPart& part : parts) {
    const std::vector<double>& rows = part.rows.*tensor;
    packed.insert(packed.end(), rows.begin(), rows.end());
  }
  return packed;
}

// The tensors of one call.
struct CallTensors {
  HostTensor q;
  HostTensor k;
  HostTensor v;
  HostTensor out;
  HostTensor log_sum_exp;

  CallTensors(const ModelShape& model,
              std::span<const CallPart> parts,
              int64_t rows,
              const CallOptions& options)
      : CallTensors(model,
                    parts,
                    rows,
                    options.kv_in_query_dtype ? model.query_dtype : model.kv_dtype) {}

 private:
  CallTensors(const ModelShape& model,
              std::span<const CallPart> parts,
              int64_t rows,
              DType kv_dtype)
      : q(model.query_dtype, {rows, model.num_heads, model.head_dim}, Pack(parts, &TokenRows::q)),
        k(kv_dtype, {rows, model.num_kv_heads, model.head_dim}, Pack(parts, &TokenRows::k)),
        v(kv_dtype, {rows, model.num_kv_heads, model.head_dim}, Pack(parts, &TokenRows::v)),
        out(model.query_dtype, {rows, model.num_heads, model.head_dim}),
        log_sum_exp(DType::kF32, {rows, model.num_heads}) {}
};

// Elements [begin, end) of a tensor, both ways.
void Cut(const HostTensor& tensor,
         int64_t begin,
         int64_t end,
         std::vector<double>* values,
         std::vector<std::byte>* bytes) {
  const std::vector<double> all = tensor.Values();
  values->assign(all.begin() + begin, all.begin() + end);
  const std::span<const std::byte> raw = tensor.Bytes();
  const int64_t size = std::ssize(raw) / std::ssize(all);
  bytes->assign(raw.begin() + begin * size, raw.begin() + end * size);
}

std::vector<StepOutput> Unpack(const ModelShape& model,
                               std::span<const CallPart> parts,
                               const CallTensors& tensors,
                               bool log_sum_exp) {
  std::vector<StepOutput> outputs;
  int64_t row = 0;
  for (const CallPart& part : parts) {
    StepOutput& output = outputs.emplace_back();
    const int64_t first = row * model.num_heads;
    row += part.rows.tokens;
    const int64_t end = row * model.num_heads;
    Cut(tensors.out, first * model.head_dim, end * model.head_dim, &output.out, &output.out_bytes);
    if (log_sum_exp) {
      Cut(tensors.log_sum_exp, first, end, &output.log_sum_exp, &output.log_sum_exp_bytes);
    }
  }
  return outputs;
}

}  // namespace

std::vector<std::string> TestBackends() {
  // Asked for once: tests are named after them before main() runs. GpuTest says where one is
  // missing.
  static const std::vector<std::string> backends = [] {
    std::vector<std::string> there = {"cpu"};
    if (MakeBackend({.name = "cuda"}).ok()) {
      there.emplace_back("cuda");
    }
    return there;
  }();
  return backends;
}

std::string DefaultTestBackend() {
  const char* name = std::getenv("LONGSHORE_TEST_BACKEND");  // NOLINT(concurrency-mt-unsafe)
  return name == nullptr ? "cpu" : name;
}

std::unique_ptr<Backend> MakeTestBackend(const std::string& name, int32_t threads) {
  if (name == "guarded") {
    return std::make_unique<GuardedBackend>(MakeTestBackend("cpu", threads));
  }
  auto made = MakeBackend({.name = name, .threads = threads});
  LONGSHORE_CHECK(made.ok());
  return *std::move(made);
}

std::unique_ptr<Engine> MakeTestEngine(const std::string& backend,
                                       int32_t threads,
                                       int64_t pool_bytes) {
  EngineOptions options;
  options.pool_bytes = pool_bytes;
  auto engine = Engine::Create(options, MakeTestBackend(backend, threads));
  LONGSHORE_CHECK(engine.ok());
  return *std::move(engine);
}

SessionSpec TestSpec(const ModelShape& model, const AttentionPolicy& policy, int64_t max_tokens) {
  return {.name = "", .model = model, .policy = policy, .max_tokens = max_tokens};
}

absl::StatusOr<CallOutput> RunCall(Engine* engine,
                                   StepKind kind,
                                   int32_t layer,
                                   std::span<const CallPart> parts,
                                   const CallOptions& options) {
  ASSIGN_OR_RETURN(const ModelShape* model, engine->ShapeOf(parts[0].session_id));
  std::vector<StepItem> items;
  int64_t rows = 0;
  for (const CallPart& part : parts) {
    items.push_back({.session_id = part.session_id,
                     .position = part.position,
                     .rows = part.rows.tokens,
                     .append_id = part.append_id});
    rows += part.rows.tokens;
  }
  CallTensors tensors(*model, parts, rows, options);
  StepCall call{.kind = kind,
                .layer = layer,
                .items = items,
                .q = tensors.q.Ref(),
                .k = tensors.k.Ref(),
                .v = tensors.v.Ref(),
                .out = tensors.out.Ref(),
                .log_sum_exp = options.log_sum_exp ? tensors.log_sum_exp.Ref() : TensorRef{},
                .exclude_sink_logits = options.exclude_sink_logits};
  ASSIGN_OR_RETURN(StepTicket ticket, engine->Submit(call));
  RETURN_IF_ERROR(engine->Wait(ticket));
  EXPECT_TRUE(tensors.out.GuardIsIntact()) << "something was written behind out";
  EXPECT_TRUE(tensors.log_sum_exp.GuardIsIntact()) << "something was written behind log_sum_exp";
  CallOutput output{
      .trace = ticket.trace, .layer_tokens = std::move(ticket.layer_tokens), .parts = {}};
  if (kind != StepKind::kAppend) {
    output.parts = Unpack(*model, parts, tensors, options.log_sum_exp);
  }
  return output;
}

::testing::AssertionResult IsSameBits(const StepOutput& actual, const StepOutput& expected) {
  if (auto same = IsSameBytes("out", actual.out_bytes, expected.out_bytes); !same) {
    return same;
  }
  return IsSameBytes("log_sum_exp", actual.log_sum_exp_bytes, expected.log_sum_exp_bytes);
}

SessionState StateOf(const Engine& engine, uint64_t session_id) {
  SessionState state;
  const auto info = engine.Describe(session_id);
  EXPECT_TRUE(info.ok()) << info.status();
  if (!info.ok()) {
    return state;
  }
  state.layer_tokens = info->layer_tokens;
  state.page_bytes_used = info->page_bytes_used;
  state.page_bytes_reserved = info->page_bytes_reserved;
  state.pool_free_bytes = engine.pool_usage().free_bytes;
  for (int32_t layer = 0; layer < info->spec.model.num_layers; ++layer) {
    const auto selection = engine.SelectionOf(session_id, layer);
    EXPECT_TRUE(selection.ok()) << selection.status();
    state.masks.push_back(selection->mask);
    state.stages.push_back(selection->stages);
  }
  return state;
}

EngineSession::EngineSession(Engine* engine, SessionSpec spec) : engine_(engine) {
  const absl::StatusOr<uint64_t> id = engine_->Open(std::move(spec));
  EXPECT_TRUE(id.ok()) << id.status();
  id_ = id.value_or(0);
}

int64_t EngineSession::Tokens(int32_t layer) const {
  return engine_->Describe(id_)->layer_tokens[static_cast<size_t>(layer)];
}

absl::StatusOr<StepOutput> EngineSession::Run(StepKind kind,
                                              const TokenRows& rows,
                                              int32_t layer,
                                              const CallOptions& options) {
  last_run_ = {.kind = kind,
               .layer = layer,
               .part = {.session_id = id_,
                        .position = Tokens(layer),
                        .append_id = next_append_id_++,
                        .rows = rows},
               .options = options};
  ASSIGN_OR_RETURN(CallOutput output, RunCall(engine_, kind, layer, {&last_run_.part, 1}, options));
  EXPECT_EQ(output.trace.replayed_items, 0);
  trace_ = output.trace;
  return kind == StepKind::kAppend ? StepOutput{} : std::move(output.parts[0]);
}

StepOutput EngineSession::Append(const TokenRows& rows, int32_t layer) {
  auto output = Run(StepKind::kAppend, rows, layer);
  EXPECT_TRUE(output.ok()) << output.status();
  return output.value_or(StepOutput{});
}

StepOutput EngineSession::Prefill(const TokenRows& rows, int32_t layer) {
  auto output = Run(StepKind::kPrefill, rows, layer);
  EXPECT_TRUE(output.ok()) << output.status();
  return output.value_or(StepOutput{});
}

StepOutput EngineSession::Decode(const TokenRows& rows, int32_t layer) {
  auto output = Run(StepKind::kDecode, rows, layer);
  EXPECT_TRUE(output.ok()) << output.status();
  return output.value_or(StepOutput{});
}

StepOutput EngineSession::Replay() {
  auto output =
      RunCall(engine_, last_run_.kind, last_run_.layer, {&last_run_.part, 1}, last_run_.options);
  EXPECT_TRUE(output.ok()) << output.status();
  if (!output.ok()) {
    return {};
  }
  EXPECT_EQ(output->trace.replayed_items, 1);
  EXPECT_EQ(output->trace.appended_tokens, 0);
  trace_ = output->trace;
  return output->parts.empty() ? StepOutput{} : std::move(output->parts[0]);
}

LayerSelection EngineSession::Selection(int32_t layer) const {
  auto selection = engine_->SelectionOf(id_, layer);
  EXPECT_TRUE(selection.ok()) << selection.status();
  return selection.value_or(LayerSelection{});
}

}  // namespace longshore
