#pragma once

#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>
#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "longshore/v1/attention.grpc.pb.h"
#include "longshore/v1/region.grpc.pb.h"
#include "longshore/v1/server.grpc.pb.h"
#include "longshore/v1/session.grpc.pb.h"
#include "service/server.h"
#include "tests/support/fake_backend.h"
#include "tests/support/temp_directory.h"

namespace longshore {

/// Sizes of the model that service tests speak of; see TestWireModel().
inline constexpr int32_t kTestLayers = 2;
inline constexpr int32_t kTestHeads = 4;
inline constexpr int32_t kTestKvHeads = 2;
inline constexpr int32_t kTestHeadDim = 64;

/// A config that listens on a Unix socket of its own and serves no metrics.
inline Config TestConfig() {
  static int count = 0;
  Config config;
  config.listen.push_back(
      *ParseAddress("unix:" + TempDirectory::Get() / absl::StrCat(count++, ".sock")));
  config.engine.pool_bytes = int64_t{64} << 20;
  config.backend.threads = 1;
  config.drain_limit = std::chrono::milliseconds(1000);
  return config;
}

inline v1::ModelShape TestWireModel() {
  v1::ModelShape model;
  model.set_num_layers(kTestLayers);
  model.set_num_heads(kTestHeads);
  model.set_num_kv_heads(kTestKvHeads);
  model.set_head_dim(kTestHeadDim);
  model.set_query_dtype(v1::DTYPE_F32);
  model.set_kv_dtype(v1::DTYPE_F32);
  v1::RopeTable* table = model.add_rope_tables();
  for (int pair = 0; pair < kTestHeadDim / 2; ++pair) {
    table->add_inv_freq(1.0F / static_cast<float>(1 + pair));
  }
  table->set_pairing(v1::ROPE_PAIRING_HALF);
  table->set_trained_tokens(4096);
  return model;
}

inline v1::OpenSessionRequest TestOpenRequest(const std::string& preset = "standard") {
  v1::OpenSessionRequest request;
  *request.mutable_model() = TestWireModel();
  request.mutable_policy()->set_preset(preset);
  request.set_max_tokens(1024);
  return request;
}

/// [rows, heads, kTestHeadDim] f32, Gaussian, the same for the same seed.
inline v1::Tensor TestTensor(int64_t rows, int64_t heads, uint32_t seed) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DTYPE_F32);
  for (const int64_t extent : {rows, heads, int64_t{kTestHeadDim}}) {
    tensor.add_shape(extent);
  }
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(rows * heads * kTestHeadDim));
  for (float& value : values) {
    value = normal(random);
  }
  tensor.mutable_inline_data()->assign(reinterpret_cast<const char*>(values.data()),
                                       values.size() * sizeof(float));
  return tensor;
}

inline v1::StepItem TestItem(uint64_t session_id, int64_t position, int32_t rows) {
  v1::StepItem item;
  item.set_session_id(session_id);
  item.set_position(position);
  item.set_rows(rows);
  item.set_append_id(static_cast<uint64_t>(position) + 1000);
  return item;
}

/// A PrefillRequest or DecodeStepRequest of one session; its tensors follow from the position.
template <typename Request>
Request TestStep(uint64_t session_id, int64_t position, int32_t rows, int32_t layer = 0) {
  Request request;
  request.set_layer(layer);
  *request.add_items() = TestItem(session_id, position, rows);
  const auto seed = static_cast<uint32_t>(position * 10 + layer);
  *request.mutable_q() = TestTensor(rows, kTestHeads, seed + 1);
  *request.mutable_k() = TestTensor(rows, kTestKvHeads, seed + 2);
  *request.mutable_v() = TestTensor(rows, kTestKvHeads, seed + 3);
  return request;
}

/// The details of an error, unpacked.
struct WireError {
  grpc::StatusCode code = grpc::StatusCode::OK;
  std::string message;
  std::string reason;
  std::string domain;
  std::string field;
  std::map<std::string, std::string> metadata;
  bool retry = false;
};

inline WireError ErrorOf(const google::rpc::Status& status) {
  WireError error;
  error.code = static_cast<grpc::StatusCode>(status.code());
  error.message = status.message();
  for (const google::protobuf::Any& detail : status.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&info)) {
      error.reason = info.reason();
      error.domain = info.domain();
      error.metadata.insert(info.metadata().begin(), info.metadata().end());
    } else if (detail.UnpackTo(&bad_request)) {
      error.field = bad_request.field_violations(0).field();
    } else if (detail.UnpackTo(&retry)) {
      error.retry = retry.retry_delay().seconds() > 0 || retry.retry_delay().nanos() > 0;
    }
  }
  return error;
}

inline WireError ErrorOf(const grpc::Status& status) {
  google::rpc::Status details;
  details.ParseFromString(status.error_details());
  WireError error = ErrorOf(details);
  error.code = status.error_code();
  error.message = status.error_message();
  return error;
}

/// A server in this process, and a client of it. The backend is the CPU's, or a fake one.
class TestServer {
 public:
  explicit TestServer(const Config& config = TestConfig()) : TestServer(config, nullptr) {}
  /// With a FakeBackend of `device`.
  TestServer(const Config& config, FakeDevice* device) {
    // As the daemon's main() does: or a shutdown may take ten seconds after a large message.
    static const bool keep_grpc = (grpc_init(), true);
    EXPECT_TRUE(keep_grpc);
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(
        config,
        [config, device]() -> absl::StatusOr<std::unique_ptr<Backend>> {
          if (device != nullptr) {
            return std::make_unique<FakeBackend>(device);
          }
          return MakeBackend(config.backend);
        },
        [this] { device_lost = true; });
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    EXPECT_TRUE(server_->WaitReady().ok());
    Connect();
  }

  Server& operator*() { return *server_; }
  void Destroy() { server_.reset(); }
  v1::Attention::Stub& attention() { return *attention_; }
  v1::Sessions::Stub& sessions() { return *sessions_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  uint64_t Open(const v1::OpenSessionRequest& request = TestOpenRequest()) {
    grpc::ClientContext context;
    v1::OpenSessionResponse response;
    const grpc::Status status = sessions_->OpenSession(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.session_id();
  }
  grpc::Status Prefill(const v1::PrefillRequest& request, v1::PrefillResponse* response) {
    grpc::ClientContext context;
    return attention_->Prefill(&context, request, response);
  }
  grpc::Status Decode(const v1::DecodeStepRequest& request, v1::DecodeStepResponse* response) {
    grpc::ClientContext context;
    return attention_->DecodeStep(&context, request, response);
  }
  grpc::Status Append(const v1::AppendKVRequest& request, v1::AppendKVResponse* response) {
    grpc::ClientContext context;
    return attention_->AppendKV(&context, request, response);
  }
  v1::SessionInfo Describe(uint64_t session_id) {
    grpc::ClientContext context;
    v1::DescribeSessionRequest request;
    request.set_session_id(session_id);
    v1::DescribeSessionResponse response;
    const grpc::Status status = sessions_->DescribeSession(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.session();
  }

  std::atomic<bool> device_lost = false;

 private:
  void Connect() {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    // Its own connection: a channel to the same address would be shared between tests.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(server_->addresses().front().ToString(),
                                         grpc::InsecureChannelCredentials(), arguments);
    attention_ = v1::Attention::NewStub(channel_);
    sessions_ = v1::Sessions::NewStub(channel_);
  }

  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Attention::Stub> attention_;
  std::unique_ptr<v1::Sessions::Stub> sessions_;
};

}  // namespace longshore
