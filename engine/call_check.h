#pragma once

#include "engine/engine_options.h"
#include "engine/model_shape.h"
#include "engine/step.h"

namespace longshore {

/// Checks what a call says about itself: items, rows and limits. InvalidArgument names the field
/// (`items[1].rows`) and the two numbers.
absl::Status CheckCallItems(const StepCall& call, const EngineOptions& options);

/// Checks the tensors of a call against the model: presence, dtype, rank and extents of k, v and q,
/// and of out and log_sum_exp. InvalidArgument names the field (`k.shape[1]`) and the two numbers.
absl::Status CheckCallInputs(const StepCall& call, const ModelShape& model);
absl::Status CheckCallOutputs(const StepCall& call, const ModelShape& model);

/// What an item means for a layer that holds `tokens` tokens: true for a replay of its last call,
/// false for new rows. Aborted POSITION_CONFLICT or OutOfRange POSITION_GAP with expected_position.
absl::StatusOr<bool> IsReplay(StepKind kind,
                              const StepItem& item,
                              int64_t tokens,
                              const LastCall& last);

}  // namespace longshore
