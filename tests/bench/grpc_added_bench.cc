// What gRPC adds to a decode step: the same steps through a daemon at a Unix socket, as calls and
// on a stream, against an engine in this process, taking turns. One JSON object a line on stdout.
//
//   grpc_added_bench TARGET     a longshored of its own, for example with --threads=1

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "engine/core/half.h"
#include "engine/engine.h"
#include "engine/make_backend.h"
#include "longshore/v1/attention.grpc.pb.h"
#include "longshore/v1/server.grpc.pb.h"
#include "longshore/v1/session.grpc.pb.h"

namespace longshore {
namespace {

constexpr int32_t kHeads = 32;  // 8 KiB of q and of output in bf16
constexpr int32_t kKvHeads = 8;
constexpr int32_t kHeadDim = 128;
constexpr int32_t kWarmUpSteps = 200;
constexpr int32_t kTurns = 40;
constexpr int32_t kStepsPerTurn = 100;
constexpr int64_t kMaxTokens = kWarmUpSteps + kTurns * kStepsPerTurn;
// A short context, so that the engine's own time is small: sink and window of a few tokens.
constexpr int64_t kWindowTokens = 64;

using Clock = std::chrono::steady_clock;

void Check(bool ok, const std::string& what) {
  if (!ok) {
    std::fprintf(stderr, "grpc_added_bench: %s\n", what.c_str());
    std::exit(1);  // NOLINT(concurrency-mt-unsafe): nothing else runs that minds
  }
}

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// One way to run a decode step at a position; it is the session's next.
struct Path {
  const char* name;
  std::function<void(int64_t position)> step;
  int64_t position = 0;
  std::vector<double> us = {};

  void Run(int32_t steps, bool record) {
    for (int32_t step_index = 0; step_index < steps; ++step_index) {
      const Clock::time_point start = Clock::now();
      step(position++);
      if (record) {
        us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
      }
    }
  }
};

std::vector<Bf16> Values(int64_t heads) {
  std::vector<Bf16> values(static_cast<size_t>(heads * kHeadDim));
  for (size_t index = 0; index < values.size(); ++index) {
    values[index] = ToBf16(static_cast<float>(index % 7) / 7.0F - 0.5F);
  }
  return values;
}

AttentionPolicy ShortPolicy() {
  AttentionPolicy policy = *PresetPolicy("streaming");
  for (PhasePolicy* phase : {&policy.prefill, &policy.decode}) {
    phase->rest.window_tokens = kWindowTokens;
  }
  return policy;
}

// The engine in this process.
class LocalEngine {
 public:
  LocalEngine() {
    auto backend = MakeBackend({.name = "cpu", .threads = 1});
    Check(backend.ok(), "no backend");
    auto engine = Engine::Create({.pool_bytes = int64_t{256} << 20}, *std::move(backend));
    Check(engine.ok(), "no engine");
    engine_ = *std::move(engine);
    SessionSpec spec;
    spec.model = {.num_layers = 1,
                  .num_heads = kHeads,
                  .num_kv_heads = kKvHeads,
                  .head_dim = kHeadDim,
                  .query_dtype = DType::kBf16,
                  .kv_dtype = DType::kBf16};
    spec.policy = ShortPolicy();
    spec.max_tokens = kMaxTokens;
    const absl::StatusOr<uint64_t> session = engine_->Open(spec);
    Check(session.ok(), session.status().ToString());
    session_ = *session;
  }
  void Step(int64_t position) {
    const StepItem item{.session_id = session_, .position = position, .rows = 1, .append_id = 1};
    const StepCall call{.kind = StepKind::kDecode,
                        .layer = 0,
                        .items = {&item, 1},
                        .q = Rows(&q_, kHeads),
                        .k = Rows(&k_, kKvHeads),
                        .v = Rows(&k_, kKvHeads),
                        .out = Rows(&out_, kHeads)};
    const absl::StatusOr<StepTicket> ticket = engine_->Submit(call);
    Check(ticket.ok() && engine_->Wait(*ticket).ok(), ticket.status().ToString());
  }

 private:
  static TensorRef Rows(std::vector<Bf16>* data, int32_t heads) {
    return {
        .data = data->data(), .dtype = DType::kBf16, .rank = 3, .shape = {1, heads, kHeadDim, 0}};
  }

