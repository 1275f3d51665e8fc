#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/status.h"
#include "longshore/v1/tensor.pb.h"

namespace longshore {

/// The seam for transports: a transport is a way to open a region, and these two functions are all
/// that asks where a tensor's bytes are. Today they are in the message; a region is one more case.

/// The bytes of a request's tensor, which stay as long as the message does. Unimplemented for a
/// region, InvalidArgument when there are none; both name `field`.
absl::StatusOr<std::span<const std::byte>> ResolveInput(const v1::Tensor& tensor,
                                                        absl::string_view field);

/// `bytes` bytes to write an answer's tensor to, which stay as long as the message does.
std::span<std::byte> ResolveOutput(int64_t bytes, v1::Tensor* tensor);

}  // namespace longshore
