#pragma once

#include "engine/backend_args.h"
#include "engine/core/status.h"

namespace longshore::cpu {

/// InvalidArgument NON_FINITE or OUT_OF_RANGE_VALUE with the position if an element of an item's
/// rows in q, k or v, which lie in host memory, is not within args.limits. Every backend's Append
/// looks at inputs in host memory so.
absl::Status CheckInputs(const AppendArgs& args, const AppendItem& item);

}  // namespace longshore::cpu
