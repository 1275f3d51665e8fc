#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <absl/functional/any_invocable.h>

#include "engine/engine.h"
#include "service/mutex.h"

namespace longshore {

/// Work for the engine.
struct Job {
  /// Long work that later jobs of other sessions may overtake (prefill, AppendKV).
  bool bulk = false;
  std::vector<uint64_t> sessions;  ///< that it touches; jobs that share one stay in order
  int64_t bytes = 0;               ///< of the request that waits with it
  std::chrono::system_clock::time_point deadline = std::chrono::system_clock::time_point::max();
  std::function<bool()> cancelled;  ///< asked just before the job would begin; may be empty
  /// The work, on the queue's thread; called once, or never when the job is refused or dropped.
  /// What it calls may throw std::bad_alloc, and nothing else.
  absl::AnyInvocable<absl::Status(Engine&)> run;
  /// Called exactly once: with what `run` returned, on the queue's thread, or with the reason why
  /// it never began (nothing was changed then), on the queue's thread, Push()'s or Drain()'s.
  absl::AnyInvocable<void(const absl::Status&)> done;
};

struct DeviceQueueOptions {
  int32_t max_jobs = 256;                ///< that wait
  int64_t max_bytes = int64_t{1} << 30;  ///< of requests that wait
  /// How often a full line is searched for jobs that nobody wants any more.
  std::chrono::milliseconds search_interval{10};
  std::function<void(int64_t)> on_depth = nullptr;  ///< jobs waiting; called with the lock held
  /// A job begins after so many seconds in the line; called with the lock held.
  std::function<void(bool bulk, double seconds)> on_wait = nullptr;
  std::function<void(Engine&)> on_job_run = nullptr;  ///< on the queue's thread, before the answer
  /// On the queue's thread, while the daemon serves and no job waits: does a little, a few
  /// milliseconds at most, and returns when it wants to be called again if no job comes: now for at
  /// once, max() for never. It is called after every job that leaves nothing waiting, too.
  std::function<std::chrono::steady_clock::time_point(Engine&)> idle = nullptr;
  /// Of a line that is never empty: after so long without it, `idle` comes between two jobs.
  std::chrono::milliseconds longest_without_idle{100};
  std::function<void(const absl::Status&)> on_device_lost =
      nullptr;  ///< once, on the queue's thread
};

/// The one thread that owns an Engine, and the bounded line in front of it. Knows nothing of
/// attention.
///
/// Order: first come, first served, except that a job overtakes waiting bulk jobs of other sessions
/// (so that a decode step waits for one prefill at most), and a bulk job is overtaken kMaxOvertakes
/// times at most (so that it is not starved).
///
/// Thread-safe. Errors of a job besides its own: UNAVAILABLE with reason LOADING, DRAINING or
/// DEVICE_LOST; RESOURCE_EXHAUSTED QUEUE_FULL or HOST_MEMORY; DEADLINE_EXCEEDED; CANCELLED.
class DeviceQueue {
 public:
  using EngineFactory = absl::AnyInvocable<absl::StatusOr<std::unique_ptr<Engine>>()>;
  static constexpr int32_t kMaxOvertakes = 64;

  /// Starts the thread, which makes the engine first.
  DeviceQueue(DeviceQueueOptions options, EngineFactory factory);
  /// Drops what waits, and blocks until the running job has ended.
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  /// Blocks until the engine is there, or why there is none.
  absl::Status WaitReady();
  /// Queues a job, or refuses it by calling its `done` before returning. Never blocks.
  void Push(Job job);
  /// Refuses new jobs, drops those that wait (DRAINING), and waits until the one that runs has
  /// ended, at most for `limit`. False if it is still running.
  bool Drain(std::chrono::milliseconds limit);
  /// Called by a job whose device failed: nothing runs any more.
  void DeviceLost(const absl::Status& status);

 private:
  enum class State : uint8_t { kLoading, kServing, kDraining, kLost };
  struct Waiting {
    Job job;
    int32_t overtaken = 0;
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  };
  struct Unwanted {
    Job job;
    absl::Status reason;
  };

  using Clock = std::chrono::steady_clock;

  void RunThread(EngineFactory factory);
  void RunJobs(Engine& engine);
  std::optional<Job> TakeJob();
  Clock::time_point RunIdle(Engine& engine);
  bool WaitForJob(Clock::time_point until);
  void Finished();
  absl::Status Refusal(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Admit(std::list<Waiting>* place, std::list<Unwanted>* unwanted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeUnwanted(std::list<Unwanted>* unwanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::list<Waiting>::iterator Choose() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropWaiting(const absl::Status& reason);

  const DeviceQueueOptions options_;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kLoading;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Clock::time_point next_search_ ABSL_GUARDED_BY(mutex_);  // for unwanted jobs
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace longshore
