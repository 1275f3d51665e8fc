#include "service/step_runner.h"

#include <string>
#include <utility>

#include <spdlog/spdlog.h>

#include "service/errors.h"

namespace longshore {
namespace {

Method MethodOf(StepKind kind) {
  switch (kind) {
    case StepKind::kAppend: return Method::kAppendKv;
    case StepKind::kPrefill: return Method::kPrefill;
    case StepKind::kDecode: return Method::kDecodeStep;
  }
  return Method::kDecodeStep;
}

// Counts the step and hands its outcome on.
class Outcome {
 public:
  Outcome(Method method, Metrics* metrics, StepRunner::Done done)
      : method_(method),
        metrics_(metrics),
        done_(std::move(done)) {}

  void Report(const absl::Status& status) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    metrics_->CountRequest(method_, status, elapsed.count());
    if (!status.ok()) {
      spdlog::debug("{} refused: {}", longshore::NameOf(method_), LogText(status));
    }
    done_(status);
  }

 private:
  Method method_;
  Metrics* metrics_;
  StepRunner::Done done_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// On the engine's thread: runs the call and fills the answer. Sets `device` when the device failed.
absl::Status RunStep(const StepMessage& message,
                     CheckedStep* step,
                     Engine* engine,
                     Metrics* metrics,
                     absl::Status* device) {
  // Outputs are as large as the session's model says: the call must fit it before there is room
  // made.
  RETURN_IF_ERROR(engine->Check(step->call));
  ASSIGN_OR_RETURN(const ModelShape* model, engine->ShapeOf(step->items.front().session_id));
  BindOutputs(*model, message, step);
  absl::StatusOr<StepTicket> ticket = engine->Submit(step->call);
  const absl::Status status = ticket.ok() ? engine->Wait(*ticket) : ticket.status();
  if (!engine->device_status().ok()) {
    *device = engine->device_status();
    return DeviceLostError("the step may or may not have been applied");
  }
  RETURN_IF_ERROR(status);
  message.layer_tokens->Assign(ticket->layer_tokens.begin(), ticket->layer_tokens.end());
  metrics->CountStep(step->call.kind, ticket->trace);
  return absl::OkStatus();
}

// The sessions of a step, kept from expiring until it has ended.
absl::StatusOr<std::vector<SessionRegistry::Use>> BeginUses(const CheckedStep& step,
                                                            absl::string_view caller,
                                                            SessionRegistry* registry) {
  std::vector<SessionRegistry::Use> uses;
  uses.reserve(step.items.size());
  for (size_t index = 0; index < step.items.size(); ++index) {
    absl::StatusOr<SessionRegistry::Use> use =
        registry->Begin(step.items[index].session_id, caller);
    if (!use.ok()) {
      return PrefixField(absl::StrCat("items[", index, "]."), use.status());
    }
    uses.push_back(*std::move(use));
  }
  return uses;
}

}  // namespace

void StepRunner::Start(const StepMessage& message, Caller caller, Done done) {
  Outcome outcome(MethodOf(message.kind), metrics_, std::move(done));
  absl::StatusOr<CheckedStep> step = CheckStep(message, limits_);
  if (!step.ok()) {
    outcome.Report(step.status());
    return;
  }
  absl::StatusOr<std::vector<SessionRegistry::Use>> uses = BeginUses(*step, caller.name, registry_);
  if (!uses.ok()) {
    outcome.Report(uses.status());
    return;
  }
  Job job;
  job.bulk = message.kind != StepKind::kDecode;
  job.bytes = caller.request_bytes;
  job.deadline = caller.deadline;
  job.cancelled = std::move(caller.cancelled);
  job.sessions.reserve(step->items.size());
  for (const StepItem& item : step->items) {
    job.sessions.push_back(item.session_id);
  }
  job.run = [this, message, step = *std::move(step)](Engine& engine) mutable {
    absl::Status device;
    absl::Status status = RunStep(message, &step, &engine, metrics_, &device);
    if (!device.ok()) {
      queue_->DeviceLost(device);
    }
    return status;
  };
  job.done = [outcome = std::move(outcome),
              uses = *std::move(uses)](const absl::Status& status) mutable {
    uses.clear();  // first, so that who has the answer sees the lease renewed
    outcome.Report(status);
  };
  queue_->Push(std::move(job));
}

}  // namespace longshore
