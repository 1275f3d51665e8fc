// Which blocks of a call are kept to be measured, and the measuring between calls.

#include <utility>

#include "engine/engine_work.h"

namespace longshore {

// Keeps a block of a sampled share for AdvanceRecall. A block that leaves nothing out needs no
// measuring, and a replay has been sampled before.
absl::Status Engine::SampleRecall(const StepCall& call,
                                  std::span<const Work> work,
                                  const GroupRun& run) {
  for (size_t index = 0; recall_.enabled() && index < run.blocks.size(); ++index) {
    const BlockPlan& plan = run.blocks[index];
    const Work& item = work[static_cast<size_t>(plan.item)];
    const AttendBlock attend = AttendOf(run, index);
    const int64_t selected_tokens = int64_t{attend.num_selected} * attend.selected_chunk_tokens;
    if (plan.middle != Middle::kStages || item.replay ||
        selected_tokens == plan.regions.MiddleTokens() || !recall_.Samples()) {
      continue;
    }
    const bool prefills = call.kind == StepKind::kPrefill;
    const PhasePolicy& layers = prefills ? run.policy->prefill : run.policy->decode;
    RETURN_IF_ERROR(
        recall_.Capture({.session_id = item.item.session_id,
                         .layer = call.layer,
                         .early = call.layer < layers.first_layers,
                         .phase = prefills ? Phase::kPrefill : Phase::kDecode,
                         .age_steps = plan.first_position + plan.rows - 1 - plan.selected_at},
                        run.shape, attend, plan.beyond, call.q));
  }
  return absl::OkStatus();
}

absl::StatusOr<RecallSlice> Engine::AdvanceRecall(int64_t max_products) {
  RETURN_IF_ERROR(device_status_);
  absl::StatusOr<RecallSlice> slice = recall_.Advance(max_products);
  return slice.ok() ? std::move(slice) : DeviceFailed(slice.status());
}

}  // namespace longshore
