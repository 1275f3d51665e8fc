#include "service/step_stream.h"

#include <utility>

#include "service/caller.h"
#include "service/errors.h"
#include "service/messages.h"

namespace longshore {

// gRPC never runs a reaction inside StartRead, StartWrite or Finish, so that they may be called
// with the lock held.

StepStream::StepStream(int32_t max_steps_in_flight,
                       grpc::CallbackServerContext* context,
                       StepRunner* runner,
                       Metrics* metrics)
    : max_steps_in_flight_(max_steps_in_flight),
      deadline_(context->deadline()),
      caller_(CallerOf(*context)),
      runner_(runner),
      metrics_(metrics) {
  const MutexLock lock(&mutex_);
  Advance();
}

void StepStream::OnReadDone(bool ok) {
  Step* step = nullptr;
  {
    const MutexLock lock(&mutex_);
    if (ok) {
      step = next_.get();
      steps_.push_back(std::move(next_));
    } else {
      reads_ended_ = true;
    }
  }
  if (step != nullptr) {
    StartStep(step);
  }
  const MutexLock lock(&mutex_);
  reading_ = false;  // only now, so that steps are queued in the order of arrival
  Advance();
}

void StepStream::OnWriteDone(bool /*ok*/) {
  // A write that failed means that the client is gone; the reads end then, too.
  const MutexLock lock(&mutex_);
  writing_ = false;
  steps_.pop_front();
  Advance();
}

void StepStream::StartStep(Step* step) {
  const auto request_bytes = static_cast<int64_t>(step->received.Length());  // parsing empties it
  if (const absl::Status parsed = ParseMessage(&step->received, &step->request); !parsed.ok()) {
    step->request.Clear();  // nothing of half a message counts, not even its tag
    StepDone(step, parsed);
    return;
  }
  step->answer.set_tag(step->request.tag());
  StepMessage message;
  switch (step->request.step_case()) {
    case v1::StreamStepsRequest::kAppendKv:
      message = MessageOf(step->request.append_kv(), step->answer.mutable_append_kv());
      break;
    case v1::StreamStepsRequest::kPrefill:
      message = MessageOf(step->request.prefill(), step->answer.mutable_prefill());
      break;
    case v1::StreamStepsRequest::kDecode:
      message = MessageOf(step->request.decode(), step->answer.mutable_decode());
      break;
    case v1::StreamStepsRequest::STEP_NOT_SET:
      StepDone(step, InvalidField("step", "is not set: append_kv, prefill or decode"));
      return;
  }
  runner_->Start(message,
                 {.request_bytes = request_bytes,
                  .deadline = deadline_,
                  .cancelled = [this] { return cancelled_.load(); },
                  .name = caller_},
                 [this, step](const absl::Status& status) { StepDone(step, status); });
}

// Only bytes stay: requests and answers may be large, and the answer may have to wait for its turn.
void StepStream::StepDone(Step* step, const absl::Status& status) {
  step->request.Clear();
  if (!status.ok()) {
    step->answer.clear_answer();
    *step->answer.mutable_status() = ToRpcStatus(status);
  }
  if (const absl::Status sent = SerializeMessage(step->answer, &step->to_send); !sent.ok()) {
    step->answer.clear_answer();
    *step->answer.mutable_status() = ToRpcStatus(sent);
    LONGSHORE_CHECK(SerializeMessage(step->answer, &step->to_send).ok());
  }
  step->answer.Clear();
  const MutexLock lock(&mutex_);
  step->done = true;
  Advance();
}

void StepStream::Advance() {
  if (finished_) {
    return;
  }
  if (!writing_ && !steps_.empty() && steps_.front()->done) {
    writing_ = true;
    StartWrite(&steps_.front()->to_send);
  }
  if (!reading_ && !reads_ended_ && std::ssize(steps_) < max_steps_in_flight_) {
    reading_ = true;
    next_ = std::make_unique<Step>();
    StartRead(&next_->received);
  }
  if (reads_ended_ && !reading_ && steps_.empty()) {
    finished_ = true;
    const absl::Status status =
        cancelled_ ? MakeReason(absl::StatusCode::kCancelled, kCancelled, "cancelled by the client")
                   : absl::OkStatus();
    metrics_->CountRequest(Method::kStreamSteps, status);
    Finish(ToGrpcStatus(status));
  }
}

}  // namespace longshore
