#include "service/device_queue.h"

#include <atomic>
#include <future>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "service/errors.h"
#include "tests/support/fake_backend.h"

namespace longshore {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(FakeDevice* device) {
  return Engine::Create({.pool_bytes = int64_t{16} << 20}, std::make_unique<FakeBackend>(device));
}

std::string ReasonOf(const absl::Status& status) {
  const std::optional<ErrorDetails> details = DetailsOf(status);
  return details.has_value() ? details->reason : "";
}

// Records what became of jobs, in the order in which they were run or dropped.
class Journal {
 public:
  Job Record(const std::string& name, bool bulk, std::vector<uint64_t> sessions) {
    Job job;
    job.bulk = bulk;
    job.sessions = std::move(sessions);
    job.run = [](Engine& /*engine*/) { return absl::OkStatus(); };
    job.done = [this, name](const absl::Status& status) {
      Add(status.ok() ? name : name + ":" + ReasonOf(status));
    };
    return job;
  }
  std::vector<std::string> entries() {
    const MutexLock lock(&mutex_);
    return entries_;
  }

 private:
  void Add(std::string entry) {
    const MutexLock lock(&mutex_);
    entries_.push_back(std::move(entry));
  }

  Mutex mutex_;
  std::vector<std::string> entries_ ABSL_GUARDED_BY(mutex_);
};

// A queue whose thread is busy until Open() is called, so that a test can fill the line behind it.
class HeldQueue {
 public:
  explicit HeldQueue(DeviceQueueOptions options = {})
      : queue_(std::move(options), [this] { return MakeEngine(&device_); }) {
    EXPECT_TRUE(queue_.WaitReady().ok());
    std::promise<void> begun;
    Job hold;
    hold.run = [this, &begun](Engine& /*engine*/) {
      begun.set_value();
      gate_.get_future().wait();
      return absl::OkStatus();
    };
    hold.done = [](const absl::Status& /*status*/) {};
    queue_.Push(std::move(hold));
    begun.get_future().wait();
  }
  void Open() { gate_.set_value(); }
  // And waits until all that waits has ended.
  void OpenAndFinish() {
    Open();
    absl::Status status = absl::UnavailableError("not yet");
    while (!status.ok()) {  // the line may still be full
      std::promise<absl::Status> ended;
      Job last;
      last.bulk = true;  // so that it overtakes nothing
      last.run = [](Engine& /*engine*/) { return absl::OkStatus(); };
      last.done = [&ended](const absl::Status& outcome) { ended.set_value(outcome); };
      queue_.Push(std::move(last));
      status = ended.get_future().get();
    }
  }
  DeviceQueue& operator*() { return queue_; }

