#include "engine/cpu/thread_team.h"

#include <atomic>
#include <exception>

namespace longshore::cpu {

struct ThreadTeam::Loop {
  int64_t count;
  absl::FunctionRef<void(int64_t, int32_t)> body;
  std::atomic<int64_t> next = 0;
  std::atomic<bool> failed = false;
  std::exception_ptr error = nullptr;  // of whoever set `failed`; read when all are done

  // Bodies throw nothing of ours, but the standard library may: std::bad_alloc. The thread whose
  // stack it would unwind may be a worker's, so the caller of ParallelFor gets it instead.
  void Run(int32_t thread) {
    try {
      for (int64_t index = next.fetch_add(1); index < count; index = next.fetch_add(1)) {
        body(index, thread);
      }
    } catch (...) {
      if (!failed.exchange(true)) {
        error = std::current_exception();
      }
      next.store(count);  // nobody needs the rest
    }
  }

  void Rethrow() const {
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
  }
};

ThreadTeam::ThreadTeam(int32_t threads) {
  for (int32_t thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { Work(thread); });
  }
}

ThreadTeam::~ThreadTeam() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadTeam::ParallelFor(int64_t count, absl::FunctionRef<void(int64_t, int32_t)> body) {
  Loop loop{.count = count, .body = body};
  if (workers_.empty() || count <= 1) {
    loop.Run(0);
    loop.Rethrow();
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    loop_ = &loop;
    ++loops_;
  }
  wake_.notify_all();
  loop.Run(0);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    loop_ = nullptr;  // a worker that wakes late finds nothing, and `loop` may end
    idle_.wait(lock, [this] { return busy_workers_ == 0; });
  }
  loop.Rethrow();
}

void ThreadTeam::Work(int32_t thread) {
  uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || (loop_ != nullptr && loops_ != seen); });
    if (stop_) {
      return;
    }
    seen = loops_;
    Loop* loop = loop_;
    ++busy_workers_;
    lock.unlock();
    loop->Run(thread);
    lock.lock();
    if (--busy_workers_ == 0) {
      idle_.notify_one();
    }
  }
}

}  // namespace longshore::cpu
