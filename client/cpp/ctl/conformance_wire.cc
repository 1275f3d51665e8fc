// How conformance cases speak to a daemon.

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include <absl/strings/cord.h>
#include <absl/strings/str_join.h>

#include "client/cpp/ctl/conformance.h"
#include "client/cpp/src/convert.h"
#include "client/cpp/src/random_id.h"

namespace longshore::ctl {
namespace {

constexpr char kSkipUrl[] = "longshorectl/skip";

template <typename Request>
void FillStep(uint64_t session_id,
              int64_t position,
              const StepData& data,
              int32_t layer,
              Request* request) {
  request->set_layer(layer);
  v1::StepItem* item = request->add_items();
  item->set_session_id(session_id);
  item->set_position(position);
  item->set_rows(static_cast<int32_t>(data.rows));
  item->set_append_id(client::RandomId());
  *request->mutable_k() = ToTensor(data.k, data.rows, kKvHeads);
  *request->mutable_v() = ToTensor(data.v, data.rows, kKvHeads);
}

}  // namespace

client::ModelShape ConformanceModel() {
  return {.num_layers = kLayers,
          .num_heads = kHeads,
          .num_kv_heads = kKvHeads,
          .head_dim = kHeadDim,
          .rope_tables = {client::RopeTable::FromBase(10000.0, kHeadDim, 8192)}};
}

Wire::Wire(const std::string& target, client::ServerInfo info, client::CallOptions options)
    : info_(std::move(info)),
      options_(options),
      connection_(target, {.max_attempts = 1}) {}

absl::StatusOr<v1::OpenSessionResponse> Wire::Open(const v1::OpenSessionRequest& request) {
  v1::OpenSessionResponse response;
  absl::Status status = connection_.Call(connection_.sessions(), &v1::Sessions::Stub::OpenSession,
                                         request, &response, client::Repeat::kRead, options_);
  if (!status.ok()) {
    return status;
  }
  open_.push_back(response.session_id());
  return response;
}

absl::StatusOr<uint64_t> Wire::Open(const std::string& preset) {
  const absl::StatusOr<v1::OpenSessionResponse> response = Open(OpenRequest(preset));
  if (!response.ok()) {
    return response.status();
  }
  return response->session_id();
}

absl::Status Wire::Close(uint64_t session_id) {
  std::erase(open_, session_id);
  v1::CloseSessionRequest request;
  request.set_session_id(session_id);
  v1::CloseSessionResponse response;
  return connection_.Call(connection_.sessions(), &v1::Sessions::Stub::CloseSession, request,
                          &response, client::Repeat::kRead, options_);
}

void Wire::CloseAll() {
  while (!open_.empty()) {
    Close(open_.back()).IgnoreError();  // a case may have closed it in its own way
  }
}

absl::StatusOr<v1::SessionInfo> Wire::Describe(uint64_t session_id) {
  v1::DescribeSessionRequest request;
  request.set_session_id(session_id);
  v1::DescribeSessionResponse response;
  const absl::Status status =
      connection_.Call(connection_.sessions(), &v1::Sessions::Stub::DescribeSession, request,
                       &response, client::Repeat::kRead, options_);
  if (!status.ok()) {
    return status;
  }
  return response.session();
}

absl::StatusOr<std::vector<v1::SessionInfo>> Wire::List() {
  v1::ListSessionsResponse response;
  const absl::Status status =
      connection_.Call(connection_.sessions(), &v1::Sessions::Stub::ListSessions,
                       v1::ListSessionsRequest(), &response, client::Repeat::kRead, options_);
  if (!status.ok()) {
    return status;
  }
  return std::vector<v1::SessionInfo>(response.sessions().begin(), response.sessions().end());
}

absl::StatusOr<std::vector<int64_t>> Wire::Truncate(uint64_t session_id, int64_t position) {
  v1::TruncateSessionRequest request;
  request.set_session_id(session_id);
  request.set_position(position);
  v1::TruncateSessionResponse response;
  const absl::Status status =
      connection_.Call(connection_.sessions(), &v1::Sessions::Stub::TruncateSession, request,
                       &response, client::Repeat::kRead, options_);
  if (!status.ok()) {
    return status;
  }
  return std::vector<int64_t>(response.layer_tokens().begin(), response.layer_tokens().end());
}

absl::StatusOr<v1::AppendKVResponse> Wire::Call(const v1::AppendKVRequest& request) {
  v1::AppendKVResponse response;
  const absl::Status status =
      connection_.Call(connection_.attention(), &v1::Attention::Stub::AppendKV, request, &response,
                       client::Repeat::kRead, options_);
  return status.ok() ? absl::StatusOr<v1::AppendKVResponse>(std::move(response)) : status;
}

absl::StatusOr<v1::PrefillResponse> Wire::Call(const v1::PrefillRequest& request) {
  v1::PrefillResponse response;
  const absl::Status status =
      connection_.Call(connection_.attention(), &v1::Attention::Stub::Prefill, request, &response,
                       client::Repeat::kRead, options_);
  return status.ok() ? absl::StatusOr<v1::PrefillResponse>(std::move(response)) : status;
}

absl::StatusOr<v1::DecodeStepResponse> Wire::Call(const v1::DecodeStepRequest& request) {
  v1::DecodeStepResponse response;
  const absl::Status status =
      connection_.Call(connection_.attention(), &v1::Attention::Stub::DecodeStep, request,
                       &response, client::Repeat::kRead, options_);
  return status.ok() ? absl::StatusOr<v1::DecodeStepResponse>(std::move(response)) : status;
}

v1::OpenSessionRequest OpenRequest(const std::string& preset) {
  v1::OpenSessionRequest request;
  *request.mutable_model() = client::ToWire(ConformanceModel());
  request.mutable_policy()->set_preset(preset);
  request.set_max_tokens(kMaxTokens);
  request.set_name("longshorectl conformance");
  return request;
}

v1::Tensor ToTensor(std::span<const float> values, int64_t rows, int64_t heads) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DTYPE_F32);
  for (const int64_t extent : {rows, heads, int64_t{kHeadDim}}) {
    tensor.add_shape(extent);
  }
  tensor.set_inline_data(values.data(), values.size_bytes());
  return tensor;
}

