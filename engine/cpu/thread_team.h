#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include <absl/functional/function_ref.h>

namespace longshore::cpu {

/// A fixed set of threads that share loops. The caller is one of them.
///
/// Indices are handed out one by one, so which thread runs which is open: a loop body must not
/// care.
class ThreadTeam {
 public:
  /// `threads` >= 1, the caller included.
  explicit ThreadTeam(int32_t threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int32_t threads() const { return static_cast<int32_t>(workers_.size()) + 1; }

  /// Runs body(index, thread) for every index in [0, count), thread in [0, threads()); returns when
  /// all are done. Loops of one caller only, not nested. What a body throws (std::bad_alloc) is
  /// thrown here, once every thread has left the loop; the indices after it may not have been run.
  void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t index, int32_t thread)> body);

 private:
  struct Loop;

  void Work(int32_t thread);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  Loop* loop_ = nullptr;      // guarded by mutex_; null: nothing to do
  uint64_t loops_ = 0;        // guarded by mutex_; counts ParallelFor calls
  int32_t busy_workers_ = 0;  // guarded by mutex_
  bool stop_ = false;         // guarded by mutex_
  std::vector<std::thread> workers_;
};

}  // namespace longshore::cpu
