#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include <absl/base/thread_annotations.h>

namespace longshore {

/// std::mutex that clang's thread-safety analysis knows. Not absl::Mutex: Debian's is built without
/// ThreadSanitizer's hooks, so that every field it guards would be reported as a race.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

/// Holds a Mutex for a scope.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : lock_(mutex->mutex_) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  /// Lets go of the mutex until `condition` is notified, or for no reason: wait in a loop.
  void Wait(std::condition_variable* condition) { condition->wait(lock_); }
  /// The same, at most until `time`. False once that has passed.
  bool WaitUntil(std::condition_variable* condition, std::chrono::steady_clock::time_point time) {
    return condition->wait_until(lock_, time) == std::cv_status::no_timeout;
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace longshore
