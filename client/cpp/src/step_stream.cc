#include "longshore/client/step_stream.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "client/cpp/src/connection.h"
#include "client/cpp/src/status.h"
#include "client/cpp/src/step.h"

namespace longshore::client {
namespace {

// What became of one step.
struct Answer {
  absl::Status status;
  Attended attended;
};

Answer TakeAnswer(v1::StreamStepsResponse* response) {
  Answer answer{.status = StatusFromRpc(response->status()), .attended = {}};
  if (response->has_prefill()) {
    answer.attended = TakeAttended(response->mutable_prefill());
  } else if (response->has_decode()) {
    answer.attended = TakeAttended(response->mutable_decode());
  }
  return answer;
}

}  // namespace

struct StepStream::Impl {
  Impl(std::shared_ptr<Connection> to, const CallOptions& call) : connection(std::move(to)) {
    context.set_deadline(ToDeadline(absl::Now() + call.timeout));
    stream = connection->attention()->StreamSteps(&context);
    reader = std::thread([this] { ReadAnswers(); });
  }
  ~Impl() {
    context.TryCancel();
    reader.join();
  }

  // The reader's thread: until the stream ends.
  void ReadAnswers();
  // The stream is over: steps without an answer fail.
  void End(absl::Status status);

  absl::StatusOr<Tag> Send(const absl::StatusOr<Step>& made,
                           const std::shared_ptr<SessionState>& session,
                           void (*fill)(const Step&, v1::StreamStepsRequest*));

  std::shared_ptr<Connection> connection;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamStepsRequest, v1::StreamStepsResponse>> stream;
  std::thread reader;
  std::mutex writing;  // one Write at a time, in the order of the tags

  // A step and what keeps its session's counts alive until somebody asks for the answer.
  struct Sent {
    std::shared_ptr<SessionState> session;
    Step step;
    std::optional<Answer> answer;
  };
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::map<Tag, Sent> sent;
  std::deque<Tag> unanswered;
  Tag next_tag = 1;
  bool writes_done = false;
  std::optional<absl::Status> ended;
};

void StepStream::Impl::ReadAnswers() {
  v1::StreamStepsResponse response;
  while (stream->Read(&response)) {
    const std::lock_guard lock(mutex);
    if (unanswered.empty() || unanswered.front() != response.tag()) {
      context.TryCancel();  // an answer to another step: nothing here can be trusted any more
      continue;
    }
    sent[response.tag()].answer = TakeAnswer(&response);
    unanswered.pop_front();
    changed.notify_all();
  }
  End(connection->ToStatus(stream->Finish()));
}

void StepStream::Impl::End(absl::Status status) {
  const std::lock_guard lock(mutex);
  if (status.ok() && !(writes_done && unanswered.empty())) {
    status = absl::UnavailableError(connection->target() + ": the stream was ended");
  }
  for (const Tag tag : unanswered) {
    sent[tag].answer = Answer{.status = status, .attended = {}};
  }
  unanswered.clear();
  ended = std::move(status);
  changed.notify_all();
}

absl::StatusOr<StepStream::Tag> StepStream::Impl::Send(const absl::StatusOr<Step>& made,
                                                       const std::shared_ptr<SessionState>& session,
                                                       void (*fill)(const Step&,
                                                                    v1::StreamStepsRequest*)) {
  if (!made.ok()) {
    return made.status();
  }
  Step step = *made;
  v1::StreamStepsRequest request;
  fill(step, &request);
  const std::lock_guard write_lock(writing);
  {
    const std::lock_guard lock(mutex);
    if (ended.has_value() || writes_done) {
      const absl::Status status = ended.value_or(absl::OkStatus());
      return status.ok() ? absl::FailedPreconditionError("the stream is finished") : status;
    }
    request.set_tag(next_tag++);
    step.Claim();
    unanswered.push_back(request.tag());
    sent[request.tag()] = {session, step, std::nullopt};
  }
  stream->Write(request);  // if it fails the reader sees the end, and says so to all that wait
  return request.tag();
}

StepStream::StepStream(std::shared_ptr<Connection> connection, const CallOptions& call)
    : impl_(std::make_unique<Impl>(std::move(connection), call)) {}
StepStream::StepStream(StepStream&& other) noexcept = default;
StepStream& StepStream::operator=(StepStream&& other) noexcept = default;
StepStream::~StepStream() = default;

absl::StatusOr<StepStream::Tag> StepStream::Append(Session& session,
                                                   int32_t layer,
                                                   Values k,
                                                   Values v,
                                                   const StepOptions& options) {
  return impl_->Send(
      Step::Make(session.state_.get(), layer, false, {.k = k, .v = v}, options), session.state_,
      [](const Step& step, auto* request) { step.FillTo(request->mutable_append_kv()); });
}

absl::StatusOr<StepStream::Tag> StepStream::Prefill(Session& session,
                                                    int32_t layer,
                                                    Values q,
                                                    Values k,
                                                    Values v,
                                                    const StepOptions& options) {
  return impl_->Send(
      Step::Make(session.state_.get(), layer, true, {.q = q, .k = k, .v = v}, options),
      session.state_,
      [](const Step& step, auto* request) { step.FillTo(request->mutable_prefill()); });
}

absl::StatusOr<StepStream::Tag> StepStream::Decode(Session& session,
                                                   int32_t layer,
                                                   Values q,
                                                   Values k,
                                                   Values v,
                                                   const StepOptions& options) {
  return impl_->Send(
      Step::Make(session.state_.get(), layer, true, {.q = q, .k = k, .v = v}, options),
      session.state_,
      [](const Step& step, auto* request) { step.FillTo(request->mutable_decode()); });
}

absl::StatusOr<Attended> StepStream::Wait(Tag tag, absl::Duration timeout) {
  std::unique_lock lock(impl_->mutex);
  // Looked up each time: another thread may have taken the answer meanwhile.
  const auto is_settled = [&] {
    const auto found = impl_->sent.find(tag);
    return found == impl_->sent.end() || found->second.answer.has_value();
  };
  if (timeout == absl::InfiniteDuration()) {
    impl_->changed.wait(lock, is_settled);
  } else if (!impl_->changed.wait_for(lock, absl::ToChronoNanoseconds(timeout), is_settled)) {
    return absl::DeadlineExceededError(
        absl::StrCat("no answer to step ", tag, " in ", absl::FormatDuration(timeout)));
  }
  const auto found = impl_->sent.find(tag);
  if (found == impl_->sent.end()) {
    return absl::NotFoundError(absl::StrCat("step ", tag, " was not sent, or was waited for"));
  }
  Answer answer = *std::move(found->second.answer);
  if (!answer.status.ok()) {
    found->second.step.GiveBack();
  }
  impl_->sent.erase(found);
  impl_->changed.notify_all();
  if (!answer.status.ok()) {
    return answer.status;
  }
  return std::move(answer.attended);
}

absl::Status StepStream::Finish() {
  {
    const std::lock_guard write_lock(impl_->writing);
    bool first = false;
    {
      const std::lock_guard lock(impl_->mutex);
      first = !impl_->writes_done && !impl_->ended.has_value();
      impl_->writes_done = true;
    }
    if (first) {
      impl_->stream->WritesDone();  // not under `mutex`, which the reader needs to make room
    }
  }
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [&] { return impl_->ended.has_value(); });
  return *impl_->ended;
}

}  // namespace longshore::client
