#include "service/convert_step.h"

#include <initializer_list>
#include <optional>

#include "engine/call_check.h"
#include "engine/core/math.h"
#include "service/convert_model.h"
#include "service/transports.h"

namespace longshore {
namespace {

constexpr int kTensorRank = 3;  // of q, k and v: [rows, heads, head_dim]

template <typename Request, typename Answer>
StepMessage AttendMessageOf(StepKind kind, const Request& request, Answer* answer) {
  StepMessage message;
  message.kind = kind;
  message.layer = request.layer();
  message.items = &request.items();
  message.q = request.has_q() ? &request.q() : nullptr;
  message.k = request.has_k() ? &request.k() : nullptr;
  message.v = request.has_v() ? &request.v() : nullptr;
  message.exclude_sink_logits = request.exclude_sink_logits();
  message.out = answer->mutable_out();
  message.log_sum_exp = request.want_log_sum_exp() ? answer->mutable_log_sum_exp() : nullptr;
  message.layer_tokens = answer->mutable_layer_tokens();
  return message;
}

// dtype and extents of a tensor; the bytes that they need go to `bytes`.
absl::StatusOr<TensorRef> CheckHeader(const v1::Tensor& tensor,
                                      absl::string_view field,
                                      int64_t* bytes) {
  TensorRef ref;
  ASSIGN_OR_RETURN(ref.dtype, DTypeFromWire(tensor.dtype(), absl::StrCat(field, ".dtype")));
  if (tensor.shape_size() != kTensorRank) {
    return InvalidField(absl::StrCat(field, ".shape"), "has ", tensor.shape_size(), " axes, not ",
                        kTensorRank);
  }
  ref.rank = kTensorRank;
  std::optional<int64_t> size = SizeOf(ref.dtype);
  for (int axis = 0; axis < kTensorRank; ++axis) {
    const int64_t extent = tensor.shape(axis);
    if (extent < 1) {
      return InvalidField(absl::StrCat(field, ".shape[", axis, "]"), extent, " is less than 1");
    }
    size = CheckedMul(*size, extent);
    if (!size.has_value()) {
      return InvalidField(absl::StrCat(field, ".shape"), "needs 2^63 bytes or more");
    }
    ref.shape[static_cast<size_t>(axis)] = extent;
  }
  *bytes = *size;
  return ref;
}

// A tensor of `rows` rows: its header, and its bytes at an aligned address.
absl::StatusOr<TensorRef> CheckTensor(const v1::Tensor* tensor,
                                      absl::string_view field,
                                      int64_t rows,
                                      CheckedStep* step) {
  if (tensor == nullptr) {
    return InvalidField(field, "is missing");
  }
  int64_t needed = 0;
  ASSIGN_OR_RETURN(TensorRef ref, CheckHeader(*tensor, field, &needed));
  if (ref.shape[0] != rows) {
    return InvalidField(absl::StrCat(field, ".shape[0]"), ref.shape[0],
                        " is not the sum of the items' rows ", rows);
  }
  ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, ResolveInput(*tensor, field));
  if (std::ssize(bytes) != needed) {
    return InvalidField(absl::StrCat(field, ".inline_data"), "has ", bytes.size(),
                        " bytes, its shape and dtype need ", needed);
  }
  // The engine only reads q, k and v; TensorRef has one pointer for both directions.
  ref.data = const_cast<std::byte*>(AlignedBytes(bytes, SizeOf(ref.dtype), &step->aligned_copies));
  return ref;
}

TensorRef BindOutput(DType dtype, std::initializer_list<int64_t> shape, v1::Tensor* tensor) {
  TensorRef ref;
  ref.dtype = dtype;
  tensor->set_dtype(DTypeToWire(dtype));
  tensor->clear_shape();
  for (const int64_t extent : shape) {
    ref.shape[static_cast<size_t>(ref.rank++)] = extent;
    tensor->add_shape(extent);
  }
  ref.data = ResolveOutput(ref.Bytes(), tensor).data();
  return ref;
}

}  // namespace

StepMessage MessageOf(const v1::AppendKVRequest& request, v1::AppendKVResponse* answer) {
  StepMessage message;
  message.kind = StepKind::kAppend;
  message.layer = request.layer();
  message.items = &request.items();
  message.k = request.has_k() ? &request.k() : nullptr;
  message.v = request.has_v() ? &request.v() : nullptr;
  message.layer_tokens = answer->mutable_layer_tokens();
  return message;
}

StepMessage MessageOf(const v1::PrefillRequest& request, v1::PrefillResponse* answer) {
  return AttendMessageOf(StepKind::kPrefill, request, answer);
}

StepMessage MessageOf(const v1::DecodeStepRequest& request, v1::DecodeStepResponse* answer) {
  return AttendMessageOf(StepKind::kDecode, request, answer);
}

const std::byte* AlignedBytes(std::span<const std::byte> bytes,
                              int64_t alignment,
                              std::vector<std::vector<std::byte>>* copies) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % static_cast<uintptr_t>(alignment) == 0) {
    return bytes.data();
  }
  return copies->emplace_back(bytes.begin(), bytes.end()).data();
}

absl::StatusOr<CheckedStep> CheckStep(const StepMessage& message, const EngineOptions& limits) {
  CheckedStep step;
  int64_t rows = 0;
  for (const v1::StepItem& item : *message.items) {
    step.items.push_back({.session_id = item.session_id(),
                          .position = item.position(),
                          .rows = item.rows(),
                          .append_id = item.append_id()});
    rows += item.rows();
  }
  StepCall& call = step.call;
  call.kind = message.kind;
  call.layer = message.layer;
  call.items = step.items;
  call.exclude_sink_logits = message.exclude_sink_logits;
  RETURN_IF_ERROR(CheckCallItems(call, limits));

  if (call.kind != StepKind::kAppend) {
    ASSIGN_OR_RETURN(call.q, CheckTensor(message.q, "q", rows, &step));
  }
  ASSIGN_OR_RETURN(call.k, CheckTensor(message.k, "k", rows, &step));
  ASSIGN_OR_RETURN(call.v, CheckTensor(message.v, "v", rows, &step));
  if (call.k.dtype != call.v.dtype) {
    return InvalidField("v.dtype", NameOf(call.v.dtype), " is not k.dtype ", NameOf(call.k.dtype));
  }
  return step;
}

void BindOutputs(const ModelShape& model, const StepMessage& message, CheckedStep* step) {
  const int64_t rows = step->call.k.shape[0];
  message.layer_tokens->Reserve(message.items->size());
  if (message.out != nullptr) {
    step->call.out =
        BindOutput(model.query_dtype, {rows, model.num_heads, model.head_dim}, message.out);
  }
  if (message.log_sum_exp != nullptr) {
    step->call.log_sum_exp = BindOutput(DType::kF32, {rows, model.num_heads}, message.log_sum_exp);
  }
}

}  // namespace longshore
