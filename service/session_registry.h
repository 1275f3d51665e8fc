#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "service/mutex.h"

namespace longshore {

/// Whom each open session belongs to, when its lease ends, and how those that are gone went.
///
/// Sessions are added and removed on the engine's thread, used on any. Thread-safe.
class SessionRegistry {
 public:
  using Clock = std::chrono::steady_clock;

  struct Entry {
    std::string owner;
    std::chrono::milliseconds lease{};
    uint64_t open_id = 0;            ///< 0: none
    size_t request_fingerprint = 0;  ///< of the OpenSession request; meaningless without open_id
    int64_t uses = 0;                ///< calls that wait or run
    Clock::time_point last_used;     ///< when the last of them ended
  };

  /// A call on a session, from its arrival to its end: as long as this lives the lease does not
  /// end, and it begins anew then. The registry must outlive it.
  class Use {
   public:
    Use(Use&& other) noexcept
        : registry_(std::exchange(other.registry_, nullptr)),
          id_(other.id_) {}
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (registry_ != nullptr) {
        registry_->End(id_);
      }
    }

   private:
    friend class SessionRegistry;
    Use(SessionRegistry* registry, uint64_t id) : registry_(registry), id_(id) {}

    SessionRegistry* registry_;
    uint64_t id_;
  };

  /// Of a daemon whose ids count up from `first_session_id`: InstanceSessionId()'s.
  SessionRegistry(std::string instance_id, uint64_t first_session_id)
      : instance_id_(std::move(instance_id)),
        first_session_id_(first_session_id) {}

  /// NotFound with field session_id: INSTANCE_CHANGED for an id of another instance,
  /// SESSION_EXPIRED for one whose lease has ended not long ago, else SESSION_NOT_FOUND, which
  /// includes a session that is not the caller's.
  absl::StatusOr<Use> Begin(uint64_t id, absl::string_view caller);

  void Add(uint64_t id, Entry entry);
  void Remove(uint64_t id);
  /// What is known of an open session; an empty entry if there is none.
  Entry Find(uint64_t id) const;
  /// The session that `owner` opened under `open_id`; 0 if there is none, or open_id is 0.
  uint64_t FindOpened(uint64_t open_id, absl::string_view owner) const;

  /// Forgets the sessions whose lease has ended, and returns them: to be closed.
  std::vector<uint64_t> Expire(Clock::time_point now);
  /// When the next lease ends if nobody calls; max() if none will.
  Clock::time_point NextExpiry() const;

 private:
  struct Expired {
    uint64_t id = 0;
    std::chrono::milliseconds lease{};
    std::string owner;
  };

  void End(uint64_t id);
  absl::Status NotFound(uint64_t id, absl::string_view caller) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string instance_id_;
  const uint64_t first_session_id_;
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Entry> sessions_ ABSL_GUARDED_BY(mutex_);
  std::deque<Expired> expired_ ABSL_GUARDED_BY(mutex_);  // the last of them, the oldest first
};

/// A random first session id. Its upper half is the instance's own, so that ids of another instance
/// are told apart from those of sessions that have ended.
uint64_t InstanceSessionId();

/// Whether calls of `caller` may see and use what belongs to `owner`: their own, and everything
/// from the Unix socket, which its file's permissions guard.
bool MayUse(absl::string_view caller, absl::string_view owner);

}  // namespace longshore
