// Writes the corpus that fuzzing starts from: of each target some bytes that the daemon takes, and
// some that it nearly takes.
//
//   fuzz_seeds DIRECTORY     (tests/fuzz/corpus)

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <absl/strings/str_cat.h>

#include "longshore/v1/attention.pb.h"
#include "longshore/v1/region.pb.h"
#include "longshore/v1/session.pb.h"
#include "service/convert_model.h"
#include "service/convert_policy.h"
#include "tests/fuzz/core.h"
#include "tests/support/host_tensor.h"
#include "tests/support/random_tokens.h"

namespace longshore::fuzz {
namespace {

class Corpus {
 public:
  explicit Corpus(std::filesystem::path directory) : directory_(std::move(directory)) {}

  void Add(const std::string& target, const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(directory_ / target);
    std::ofstream(directory_ / target / name, std::ios::binary) << bytes;
  }
  void Add(const std::string& target,
           const std::string& name,
           const google::protobuf::Message& message) const {
    Add(target, name, message.SerializeAsString());
  }

 private:
  std::filesystem::path directory_;
};

v1::Tensor TensorOf(DType dtype, int64_t rows, int64_t heads, const std::vector<double>& values) {
  const int64_t head_dim = std::ssize(values) / rows / heads;
  v1::Tensor tensor;
  tensor.set_dtype(DTypeToWire(dtype));
  for (const int64_t extent : {rows, heads, head_dim}) {
    tensor.add_shape(extent);
  }
  const HostTensor host(dtype, {rows, heads, head_dim}, values);
  const std::span<const std::byte> bytes = host.Bytes();
  tensor.set_inline_data(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  return tensor;
}

// `rows` rows at the end of a session's layer 0.
template <typename Request>
Request StepOf(uint64_t session, int32_t rows) {
  const ModelShape& model = SpecOf(session).model;
  Random random(static_cast<uint32_t>(session));
  const TokenRows tokens = RandomTokens(model, rows, ValueKind::kIntegers, &random);
  Request request;
  v1::StepItem* item = request.add_items();
  item->set_session_id(session);
  item->set_position(TokensOf(session));
  item->set_rows(rows);
  item->set_append_id(session + 10);
  *request.mutable_k() = TensorOf(model.kv_dtype, rows, model.num_kv_heads, tokens.k);
  *request.mutable_v() = TensorOf(model.kv_dtype, rows, model.num_kv_heads, tokens.v);
  if constexpr (requires { request.mutable_q(); }) {
    *request.mutable_q() = TensorOf(model.query_dtype, rows, model.num_heads, tokens.q);
    request.set_want_log_sum_exp(true);
  }
  return request;
}

template <typename Request, typename Mutable>
void AddSteps(const Corpus& corpus, const std::string& target, Mutable arm) {
  const auto add = [&](const std::string& name, const Request& request) {
    corpus.Add(target, name, request);
    v1::StreamStepsRequest stream;
    stream.set_tag(5);
    *(stream.*arm)() = request;
    corpus.Add("stream_steps", absl::StrCat(target, "_", name), stream);
  };
  for (uint64_t session = 1; session <= kNumSessions; ++session) {
    add(absl::StrCat("session", session), StepOf<Request>(session, 1));
  }
  auto two = StepOf<Request>(1, 2);  // a row each of two sessions
  two.mutable_items(0)->set_rows(1);
  *two.add_items() = two.items(0);
  two.mutable_items(1)->set_session_id(2);
  two.mutable_items(1)->set_position(TokensOf(2));
  add("batch", two);
  auto other_layer = StepOf<Request>(1, 3);
  other_layer.set_layer(1);
  other_layer.mutable_items(0)->set_position(0);
  add("layer1", other_layer);
  auto replay = StepOf<Request>(1, 1);  // as DecodeStep: the last call of the layer
  replay.mutable_items(0)->set_position(TokensOf(1) - 1);
  replay.mutable_items(0)->set_append_id(kLastAppendId);
  add("replay", replay);
  auto region = StepOf<Request>(2, 1);
  region.mutable_k()->mutable_region()->set_region_id(1);
  add("region", region);
}

void AddOpens(const Corpus& corpus) {
  for (const std::string& preset : PresetNames()) {
    v1::OpenSessionRequest request;
    *request.mutable_model() = ModelToWire(SpecOf(1).model);
    request.mutable_policy()->set_preset(preset);
    request.set_max_tokens(512);
    corpus.Add("open_session", preset, request);
    v1::PolicySpec spec;
    spec.set_preset(preset);
    *request.mutable_policy()->mutable_policy() =
        PolicyToWire(PolicyFromWire(spec, "policy").value());
    corpus.Add("open_session", preset + "_in_full", request);
  }
  for (uint64_t session = 1; session <= kNumSessions; ++session) {
    v1::OpenSessionRequest request;
    *request.mutable_model() = ModelToWire(SpecOf(session).model);
    *request.mutable_policy()->mutable_policy() = PolicyToWire(SpecOf(session).policy);
    request.set_max_tokens(100);
    request.set_overcommit(true);
    request.set_name("fuzz");
    request.set_lease_seconds(60);
    request.set_open_id(session);
    corpus.Add("open_session", absl::StrCat("session", session), request);
  }
}

template <typename Request>
void AddIds(const Corpus& corpus, const std::string& target) {
  for (const uint64_t id : {uint64_t{1}, uint64_t{3}, uint64_t{99}, uint64_t{5} << 32}) {
    Request request;
    request.set_session_id(id);
    if constexpr (requires { request.set_position(1); }) {
      request.set_position(TokensOf(1) - 2);
    }
    corpus.Add(target, absl::StrCat("id", id), request);
  }
}

void AddConfigs(const Corpus& corpus) {
  corpus.Add("config_file", "small",
             std::string("listen: \"unix:/run/longshored.sock\"\npool_bytes: \"64GiB\"\n"
                         "limits { max_sessions: 64 }\n"));
  corpus.Add("config_file", "full",
             std::string("listen: '127.0.0.1:0' listen: 'unix:/tmp/s' allow_remote: true\n"
                         "backend: 'cpu' threads: 2 pool_bytes: '64 MiB'\n"
                         "metrics_listen: 'localhost:9464' log_level: 'debug'\n"
                         "drain_seconds: 1.5 allow_overcommit_memory: false\n"
                         "limits {\n  max_message_bytes: '1MiB' max_tokens_per_session: 1000\n"
                         "  max_items_per_call: 3 max_rows_per_prefill: 100\n"
                         "  max_rows_per_decode_item: 4 max_queued_calls: 5\n"
                         "  max_queued_bytes: '2MiB' max_steps_in_flight: 2\n"
                         "  max_table_bytes: '1GiB' max_score_bytes: '512KiB'\n"
                         "  default_lease_seconds: 10 max_lease_seconds: 100\n}\n"));
  corpus.Add("config_file", "ipv6", std::string("listen: '[::1]:50051' metrics_listen: ''\n"));
  corpus.Add("config_file", "wrong", std::string("pool_bytes: '4GB' # not a unit of ours\n"));
}

void WriteAll(const Corpus& corpus) {
  AddSteps<v1::AppendKVRequest>(corpus, "append_kv", &v1::StreamStepsRequest::mutable_append_kv);
  AddSteps<v1::PrefillRequest>(corpus, "prefill", &v1::StreamStepsRequest::mutable_prefill);
  AddSteps<v1::DecodeStepRequest>(corpus, "decode_step", &v1::StreamStepsRequest::mutable_decode);
  AddOpens(corpus);
  AddIds<v1::DescribeSessionRequest>(corpus, "describe_session");
  AddIds<v1::TruncateSessionRequest>(corpus, "truncate_session");
  AddIds<v1::CloseSessionRequest>(corpus, "close_session");
  v1::OpenRegionRequest open_region;
  open_region.set_kind(v1::REGION_KIND_SHARED_MEMORY);
  open_region.set_bytes(4096);
  corpus.Add("open_region", "shared_memory", open_region);
  v1::CloseRegionRequest close_region;
  close_region.set_region_id(1);
  corpus.Add("close_region", "id1", close_region);
  const std::string unknown_field =
      "\x7a\x03"
      "abc";  // number 15, three bytes
  for (const char* target : {"list_sessions", "get_server_info", "get_metrics"}) {
    corpus.Add(target, "unknown_field", unknown_field);
  }
  AddConfigs(corpus);
}

}  // namespace
}  // namespace longshore::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("fuzz_seeds DIRECTORY\n", stderr);
    return 2;
  }
  longshore::fuzz::WriteAll(longshore::fuzz::Corpus(argv[1]));
  return 0;
}
