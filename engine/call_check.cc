#include "engine/call_check.h"

#include <unordered_set>
#include <vector>

#include "engine/core/error.h"

namespace longshore {
namespace {

struct Axis {
  absl::string_view name;
  int64_t extent;
};

absl::Status CheckShape(absl::string_view field,
                        const TensorRef& tensor,
                        const std::vector<Axis>& axes) {
  if (tensor.data == nullptr) {
    return InvalidField(field, "is missing");
  }
  if (tensor.rank != static_cast<int32_t>(axes.size())) {
    return InvalidField(absl::StrCat(field, ".shape"), "has ", tensor.rank, " axes, not ",
                        axes.size());
  }
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    if (tensor.shape[axis] != axes[axis].extent) {
      return InvalidField(absl::StrCat(field, ".shape[", axis, "]"), tensor.shape[axis], " is not ",
                          axes[axis].name, " ", axes[axis].extent);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(absl::string_view field,
                         const TensorRef& tensor,
                         const std::vector<Axis>& axes,
                         DType dtype) {
  RETURN_IF_ERROR(CheckShape(field, tensor, axes));
  if (tensor.dtype != dtype) {
    return InvalidField(absl::StrCat(field, ".dtype"), NameOf(tensor.dtype), " is not ",
                        NameOf(dtype));
  }
  return absl::OkStatus();
}

// Keys and values: both in the type that they are stored in, or both in the queries'.
absl::Status CheckKeysAndValues(const StepCall& call,
                                const ModelShape& model,
                                const std::vector<Axis>& axes) {
  RETURN_IF_ERROR(CheckShape("k", call.k, axes));
  if (call.k.dtype != model.kv_dtype && call.k.dtype != model.query_dtype) {
    return InvalidField("k.dtype", NameOf(call.k.dtype), " is not kv_dtype ",
                        NameOf(model.kv_dtype), " or query_dtype ", NameOf(model.query_dtype));
  }
  RETURN_IF_ERROR(CheckShape("v", call.v, axes));
  if (call.v.dtype != call.k.dtype) {
    return InvalidField("v.dtype", NameOf(call.v.dtype), " is not k.dtype ", NameOf(call.k.dtype));
  }
  return absl::OkStatus();
}

int64_t TotalRows(const StepCall& call) {
  int64_t rows = 0;
  for (const StepItem& item : call.items) {
    rows += item.rows;
  }
  return rows;
}

}  // namespace

absl::Status CheckCallItems(const StepCall& call, const EngineOptions& options) {
  if (call.items.empty()) {
    return InvalidField("items", "is empty");
  }
  if (static_cast<int64_t>(call.items.size()) > options.max_items_per_call) {
    return InvalidField("items", "has ", call.items.size(), " entries, the limit is ",
                        options.max_items_per_call);
  }
  const int64_t max_rows = call.kind == StepKind::kDecode ? options.max_rows_per_decode_item
                                                          : options.max_rows_per_prefill;
  std::unordered_set<uint64_t> seen;
  for (size_t index = 0; index < call.items.size(); ++index) {
    const StepItem& item = call.items[index];
    if (item.rows < 1 || item.rows > max_rows) {
      return InvalidField(absl::StrCat("items[", index, "].rows"), item.rows, " is not in 1..",
                          max_rows);
    }
    if (item.position < 0) {
      return InvalidField(absl::StrCat("items[", index, "].position"), item.position,
                          " is less than 0");
    }
    if (!seen.insert(item.session_id).second) {
      return InvalidField(absl::StrCat("items[", index, "].session_id"), item.session_id,
                          " is in this call twice");
    }
  }
  if (call.kind != StepKind::kDecode && TotalRows(call) > max_rows) {
    return InvalidField("items", "have ", TotalRows(call), " rows, the limit is ", max_rows);
  }
  return absl::OkStatus();
}

absl::Status CheckCallInputs(const StepCall& call, const ModelShape& model) {
  const Axis rows = {"the items' rows", TotalRows(call)};
  const Axis head_dim = {"head_dim", model.head_dim};
  RETURN_IF_ERROR(
      CheckKeysAndValues(call, model, {rows, {"num_kv_heads", model.num_kv_heads}, head_dim}));
  return call.kind == StepKind::kAppend
             ? absl::OkStatus()
             : CheckTensor("q", call.q, {rows, {"num_heads", model.num_heads}, head_dim},
                           model.query_dtype);
}

absl::Status CheckCallOutputs(const StepCall& call, const ModelShape& model) {
  if (call.kind == StepKind::kAppend) {
    return absl::OkStatus();
  }
  const Axis rows = {"the items' rows", TotalRows(call)};
  const Axis heads = {"num_heads", model.num_heads};
  RETURN_IF_ERROR(
      CheckTensor("out", call.out, {rows, heads, {"head_dim", model.head_dim}}, model.query_dtype));
  return call.log_sum_exp.data == nullptr
             ? absl::OkStatus()
             : CheckTensor("log_sum_exp", call.log_sum_exp, {rows, heads}, DType::kF32);
}

absl::StatusOr<bool> IsReplay(StepKind kind,
                              const StepItem& item,
                              int64_t tokens,
                              const LastCall& last) {
  if (item.position == tokens) {
    return false;
  }
  if (last.any && last.kind == kind && last.position == item.position && last.rows == item.rows &&
      item.append_id != 0 && last.append_id == item.append_id) {
    return true;
  }
  const bool gap = item.position > tokens;
  return MakeError(gap ? absl::StatusCode::kOutOfRange : absl::StatusCode::kAborted,
                   absl::StrCat("position ", item.position,
                                gap ? " leaves a gap: " : " is taken and this is no replay: ",
                                "expected position ", tokens),
                   {.reason = gap ? "POSITION_GAP" : "POSITION_CONFLICT",
                    .field = "position",
                    .metadata = {{"expected_position", absl::StrCat(tokens)}}});
}

}  // namespace longshore
