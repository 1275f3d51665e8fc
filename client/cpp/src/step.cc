#include "client/cpp/src/step.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "client/cpp/src/convert.h"
#include "client/cpp/src/random_id.h"
#include "client/cpp/src/status.h"

namespace longshore::client {
namespace {

absl::Status CheckSize(const char* name, int64_t size, int64_t rows, int64_t heads, int64_t dim) {
  return size == rows * heads * dim
             ? absl::OkStatus()
             : InvalidField(name, "has ", size, " elements, and ", rows, " rows of ", heads,
                            " heads of ", dim, " are ", rows * heads * dim);
}

void Pack(const Values& values, int64_t rows, int64_t heads, int64_t dim, v1::Tensor* tensor) {
  tensor->set_dtype(ToWire(values.dtype()));
  for (const int64_t extent : {rows, heads, dim}) {
    tensor->add_shape(extent);
  }
  tensor->mutable_inline_data()->assign(static_cast<const char*>(values.data()),
                                        static_cast<size_t>(values.bytes()));
}

template <typename Request>
void FillCommon(const Step& step, Request* request) {
  const ModelShape& model = step.session->model;
  request->set_layer(step.layer);
  v1::StepItem* item = request->add_items();
  item->set_session_id(step.session->id);
  item->set_position(step.position);
  item->set_rows(static_cast<int32_t>(step.rows));
  item->set_append_id(step.append_id);
  Pack(step.k, step.rows, model.num_kv_heads, model.head_dim, request->mutable_k());
  Pack(step.v, step.rows, model.num_kv_heads, model.head_dim, request->mutable_v());
}

template <typename Request>
void FillAttending(const Step& step, Request* request) {
  FillCommon(step, request);
  const ModelShape& model = step.session->model;
  Pack(step.q, step.rows, model.num_heads, model.head_dim, request->mutable_q());
  request->set_want_log_sum_exp(step.log_sum_exp);
  request->set_exclude_sink_logits(step.exclude_sink_logits);
}

DType DTypeOf(const v1::Tensor& tensor) {
  return tensor.dtype() == v1::DTYPE_BF16  ? DType::kBf16
         : tensor.dtype() == v1::DTYPE_F16 ? DType::kF16
                                           : DType::kF32;
}

template <typename Response>
Attended Take(Response* response) {
  v1::Tensor* out = response->mutable_out();
  Attended attended;
  attended.out = Tensor(DTypeOf(*out), {out->shape().begin(), out->shape().end()},
                        std::move(*out->mutable_inline_data()));
  const std::string& lse = response->log_sum_exp().inline_data();
  attended.log_sum_exp.resize(lse.size() / sizeof(float));
  if (!lse.empty()) {  // memcpy may not be given null, even for nothing
    std::memcpy(attended.log_sum_exp.data(), lse.data(),
                attended.log_sum_exp.size() * sizeof(float));
  }
  return attended;
}

}  // namespace

absl::StatusOr<Step> Step::Make(SessionState* session,
                                int32_t layer,
                                bool attends,
                                const Step& tensors,
                                const StepOptions& options) {
  if (session == nullptr) {
    return absl::FailedPreconditionError("the session is closed");
  }
  const ModelShape& model = session->model;
  if (layer < 0 || static_cast<size_t>(layer) >= session->tokens.size()) {
    return InvalidField("layer", layer, " is not in 0..", session->tokens.size(), " - 1");
  }
  const int64_t row_size = int64_t{model.num_kv_heads} * model.head_dim;
  const int64_t rows = tensors.k.size() / row_size;
  if (rows < 1) {
    return InvalidField("k", "has ", tensors.k.size(), " elements, and one row has ", row_size);
  }
  absl::Status status = CheckSize("k", tensors.k.size(), rows, model.num_kv_heads, model.head_dim);
  status.Update(CheckSize("v", tensors.v.size(), rows, model.num_kv_heads, model.head_dim));
  if (attends) {
    status.Update(CheckSize("q", tensors.q.size(), rows, model.num_heads, model.head_dim));
  }
  if (!status.ok()) {
    return status;
  }
  Step step = tensors;
  step.session = session;
  step.layer = layer;
  step.rows = rows;
  step.position = options.position.value_or(session->tokens[static_cast<size_t>(layer)]);
  step.append_id = options.append_id == 0 ? RandomId() : options.append_id;
  step.attends = attends;
  step.log_sum_exp = options.log_sum_exp;
  step.exclude_sink_logits = options.exclude_sink_logits;
  return step;
}

Step Step::Part(int64_t begin, int64_t count, uint64_t ordinal) const {
  const ModelShape& model = session->model;
  const int64_t kv_row = int64_t{model.num_kv_heads} * model.head_dim;
  const int64_t q_row = int64_t{model.num_heads} * model.head_dim;
  Step part = *this;
  part.k = k.Part(begin * kv_row, count * kv_row);
  part.v = v.Part(begin * kv_row, count * kv_row);
  if (attends) {
    part.q = q.Part(begin * q_row, count * q_row);
  }
  part.rows = count;
  part.position = position + begin;
  part.append_id = append_id + ordinal == 0 ? 1 : append_id + ordinal;
  return part;
}

void Step::Claim() {
  int64_t& tokens = session->tokens[static_cast<size_t>(layer)];
  tokens_before = tokens;
  tokens = position + rows;
}

void Step::GiveBack() const {
  int64_t& tokens = session->tokens[static_cast<size_t>(layer)];
  tokens = tokens == position + rows ? tokens_before : std::min(tokens, position);
}

void Step::FillTo(v1::AppendKVRequest* request) const { FillCommon(*this, request); }
void Step::FillTo(v1::PrefillRequest* request) const { FillAttending(*this, request); }
void Step::FillTo(v1::DecodeStepRequest* request) const { FillAttending(*this, request); }

Attended TakeAttended(v1::PrefillResponse* response) { return Take(response); }
Attended TakeAttended(v1::DecodeStepResponse* response) { return Take(response); }

int64_t RowsToCutAt(const v1::AttentionPolicy& policy, int64_t max_rows) {
  const int64_t together = std::max(1, policy.query_block());
  int64_t whole = together;
  for (const v1::LayerPolicy* layers : {&policy.prefill().rest(), &policy.prefill().early()}) {
    for (const v1::Stage& stage : layers->stages()) {
      whole = std::lcm(whole, std::max<int64_t>(1, stage.query_block()));
    }
  }
  return whole <= max_rows ? whole : together;
}

int64_t NextPiece(int64_t position, int64_t rows, int64_t max_rows, int64_t block) {
  if (rows <= max_rows) {
    return rows;
  }
  const int64_t aligned = max_rows - (position + max_rows) % block;
  return aligned > 0 ? aligned : max_rows;
}

}  // namespace longshore::client