std::vector<float> Gaussian(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

std::vector<float> FloatsOf(const v1::Tensor& tensor) {
  std::vector<float> values(tensor.inline_data().size() / sizeof(float));
  std::memcpy(values.data(), tensor.inline_data().data(), values.size() * sizeof(float));
  return values;
}

template <>
v1::AppendKVRequest MakeStep(uint64_t session_id,
                             int64_t position,
                             const StepData& data,
                             int32_t layer) {
  v1::AppendKVRequest request;
  FillStep(session_id, position, data, layer, &request);
  return request;
}

template <>
v1::PrefillRequest MakeStep(uint64_t session_id,
                            int64_t position,
                            const StepData& data,
                            int32_t layer) {
  v1::PrefillRequest request;
  FillStep(session_id, position, data, layer, &request);
  *request.mutable_q() = ToTensor(data.q, data.rows, kHeads);
  return request;
}

template <>
v1::DecodeStepRequest MakeStep(uint64_t session_id,
                               int64_t position,
                               const StepData& data,
                               int32_t layer) {
  v1::DecodeStepRequest request;
  FillStep(session_id, position, data, layer, &request);
  *request.mutable_q() = ToTensor(data.q, data.rows, kHeads);
  return request;
}

absl::Status Skip(const std::string& why) {
  absl::Status status = absl::UnimplementedError(why);
  status.SetPayload(kSkipUrl, absl::Cord());
  return status;
}

bool IsSkip(const absl::Status& status) { return status.GetPayload(kSkipUrl).has_value(); }

absl::Status ExpectError(const absl::Status& status,
                         absl::StatusCode code,
                         const std::string& reason,
                         const std::string& field) {
  const std::string wanted = absl::StrCat(absl::StatusCodeToString(code), " ", reason,
                                          field.empty() ? "" : " of " + field);
  if (status.ok()) {
    return Fail("answered OK instead of ", wanted);
  }
  const client::ErrorDetails details = client::DetailsOf(status);
  if (status.code() == code && details.reason == reason &&
      (field.empty() || details.field == field)) {
    return absl::OkStatus();
  }
  return Fail("answered ", absl::StatusCodeToString(status.code()), " ", details.reason,
              details.field.empty() ? "" : " of " + details.field, " (", status.message(),
              ") instead of ", wanted);
}

absl::Status ExpectTokens(Wire& wire, uint64_t session_id, const std::vector<int64_t>& tokens) {
  const absl::StatusOr<v1::SessionInfo> info = wire.Describe(session_id);
  if (!info.ok()) {
    return info.status();
  }
  const std::vector<int64_t> held(info->layer_tokens().begin(), info->layer_tokens().end());
  return held == tokens ? absl::OkStatus()
                        : Fail("the layers hold ", absl::StrJoin(held, ", "), " tokens instead of ",
                               absl::StrJoin(tokens, ", "));
}

}  // namespace longshore::ctl
