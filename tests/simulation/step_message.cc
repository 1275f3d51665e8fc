#include "tests/simulation/step_message.h"

#include <cstring>
#include <string>

#include "service/convert_model.h"
#include "tests/simulation/ledger_backend.h"

namespace longshore::simulation {
namespace {

// [rows, heads, head_dim], the same bytes in every element but for the word that each row begins
// with.
v1::Tensor MakeTensor(const ModelShape& model,
                      int64_t rows,
                      int64_t heads,
                      const std::vector<uint64_t>& words) {
  v1::Tensor tensor;
  tensor.set_dtype(DTypeToWire(model.query_dtype));
  for (const int64_t extent : {rows, heads, int64_t{model.head_dim}}) {
    tensor.add_shape(extent);
  }
  const auto row_bytes = static_cast<size_t>(heads * model.head_dim * SizeOf(model.query_dtype));
  std::string* data = tensor.mutable_inline_data();
  data->assign(static_cast<size_t>(rows) * row_bytes, '\x3d');
  for (size_t row = 0; row < words.size(); ++row) {
    std::memcpy(data->data() + row * row_bytes, &words[row], sizeof(uint64_t));
  }
  return tensor;
}

void Spoil(const World& world, const Operation& operation, v1::Tensor* k, v1::Tensor* v) {
  switch (operation.flaw) {
    case Flaw::kUnknownDtype: k->set_dtype(static_cast<v1::DType>(99)); break;
    case Flaw::kWrongRows: k->set_shape(0, k->shape(0) + 1); break;
    case Flaw::kMissingBytes: v->mutable_inline_data()->pop_back(); break;
    case Flaw::kRegion: v->mutable_region()->set_region_id(1); break;
    case Flaw::kMixedDtypes: {
      const bool f32 = world.shapes[operation.shape].query_dtype == DType::kF32;
      v->set_dtype(f32 ? v1::DTYPE_BF16 : v1::DTYPE_F32);
      std::string* data = v->mutable_inline_data();
      data->resize(f32 ? data->size() / 2 : data->size() * 2);
      break;
    }
    default: break;
  }
}

template <typename Request>
void Fill(const World& world, const Operation& operation, int64_t rows, Request* request) {
  const ModelShape& model = world.shapes[operation.shape];
  const int64_t heads = model.num_kv_heads + (operation.flaw == Flaw::kWrongHeads ? 1 : 0);
  std::vector<uint64_t> keys;
  std::vector<uint64_t> values;
  for (const OpItem& item : operation.items) {
    v1::StepItem* wire = request->add_items();
    wire->set_session_id(item.session);
    wire->set_position(item.position);
    wire->set_rows(static_cast<int32_t>(item.rows));
    wire->set_append_id(item.append_id);
    for (const uint64_t word : item.words) {
      keys.push_back(word);
      values.push_back(ValueWord(word));
    }
  }
  v1::Tensor k = MakeTensor(model, rows, heads, keys);
  const uint64_t fault = FaultWord(operation.fault);
  std::memcpy(k.mutable_inline_data()->data() + sizeof(uint64_t), &fault, sizeof(fault));
  v1::Tensor v = MakeTensor(model, rows, heads, values);
  Spoil(world, operation, &k, &v);
  if (operation.flaw != Flaw::kNoKeys) {
    *request->mutable_k() = std::move(k);
  }
  *request->mutable_v() = std::move(v);
  if constexpr (requires { request->mutable_q(); }) {
    *request->mutable_q() = MakeTensor(model, rows, heads, keys);
    request->set_want_log_sum_exp(operation.log_sum_exp);
  }
  request->set_layer(operation.flaw == Flaw::kWrongLayer ? 99 : operation.layer);
  const int32_t max_rows = operation.kind == OpKind::kDecode
                               ? world.engine.max_rows_per_decode_item
                               : static_cast<int32_t>(world.engine.max_rows_per_prefill);
  switch (operation.flaw) {
    case Flaw::kNoItems: request->clear_items(); break;
    case Flaw::kRepeatedSession: *request->add_items() = request->items(0); break;
    case Flaw::kNoRows: request->mutable_items(0)->set_rows(0); break;
    case Flaw::kTooManyRows: request->mutable_items(0)->set_rows(max_rows + 1); break;
    case Flaw::kNegativePosition: request->mutable_items(0)->set_position(-1); break;
    default: break;
  }
}

// Whether `out` beyond each row's first word is q, and each log-sum-exp its row's position.
template <typename Request, typename Answer>
void ReadAttention(const Operation& operation,
                   int64_t rows,
                   const Request& request,
                   const Answer& answer,
                   Outcome* outcome) {
  outcome->layer_tokens.assign(answer.layer_tokens().begin(), answer.layer_tokens().end());
  const std::string& out = answer.out().inline_data();
  const std::string& q = request.q().inline_data();
  const std::string& log_sum_exp = answer.log_sum_exp().inline_data();
  const auto heads = static_cast<size_t>(request.q().shape(1));
  const size_t row_bytes = q.size() / static_cast<size_t>(rows);
  const size_t sums = operation.log_sum_exp ? static_cast<size_t>(rows) * heads : 0;
  outcome->echoed = out.size() == q.size() && log_sum_exp.size() == sums * sizeof(float);
  size_t row = 0;
  for (const OpItem& item : operation.items) {
    for (int64_t of_item = 0; of_item < item.rows && outcome->echoed; ++of_item, ++row) {
      const size_t begin = row * row_bytes;
      constexpr size_t kWord = sizeof(uint64_t);
      std::memcpy(&outcome->words.emplace_back(), out.data() + begin, kWord);
      outcome->echoed =
          std::memcmp(out.data() + begin + kWord, q.data() + begin + kWord, row_bytes - kWord) == 0;
      for (size_t head = 0; sums > 0 && head < heads; ++head) {
        float value = 0;
        std::memcpy(&value, log_sum_exp.data() + (row * heads + head) * sizeof(float),
                    sizeof(float));
        outcome->echoed &= value == static_cast<float>(item.position + of_item);
      }
    }
  }
}

}  // namespace

StepOnWire::StepOnWire(const World& world, const Operation& operation) : operation_(operation) {
  for (const OpItem& item : operation.items) {
    rows_ += item.rows;
  }
  switch (operation.kind) {
    case OpKind::kAppend: Fill(world, operation, rows_, request_.mutable_append_kv()); break;
    case OpKind::kPrefill: Fill(world, operation, rows_, request_.mutable_prefill()); break;
    default: Fill(world, operation, rows_, request_.mutable_decode()); break;
  }
}

StepMessage StepOnWire::message() {
  switch (request_.step_case()) {
    case v1::StreamStepsRequest::kAppendKv:
      return MessageOf(request_.append_kv(), answer_.mutable_append_kv());
    case v1::StreamStepsRequest::kPrefill:
      return MessageOf(request_.prefill(), answer_.mutable_prefill());
    default: return MessageOf(request_.decode(), answer_.mutable_decode());
  }
}

void StepOnWire::ReadAnswer(Outcome* outcome) const {
  switch (request_.step_case()) {
    case v1::StreamStepsRequest::kAppendKv: {
      const auto& tokens = answer_.append_kv().layer_tokens();
      outcome->layer_tokens.assign(tokens.begin(), tokens.end());
      break;
    }
    case v1::StreamStepsRequest::kPrefill:
      ReadAttention(operation_, rows_, request_.prefill(), answer_.prefill(), outcome);
      break;
    default: ReadAttention(operation_, rows_, request_.decode(), answer_.decode(), outcome); break;
  }
}

}  // namespace longshore::simulation
