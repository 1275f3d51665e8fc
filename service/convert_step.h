#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <google/protobuf/repeated_field.h>

#include "engine/engine.h"
#include "longshore/v1/attention.pb.h"

namespace longshore {

/// A step's request and answer, whichever of the three kinds it is. Points into both messages.
struct StepMessage {
  StepKind kind = StepKind::kDecode;
  int32_t layer = 0;
  const google::protobuf::RepeatedPtrField<v1::StepItem>* items = nullptr;
  const v1::Tensor* q = nullptr;  ///< null: absent; always for AppendKV
  const v1::Tensor* k = nullptr;  ///< null: absent
  const v1::Tensor* v = nullptr;  ///< null: absent
  bool exclude_sink_logits = false;

  v1::Tensor* out = nullptr;          ///< null for AppendKV
  v1::Tensor* log_sum_exp = nullptr;  ///< null: not wanted
  google::protobuf::RepeatedField<int64_t>* layer_tokens = nullptr;
};

StepMessage MessageOf(const v1::AppendKVRequest& request, v1::AppendKVResponse* answer);
StepMessage MessageOf(const v1::PrefillRequest& request, v1::PrefillResponse* answer);
StepMessage MessageOf(const v1::DecodeStepRequest& request, v1::DecodeStepResponse* answer);

/// A step whose message holds together: an engine call that lacks only its outputs. Its tensors
/// point into the request, which must stay; moving it leaves them where they are.
struct CheckedStep {
  std::vector<StepItem> items;
  StepCall call;
  std::vector<std::vector<std::byte>> aligned_copies;  ///< of tensors that were not aligned
};

/// Checks everything that the message alone can tell: limits, absent tensors, types, ranks, sizes
/// against bytes, rows against items. InvalidArgument names the field and the two numbers. What the
/// session can tell is checked by Engine::Submit, before it changes anything.
absl::StatusOr<CheckedStep> CheckStep(const StepMessage& message, const EngineOptions& limits);

/// Makes room in the answer for what the engine will write, and points the call there, so that a
/// call that was applied needs no more memory. The call must fit `model`: its shape sets the sizes.
void BindOutputs(const ModelShape& model, const StepMessage& message, CheckedStep* step);

/// `bytes` at an address that is a multiple of `alignment`: as they are, or a copy that `copies`
/// owns. Inline tensors come from std::string, whose heap blocks are aligned; a slice need not be.
const std::byte* AlignedBytes(std::span<const std::byte> bytes,
                              int64_t alignment,
                              std::vector<std::vector<std::byte>>* copies);

}  // namespace longshore