 private:
  FakeDevice device_;
  std::promise<void> gate_;
  DeviceQueue queue_;
};

TEST(DeviceQueue, RunsJobsOnOneThreadInOrder) {
  Journal journal;
  HeldQueue queue;
  for (const char* name : {"a", "b", "c"}) {
    (*queue).Push(journal.Record(name, false, {1}));
  }
  EXPECT_TRUE(journal.entries().empty());
  queue.OpenAndFinish();
  EXPECT_THAT(journal.entries(), ElementsAre("a", "b", "c"));
}

TEST(DeviceQueue, DecodeOvertakesBulkOfOtherSessions) {
  Journal journal;
  HeldQueue queue;
  (*queue).Push(journal.Record("prefill1", true, {1}));
  (*queue).Push(journal.Record("prefill2", true, {2}));
  (*queue).Push(journal.Record("decode3", false, {3}));
  (*queue).Push(journal.Record("decode2", false, {2}));
  (*queue).Push(journal.Record("decode4", false, {4}));
  queue.OpenAndFinish();
  EXPECT_THAT(journal.entries(),
              ElementsAre("decode3", "decode4", "prefill1", "prefill2", "decode2"));
}

TEST(DeviceQueue, JobsOfOneSessionStayInOrderThroughABatch) {
  Journal journal;
  HeldQueue queue;
  (*queue).Push(journal.Record("prefill1", true, {1}));
  (*queue).Push(journal.Record("decode1+2", false, {1, 2}));  // waits for prefill1
  (*queue).Push(journal.Record("decode2", false, {2}));       // and this one for it
  (*queue).Push(journal.Record("decode3", false, {3}));
  queue.OpenAndFinish();
  EXPECT_THAT(journal.entries(), ElementsAre("decode3", "prefill1", "decode1+2", "decode2"));
}

TEST(DeviceQueue, BulkIsNotStarved) {
  Journal journal;
  HeldQueue queue;
  (*queue).Push(journal.Record("prefill", true, {1}));
  for (int decode = 0; decode < DeviceQueue::kMaxOvertakes + 10; ++decode) {
    (*queue).Push(journal.Record("decode", false, {2}));
  }
  queue.OpenAndFinish();
  const std::vector<std::string> entries = journal.entries();
  EXPECT_EQ(entries[DeviceQueue::kMaxOvertakes], "prefill");
}

TEST(DeviceQueue, PushFailsAtOnceWhenFull) {
  Journal journal;
  HeldQueue queue({.max_jobs = 2});
  (*queue).Push(journal.Record("a", false, {1}));
  (*queue).Push(journal.Record("b", false, {1}));
  (*queue).Push(journal.Record("c", false, {1}));
  EXPECT_THAT(journal.entries(), ElementsAre("c:QUEUE_FULL"));
  queue.OpenAndFinish();
  EXPECT_THAT(journal.entries(), ElementsAre("c:QUEUE_FULL", "a", "b"));
}

TEST(DeviceQueue, PushFailsWhenTheBytesThatWaitAreTooMany) {
  Journal journal;
  HeldQueue queue({.max_bytes = 100});
  Job large = journal.Record("large", false, {1});
  large.bytes = 1000;  // more than the limit, but alone
  (*queue).Push(std::move(large));
  Job small = journal.Record("small", false, {1});
  small.bytes = 1;
  (*queue).Push(std::move(small));
  EXPECT_THAT(journal.entries(), ElementsAre("small:QUEUE_FULL"));
  queue.OpenAndFinish();
}

TEST(DeviceQueue, DropsWhatWasCancelledOrExpiredBeforeItBegan) {
  Journal journal;
  HeldQueue queue;
  std::atomic<bool> cancelled = false;
  Job job = journal.Record("cancelled", false, {1});
  job.cancelled = [&] { return cancelled.load(); };
  (*queue).Push(std::move(job));
  job = journal.Record("expired", false, {1});
  job.deadline = std::chrono::system_clock::now() + milliseconds(1);
  (*queue).Push(std::move(job));
  (*queue).Push(journal.Record("fine", false, {1}));
  cancelled = true;
  std::this_thread::sleep_for(milliseconds(5));
  queue.OpenAndFinish();
  EXPECT_THAT(journal.entries(),
              ElementsAre("cancelled:CANCELLED", "expired:DEADLINE_EXCEEDED", "fine"));
}

TEST(DeviceQueue, WhatNobodyWantsAnyMoreDoesNotKeepOthersOut) {
  Journal journal;
  HeldQueue queue({.max_jobs = 2});
  Job late = journal.Record("late", false, {1});
  late.deadline = std::chrono::system_clock::now() - milliseconds(1);
  (*queue).Push(std::move(late));
  Job cancelled = journal.Record("cancelled", false, {2});
  cancelled.cancelled = [] { return true; };
  (*queue).Push(std::move(cancelled));
  EXPECT_TRUE(journal.entries().empty());
  (*queue).Push(journal.Record("wanted", false, {3}));
  EXPECT_THAT(journal.entries(), ElementsAre("late:DEADLINE_EXCEEDED", "cancelled:CANCELLED"));
  queue.OpenAndFinish();
  EXPECT_EQ(journal.entries().back(), "wanted");
}

TEST(DeviceQueue, IsIdleAfterJobsAndWhenItAskedToBeAndNotWhileJobsWait) {
  Journal journal;
  using Clock = std::chrono::steady_clock;
  std::promise<void> idle_twice;
  std::atomic<bool> counting = false;
  int idle = 0;
  HeldQueue queue({.idle =
                       [&](Engine& /*engine*/) {
                         if (!counting) {  // the queue is not held yet
                           return Clock::time_point::max();
                         }
                         EXPECT_THAT(journal.entries(), ElementsAre("a", "b"));
                         if (++idle == 2) {
                           idle_twice.set_value();
                         }
                         return idle == 1 ? Clock::now() : Clock::time_point::max();
                       },
                   .longest_without_idle = std::chrono::hours(1)});
  (*queue).Push(journal.Record("a", false, {1}));
  (*queue).Push(journal.Record("b", true, {1}));
  counting = true;
  queue.Open();
  idle_twice.get_future().wait();
}

TEST(DeviceQueue, IsIdleBetweenJobsWhereTheLineIsNeverEmpty) {
  Journal journal;
  std::atomic<bool> counting = false;
  std::vector<size_t> ended;  // jobs, each time that it was idle
  HeldQueue queue({.idle =
                       [&](Engine& /*engine*/) {
                         if (counting) {
                           ended.push_back(journal.entries().size());
                         }
                         return std::chrono::steady_clock::time_point::max();
                       },
                   .longest_without_idle = milliseconds(0)});
  for (const char* name : {"a", "b", "c"}) {
    (*queue).Push(journal.Record(name, false, {1}));
  }
  counting = true;
  queue.OpenAndFinish();
  EXPECT_TRUE((*queue).Drain(milliseconds(5000)));
  ASSERT_GE(ended.size(), 4U);
  ended.resize(4);
  EXPECT_THAT(ended, ElementsAre(0U, 1U, 2U, 3U)) << "once behind each";
}

TEST(DeviceQueue, AnIdleHookWithoutMemoryIsCalledAgain) {
  Journal journal;
  HeldQueue queue({.idle = [](Engine& /*engine*/) -> std::chrono::steady_clock::time_point {
    throw std::bad_alloc();
  }});
  (*queue).Push(journal.Record("a", false, {1}));
  queue.OpenAndFinish();
  EXPECT_THAT(journal.entries(), ElementsAre("a"));
}

TEST(DeviceQueue, DrainDropsWhatWaitsAndWaitsForWhatRuns) {
  Journal journal;
  HeldQueue queue;
  (*queue).Push(journal.Record("a", false, {1}));
  EXPECT_FALSE((*queue).Drain(milliseconds(0)));  // the held job still runs
  EXPECT_THAT(journal.entries(), ElementsAre("a:DRAINING"));
  (*queue).Push(journal.Record("b", false, {1}));
  EXPECT_THAT(journal.entries(), ElementsAre("a:DRAINING", "b:DRAINING"));
  queue.Open();
  EXPECT_TRUE((*queue).Drain(milliseconds(5000)));
}

TEST(DeviceQueue, NothingRunsAfterTheDeviceIsLost) {
  Journal journal;
  std::promise<absl::Status> lost;
  HeldQueue queue({.on_device_lost = [&](const absl::Status& status) { lost.set_value(status); }});
  Job fails = journal.Record("fails", false, {1});
  fails.run = [&](Engine& /*engine*/) {
    (*queue).DeviceLost(absl::InternalError("burnt"));
    return DeviceLostError("gone");
  };
  (*queue).Push(std::move(fails));
  (*queue).Push(journal.Record("waits", false, {1}));
  queue.Open();
  EXPECT_EQ(lost.get_future().get().message(), "burnt");
  (*queue).Push(journal.Record("late", false, {1}));
  EXPECT_TRUE((*queue).Drain(milliseconds(5000)));
  EXPECT_THAT(journal.entries(), ::testing::UnorderedElementsAre(
                                     "fails:DEVICE_LOST", "waits:DEVICE_LOST", "late:DEVICE_LOST"));
}

TEST(DeviceQueue, AJobWithoutMemoryFailsAlone) {
  Journal journal;
  HeldQueue queue;
  // Thrown by hand: a sanitizer's operator new ends the process instead.
  Job starves = journal.Record("starves", false, {1});
  starves.run = [](Engine& /*engine*/) -> absl::Status { throw std::bad_alloc(); };
  (*queue).Push(std::move(starves));
  (*queue).Push(journal.Record("fine", false, {1}));
  queue.OpenAndFinish();
  EXPECT_THAT(journal.entries(), ElementsAre("starves:HOST_MEMORY", "fine"));
}

TEST(DeviceQueue, RefusesUntilTheEngineIsThere) {
  Journal journal;
  FakeDevice device;
  std::promise<void> gate;
  DeviceQueue queue({}, [&] {
    gate.get_future().wait();
    return MakeEngine(&device);
  });
  queue.Push(journal.Record("early", false, {1}));
  EXPECT_THAT(journal.entries(), ElementsAre("early:LOADING"));
  gate.set_value();
  EXPECT_TRUE(queue.WaitReady().ok());
}

TEST(DeviceQueue, SaysWhyThereIsNoEngine) {
  DeviceQueue queue({}, []() -> absl::StatusOr<std::unique_ptr<Engine>> {
    return absl::ResourceExhaustedError("no memory");
  });
  EXPECT_EQ(queue.WaitReady().message(), "no memory");
}

}  // namespace
}  // namespace longshore
