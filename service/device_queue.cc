#include "service/device_queue.h"

#include <algorithm>
#include <new>
#include <unordered_set>
#include <utility>

#include "service/errors.h"

namespace longshore {
namespace {

constexpr char kNothingChanged[] = "nothing was changed";
// When the idle hook found no memory.
constexpr std::chrono::seconds kIdlePause{1};

absl::Status CheckStillWanted(const Job& job) {
  if (job.cancelled && job.cancelled()) {
    return MakeReason(absl::StatusCode::kCancelled, kCancelled,
                      "cancelled before it began; nothing was changed");
  }
  if (std::chrono::system_clock::now() > job.deadline) {
    return MakeReason(absl::StatusCode::kDeadlineExceeded, kDeadlineExceeded,
                      "the deadline passed before it began; nothing was changed");
  }
  return absl::OkStatus();
}

// The one place that catches. Nothing of ours throws, but the standard library and protobuf do when
// there is no memory, anywhere in a job: that is this call's failure, not the process's. The engine
// has undone what the job began by the time it gets here.
absl::Status RunJob(Job* job, Engine* engine) {
  RETURN_IF_ERROR(CheckStillWanted(*job));
  try {
    return job->run(*engine);
  } catch (const std::bad_alloc&) {
    return MakeReason(absl::StatusCode::kResourceExhausted, kHostMemory,
                      "the system gave no memory for this call; nothing was changed");
  }
}

}  // namespace

DeviceQueue::DeviceQueue(DeviceQueueOptions options, EngineFactory factory)
    : options_(std::move(options)),
      thread_([this, factory = std::move(factory)]() mutable { RunThread(std::move(factory)); }) {}

DeviceQueue::~DeviceQueue() {
  Drain(std::chrono::milliseconds(0));
  {
    const MutexLock lock(&mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status DeviceQueue::WaitReady() {
  MutexLock lock(&mutex_);
  while (state_ == State::kLoading) {
    lock.Wait(&changed_);
  }
  return state_ == State::kLost ? lost_ : absl::OkStatus();
}

absl::Status DeviceQueue::Refusal(int64_t bytes) const {
  switch (state_) {
    case State::kLoading: return LoadingError();
    case State::kDraining: return DrainingError();
    case State::kLost: return DeviceLostError(kNothingChanged);
    case State::kServing: break;
  }
  if (std::ssize(waiting_) >= options_.max_jobs) {
    return MakeReason(
        absl::StatusCode::kResourceExhausted, kQueueFull,
        absl::StrCat(waiting_.size(), " calls wait already, the limit is ", options_.max_jobs));
  }
  // One call always fits, or a large one could never be served.
  if (!waiting_.empty() && bytes > options_.max_bytes - waiting_bytes_) {
    return MakeReason(absl::StatusCode::kResourceExhausted, kQueueFull,
                      absl::StrCat(bytes, " bytes do not fit beside ", waiting_bytes_,
                                   " that wait, the limit is ", options_.max_bytes));
  }
  return absl::OkStatus();
}

// Moves jobs out of the line that are cancelled or too late, so that they do not keep others out.
void DeviceQueue::TakeUnwanted(std::list<Unwanted>* unwanted) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    absl::Status reason = CheckStillWanted(it->job);
    if (reason.ok()) {
      ++it;
      continue;
    }
    waiting_bytes_ -= it->job.bytes;
    unwanted->push_back({.job = std::move(it->job), .reason = std::move(reason)});
    it = waiting_.erase(it);
  }
}

// Splices `place`, one job, into the line, or says why not.
absl::Status DeviceQueue::Admit(std::list<Waiting>* place, std::list<Unwanted>* unwanted) {
  const int64_t bytes = place->front().job.bytes;
  absl::Status refusal = Refusal(bytes);
  const Clock::time_point now = Clock::now();
  if (absl::IsResourceExhausted(refusal) && now >= next_search_) {
    next_search_ = now + options_.search_interval;
    TakeUnwanted(unwanted);
    refusal = Refusal(bytes);
  }
  if (refusal.ok()) {
    waiting_bytes_ += bytes;
    waiting_.splice(waiting_.end(), *place);
  }
  if (options_.on_depth) options_.on_depth(std::ssize(waiting_));
  return refusal;
}

void DeviceQueue::Push(Job job) {
  absl::Status refusal;
  std::list<Waiting> place;  // made outside the lock, and spliced into the line inside
  place.push_back({.job = std::move(job)});
  Job& placed = place.front().job;
  std::list<Unwanted> unwanted;
  {
    const MutexLock lock(&mutex_);
    refusal = Admit(&place, &unwanted);
  }
  for (Unwanted& late : unwanted) {
    late.job.done(late.reason);
  }
  if (!refusal.ok()) {
    placed.done(refusal);
    return;
  }
  changed_.notify_all();
}

std::list<DeviceQueue::Waiting>::iterator DeviceQueue::Choose() {
  const auto first = waiting_.begin();
  std::unordered_set<uint64_t> passed;  // sessions of the jobs that would be overtaken
  for (auto it = first; it != waiting_.end(); ++it) {
    const std::vector<uint64_t>& sessions = it->job.sessions;
    const bool in_order = std::none_of(sessions.begin(), sessions.end(),
                                       [&](uint64_t id) { return passed.contains(id); });
    if (!it->job.bulk && in_order) {
      std::for_each(first, it, [](Waiting& overtaken) { ++overtaken.overtaken; });
      return it;
    }
    if (it->overtaken >= kMaxOvertakes) {
      break;
    }
    passed.insert(sessions.begin(), sessions.end());
  }
  return first;
}

std::optional<Job> DeviceQueue::TakeJob() {
  const MutexLock lock(&mutex_);
  if (waiting_.empty()) {
    return std::nullopt;
  }
  const auto chosen = Choose();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - chosen->since;
  Job job = std::move(chosen->job);
  waiting_.erase(chosen);
  waiting_bytes_ -= job.bytes;
  running_ = true;
  if (options_.on_depth) options_.on_depth(std::ssize(waiting_));
  if (options_.on_wait) options_.on_wait(job.bulk, waited.count());
  return job;
}

void DeviceQueue::Finished() {
  {
    const MutexLock lock(&mutex_);
    running_ = false;
  }
  changed_.notify_all();
}

// Until a job waits or `until` has come. False when the thread is to end.
bool DeviceQueue::WaitForJob(Clock::time_point until) {
  MutexLock lock(&mutex_);
  while (waiting_.empty() && !stop_) {
    if (until == Clock::time_point::max()) {
      lock.Wait(&changed_);
    } else if (!lock.WaitUntil(&changed_, until)) {
      break;
    }
  }
  return !waiting_.empty() || !stop_;
}

// When to come again.
DeviceQueue::Clock::time_point DeviceQueue::RunIdle(Engine& engine) {
  {
    const MutexLock lock(&mutex_);
    if (options_.idle == nullptr || state_ != State::kServing) {
      return Clock::time_point::max();
    }
    running_ = true;
  }
  Clock::time_point next;
  try {
    next = options_.idle(engine);
  } catch (const std::bad_alloc&) {  // as in RunJob()
    next = Clock::now() + kIdlePause;
  }
  Finished();
  return next;
}

void DeviceQueue::RunJobs(Engine& engine) {
  Clock::time_point idle_again{};
  Clock::time_point idle_due = Clock::now() + options_.longest_without_idle;
  const auto be_idle = [&] {
    idle_again = RunIdle(engine);
    idle_due = Clock::now() + options_.longest_without_idle;
  };
  while (WaitForJob(idle_again)) {
    std::optional<Job> job = TakeJob();
    if (!job.has_value()) {
      be_idle();
      continue;
    }
    const absl::Status status = RunJob(&*job, &engine);
    // First, so that whoever has the answer sees in the gauges what it did.
    if (options_.on_job_run) options_.on_job_run(engine);
    job->done(status);
    Finished();
    idle_again = {};
    if (Clock::now() >= idle_due) {  // the line may never be empty
      be_idle();
    }
  }
}

void DeviceQueue::RunThread(EngineFactory factory) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = factory();
  {
    const MutexLock lock(&mutex_);
    if (!engine.ok()) {
      state_ = State::kLost;
      lost_ = engine.status();
    } else if (state_ == State::kLoading) {
      state_ = State::kServing;
    }
  }
  changed_.notify_all();
  if (!engine.ok()) {
    return;
  }
  RunJobs(**engine);
}

void DeviceQueue::DropWaiting(const absl::Status& reason) {
  std::list<Waiting> dropped;
  {
    const MutexLock lock(&mutex_);
    dropped.swap(waiting_);
    waiting_bytes_ = 0;
    if (options_.on_depth) options_.on_depth(0);
  }
  for (Waiting& waiting : dropped) {
    waiting.job.done(reason);
  }
}

bool DeviceQueue::Drain(std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  {
    const MutexLock lock(&mutex_);
    if (state_ != State::kLost) {
      state_ = State::kDraining;
    }
  }
  DropWaiting(DrainingError());
  MutexLock lock(&mutex_);
  while (running_ && lock.WaitUntil(&changed_, until)) {
  }
  return !running_;
}

void DeviceQueue::DeviceLost(const absl::Status& status) {
  {
    const MutexLock lock(&mutex_);
    if (state_ == State::kLost) {
      return;
    }
    state_ = State::kLost;
    lost_ = status;
  }
  DropWaiting(DeviceLostError(kNothingChanged));
  if (options_.on_device_lost) options_.on_device_lost(status);
}

}  // namespace longshore
