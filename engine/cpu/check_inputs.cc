#include "engine/cpu/check_inputs.h"

#include <cmath>

#include "engine/core/error.h"
#include "engine/core/half.h"
#include "engine/cpu/tile_kernels.h"

namespace longshore::cpu {
namespace {

float ElementOf(const TensorRef& tensor, int64_t index) {
  switch (tensor.dtype) {
    case DType::kF32: return static_cast<const float*>(tensor.data)[index];
    case DType::kBf16: return ToFloat(static_cast<const Bf16*>(tensor.data)[index]);
    case DType::kF16: return ToFloat(static_cast<const F16*>(tensor.data)[index]);
    case DType::kF8E4M3: break;  // no tensor has it: the shape's check refuses it
  }
  LONGSHORE_CHECK(false);
}

// Whether every element among an item's rows is within `limit`.
absl::Status CheckMagnitudes(absl::string_view field,
                             const TensorRef& tensor,
                             const AppendItem& item,
                             float limit) {
  const int64_t row_elements = tensor.shape[1] * tensor.shape[2];
  const int64_t above =
      FirstAbove(tensor.Row(item.first_row), tensor.dtype, item.rows * row_elements, limit);
  if (above < 0) {
    return absl::OkStatus();
  }
  const int64_t row = item.first_row + above / row_elements;
  const int64_t element = above % row_elements;
  const int64_t position = item.position + above / row_elements;
  const float value = ElementOf(tensor, row * row_elements + element);
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrCat(field, " holds ", value, " in row ", row, " at position ", position, ", head ",
                   element / tensor.shape[2], ", element ", element % tensor.shape[2],
                   "; the largest magnitude may be ", limit),
      {.reason = std::isfinite(value) ? "OUT_OF_RANGE_VALUE" : "NON_FINITE",
       .field = std::string{field},
       .metadata = {{"position", absl::StrCat(position)}}});
}

}  // namespace

absl::Status CheckInputs(const AppendArgs& args, const AppendItem& item) {
  if (!item.replay) {
    RETURN_IF_ERROR(CheckMagnitudes("k", args.k, item, args.limits.k));
    RETURN_IF_ERROR(CheckMagnitudes("v", args.v, item, args.limits.v));
  }
  return args.q.data == nullptr ? absl::OkStatus()
                                : CheckMagnitudes("q", args.q, item, args.limits.q);
}

}  // namespace longshore::cpu