  std::unique_ptr<Engine> engine_;
  uint64_t session_ = 0;
  std::vector<Bf16> q_ = Values(kHeads);
  std::vector<Bf16> k_ = Values(kKvHeads);
  std::vector<Bf16> out_ = Values(kHeads);
};

void FillTensor(int32_t heads, v1::Tensor* tensor) {
  tensor->set_dtype(v1::DTYPE_BF16);
  for (const int64_t extent : {1, heads, kHeadDim}) {
    tensor->add_shape(extent);
  }
  const std::vector<Bf16> values = Values(heads);
  tensor->set_inline_data(values.data(), values.size() * sizeof(Bf16));
}

// A session in the daemon, and its steps as calls or on a stream.
class RemoteSession {
 public:
  explicit RemoteSession(const std::shared_ptr<grpc::Channel>& channel)
      : attention_(v1::Attention::NewStub(channel)) {
    v1::OpenSessionRequest request;
    v1::ModelShape* model = request.mutable_model();
    model->set_num_layers(1);
    model->set_num_heads(kHeads);
    model->set_num_kv_heads(kKvHeads);
    model->set_head_dim(kHeadDim);
    model->set_query_dtype(v1::DTYPE_BF16);
    model->set_kv_dtype(v1::DTYPE_BF16);
    request.set_max_tokens(kMaxTokens);
    // The preset in full, as the daemon spells it out, with a short window.
    request.mutable_policy()->set_preset("streaming");
    v1::OpenSessionResponse opened = Open(channel, request);
    for (v1::PhasePolicy* phase :
         {opened.mutable_policy()->mutable_prefill(), opened.mutable_policy()->mutable_decode()}) {
      phase->mutable_rest()->set_window_tokens(kWindowTokens);
    }
    *request.mutable_policy()->mutable_policy() = opened.policy();
    opened = Open(channel, request);
    decode_ = step_.mutable_decode();
    decode_->add_items()->set_session_id(opened.session_id());
    decode_->mutable_items(0)->set_rows(1);
    decode_->mutable_items(0)->set_append_id(1);
    FillTensor(kHeads, decode_->mutable_q());
    FillTensor(kKvHeads, decode_->mutable_k());
    FillTensor(kKvHeads, decode_->mutable_v());
  }
  void Call(int64_t position) {
    decode_->mutable_items(0)->set_position(position);
    grpc::ClientContext context;
    v1::DecodeStepResponse response;
    const grpc::Status status = attention_->DecodeStep(&context, *decode_, &response);
    Check(status.ok(), status.error_message());
  }
  void StepOnStream(int64_t position) {
    if (stream_ == nullptr) {
      stream_ = attention_->StreamSteps(&stream_context_);
    }
    decode_->mutable_items(0)->set_position(position);
    v1::StreamStepsResponse answer;
    Check(stream_->Write(step_) && stream_->Read(&answer) && answer.has_decode(),
          answer.status().message());
  }
  ~RemoteSession() {
    if (stream_ != nullptr) {
      stream_->WritesDone();
      stream_->Finish();
    }
  }

 private:
  static v1::OpenSessionResponse Open(const std::shared_ptr<grpc::Channel>& channel,
                                      const v1::OpenSessionRequest& request) {
    grpc::ClientContext context;
    v1::OpenSessionResponse response;
    const grpc::Status status =
        v1::Sessions::NewStub(channel)->OpenSession(&context, request, &response);
    Check(status.ok(), status.error_message());
    return response;
  }

  std::unique_ptr<v1::Attention::Stub> attention_;
  v1::StreamStepsRequest step_;
  v1::DecodeStepRequest* decode_ = nullptr;
  grpc::ClientContext stream_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamStepsRequest, v1::StreamStepsResponse>>
      stream_;
};

void Print(const char* id, double value, const Path& path, const Path& engine) {
  std::printf(
      "{\"id\": \"%s\", \"value\": %.1f, \"unit\": \"us\", \"p50_us\": %.1f, \"p99_us\": %.1f, "
      "\"engine_p50_us\": %.1f, \"device\": \"cpu, 1 thread\", \"shapes\": \"decode, 1 row, 32/8 "
      "heads, 128 dims, bf16: q 8 KiB, k and v 2 KiB each, out 8 KiB; sink and window alone; Unix "
      "socket; %d steps each in turns of %d\"}\n",
      id, value, Percentile(path.us, 0.5), Percentile(path.us, 0.99), Percentile(engine.us, 0.5),
      kTurns * kStepsPerTurn, kStepsPerTurn);
}

void Run(const std::string& target) {
  const auto channel = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
  LocalEngine local;
  RemoteSession called(channel);
  RemoteSession streamed(channel);
  const std::unique_ptr<v1::Server::Stub> server = v1::Server::NewStub(channel);
  Path engine{.name = "engine", .step = [&](int64_t position) { local.Step(position); }};
  Path unary{.name = "unary", .step = [&](int64_t position) { called.Call(position); }};
  Path stream{.name = "stream", .step = [&](int64_t position) { streamed.StepOnStream(position); }};
  // A call that reaches neither queue nor engine: what gRPC costs here whatever we do.
  Path empty{.name = "empty", .step = [&](int64_t /*position*/) {
               grpc::ClientContext context;
               v1::GetServerInfoResponse response;
               Check(server->GetServerInfo(&context, v1::GetServerInfoRequest(), &response).ok(),
                     "GetServerInfo failed");
             }};
  Path* const paths[] = {&engine, &unary, &stream, &empty};
  for (Path* path : paths) {
    path->Run(kWarmUpSteps, false);
  }
  for (int32_t turn = 0; turn < kTurns; ++turn) {
    for (Path* path : paths) {
      path->Run(kStepsPerTurn, true);
    }
  }
  const double own = Percentile(engine.us, 0.5);
  Print("grpc_unary_added_us", Percentile(unary.us, 0.5) - own, unary, engine);
  Print("grpc_stream_added_us", Percentile(stream.us, 0.5) - own, stream, engine);
  Print("grpc_empty_call_us", Percentile(empty.us, 0.5), empty, engine);
}

}  // namespace
}  // namespace longshore

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: grpc_added_bench TARGET\n");
    return 2;
  }
  longshore::Run(argv[1]);
  return 0;
}
