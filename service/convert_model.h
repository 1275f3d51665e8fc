#pragma once

#include "engine/model_shape.h"
#include "longshore/v1/model.pb.h"

namespace longshore {

/// An element type of the wire. InvalidArgument names `field` for one that is unset or unknown.
absl::StatusOr<DType> DTypeFromWire(v1::DType dtype, absl::string_view field);
v1::DType DTypeToWire(DType dtype);

/// A model's shape, with what may be left out filled in, and checked as NormalizeModelShape() does.
/// Errors name fields below `field`.
absl::StatusOr<ModelShape> ModelFromWire(const v1::ModelShape& model, absl::string_view field);
v1::ModelShape ModelToWire(const ModelShape& model);

}  // namespace longshore
