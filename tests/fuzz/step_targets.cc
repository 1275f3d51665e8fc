// AppendKV, Prefill, DecodeStep and StreamSteps: parsed, checked, and run where they pass.

#include <cmath>
#include <cstring>
#include <string>

#include "engine/core/half.h"
#include "longshore/v1/attention.pb.h"
#include "service/convert_step.h"
#include "service/errors.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/core.h"
#include "tests/fuzz/target.h"

namespace longshore::fuzz {
namespace {

template <typename T>
void RequireAllFinite(const v1::Tensor& tensor, const char* name) {
  const std::string& data = tensor.inline_data();
  for (size_t offset = 0; offset + sizeof(T) <= data.size(); offset += sizeof(T)) {
    T value;
    std::memcpy(&value, data.data() + offset, sizeof(T));
    Require(std::isfinite(ToFloat(value)), name, " is not finite at byte ", offset);
  }
}

// [rows, ...] of finite numbers, and no byte more or less.
void RequireTensor(const v1::Tensor& tensor, int64_t rows, int axes, const char* name) {
  Require(tensor.shape_size() == axes && tensor.shape(0) == rows, name, " has another shape");
  int64_t elements = 1;
  for (const int64_t extent : tensor.shape()) {
    elements *= extent;
  }
  const int64_t size = tensor.dtype() == v1::DTYPE_F32 ? 4 : 2;
  Require(std::ssize(tensor.inline_data()) == elements * size, name, " has ",
          tensor.inline_data().size(), " bytes");
  switch (tensor.dtype()) {
    case v1::DTYPE_F32: RequireAllFinite<float>(tensor, name); break;
    case v1::DTYPE_BF16: RequireAllFinite<Bf16>(tensor, name); break;
    case v1::DTYPE_F16: RequireAllFinite<F16>(tensor, name); break;
    default: Finding("a dtype that nobody asked for");
  }
}

template <typename Request, typename Answer>
void RequireAnswer(const Request& request, const Answer& answer) {
  int64_t rows = 0;
  Require(answer.layer_tokens_size() == request.items_size(), "layer_tokens of other items");
  for (int index = 0; index < request.items_size(); ++index) {
    const v1::StepItem& item = request.items(index);
    rows += item.rows();
    Require(answer.layer_tokens(index) == item.position() + item.rows(),
            "a layer is not as long as what was sent to it");
  }
  if constexpr (requires { answer.out(); }) {
    RequireTensor(answer.out(), rows, 3, "out");
    Require(answer.has_log_sum_exp() == request.want_log_sum_exp(), "log_sum_exp is not as asked");
    if (request.want_log_sum_exp()) {
      RequireTensor(answer.log_sum_exp(), rows, 2, "log_sum_exp");
    }
  }
}

// A call that was applied, once more: the same bits, and nothing changes.
template <typename Request, typename Answer>
void RequireReplay(const Request& request, const Answer& answer) {
  const EngineState after = Core::Get().State();
  Answer again;
  const absl::Status status =
      Core::Get().Run(MessageOf(request, &again), static_cast<int64_t>(request.ByteSizeLong()));
  RequireWellFormed(status);
  bool can_replay = true;
  for (const v1::StepItem& item : request.items()) {
    can_replay &= item.append_id() != 0;
  }
  Require(status.ok() == can_replay, "a replay: ", LogText(status));
  Require(!can_replay || again.SerializeAsString() == answer.SerializeAsString(),
          "a replay has other bits");
  Require(Core::Get().State() == after, "a replay changed something");
}

template <typename Request, typename Answer>
void RunStep(const Request& request) {
  Core& core = Core::Get();
  Answer answer;
  const absl::Status status =
      core.Run(MessageOf(request, &answer), static_cast<int64_t>(request.ByteSizeLong()));
  RequireWellFormed(status);
  if (!status.ok()) {
    core.RequireUnchanged(status);
    return;
  }
  RequireAnswer(request, answer);
  RequireReplay(request, answer);
  Core::Spoil();
}

template <typename Request, typename Answer>
void ParseAndRun(std::string_view bytes) {
  Request request;
  if (Parse(bytes, &request)) {
    RunStep<Request, Answer>(request);
  }
}

}  // namespace

void RunAppendKv(std::string_view bytes) {
  ParseAndRun<v1::AppendKVRequest, v1::AppendKVResponse>(bytes);
}

void RunPrefill(std::string_view bytes) {
  ParseAndRun<v1::PrefillRequest, v1::PrefillResponse>(bytes);
}

void RunDecodeStep(std::string_view bytes) {
  ParseAndRun<v1::DecodeStepRequest, v1::DecodeStepResponse>(bytes);
}

void RunStreamSteps(std::string_view bytes) {
  v1::StreamStepsRequest request;
  if (!Parse(bytes, &request)) {
    return;
  }
  switch (request.step_case()) {
    case v1::StreamStepsRequest::kAppendKv:
      RunStep<v1::AppendKVRequest, v1::AppendKVResponse>(request.append_kv());
      break;
    case v1::StreamStepsRequest::kPrefill:
      RunStep<v1::PrefillRequest, v1::PrefillResponse>(request.prefill());
      break;
    case v1::StreamStepsRequest::kDecode:
      RunStep<v1::DecodeStepRequest, v1::DecodeStepResponse>(request.decode());
      break;
    case v1::StreamStepsRequest::STEP_NOT_SET: break;
  }
}

}  // namespace longshore::fuzz
