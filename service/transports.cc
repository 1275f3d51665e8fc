#include "service/transports.h"

#include <string>

#include "engine/core/error.h"

namespace longshore {

absl::StatusOr<std::span<const std::byte>> ResolveInput(const v1::Tensor& tensor,
                                                        absl::string_view field) {
  switch (tensor.data_case()) {
    case v1::Tensor::kInlineData: {
      const std::string& data = tensor.inline_data();
      return std::as_bytes(std::span(data.data(), data.size()));
    }
    case v1::Tensor::kRegion:
      return NotImplemented(absl::StrCat(field, ".region"),
                            "is not served by this build: send inline_data");
    case v1::Tensor::DATA_NOT_SET: break;
  }
  return InvalidField(field, "has no data: set inline_data");
}

std::span<std::byte> ResolveOutput(int64_t bytes, v1::Tensor* tensor) {
  std::string* data = tensor->mutable_inline_data();
  data->resize(static_cast<size_t>(bytes));
  return std::as_writable_bytes(std::span(data->data(), data->size()));
}

}  // namespace longshore
