#include "service/session_registry.h"

#include <algorithm>
#include <random>

#include "service/caller.h"
#include "service/errors.h"

namespace longshore {
namespace {

constexpr size_t kMaxExpiredKept = 1024;
constexpr int kInstanceShift = 32;

double SecondsOf(std::chrono::milliseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

absl::Status NotFoundError(absl::string_view reason,
                           const std::string& message,
                           std::vector<std::pair<std::string, std::string>> metadata) {
  return MakeError(
      absl::StatusCode::kNotFound, message,
      {.reason = std::string{reason}, .field = "session_id", .metadata = std::move(metadata)});
}

}  // namespace

uint64_t InstanceSessionId() {
  std::random_device random;
  // Neither half is 0, and the lower one leaves room to count up.
  std::uniform_int_distribution<uint64_t> half(1, (uint64_t{1} << 30) - 1);
  return (half(random) << kInstanceShift) | half(random);
}

bool MayUse(absl::string_view caller, absl::string_view owner) {
  return caller == kLocalCaller || caller == owner;
}

absl::Status SessionRegistry::NotFound(uint64_t id, absl::string_view caller) const {
  const uint64_t instance = id >> kInstanceShift;
  if (instance != 0 && instance != first_session_id_ >> kInstanceShift) {
    return NotFoundError(
        kInstanceChanged,
        absl::StrCat("session_id ", id, " is of another instance of the daemon: this is ",
                     instance_id_, ", which has nothing of its sessions"),
        {{"instance_id", instance_id_}});
  }
  for (const Expired& expired : expired_) {
    if (expired.id == id && MayUse(caller, expired.owner)) {
      const double seconds = SecondsOf(expired.lease);
      return NotFoundError(kSessionExpired,
                           absl::StrCat("session_id ", id, " was closed: no call on it for ",
                                        seconds, " s, its lease"),
                           {{"lease_seconds", absl::StrCat(seconds)}});
    }
  }
  return NotFoundError(kSessionNotFound, absl::StrCat("session_id ", id, " is not open"), {});
}

absl::StatusOr<SessionRegistry::Use> SessionRegistry::Begin(uint64_t id, absl::string_view caller) {
  const MutexLock lock(&mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || !MayUse(caller, found->second.owner)) {
    return NotFound(id, caller);
  }
  ++found->second.uses;
  return Use(this, id);
}

void SessionRegistry::End(uint64_t id) {
  const MutexLock lock(&mutex_);
  const auto found = sessions_.find(id);
  if (found != sessions_.end()) {  // else the call has closed it
    --found->second.uses;
    found->second.last_used = Clock::now();
  }
}

void SessionRegistry::Add(uint64_t id, Entry entry) {
  const MutexLock lock(&mutex_);
  sessions_.emplace(id, std::move(entry));
}

void SessionRegistry::Remove(uint64_t id) {
  const MutexLock lock(&mutex_);
  sessions_.erase(id);
}

SessionRegistry::Entry SessionRegistry::Find(uint64_t id) const {
  const MutexLock lock(&mutex_);
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? Entry{} : found->second;
}

uint64_t SessionRegistry::FindOpened(uint64_t open_id, absl::string_view owner) const {
  if (open_id == 0) {
    return 0;
  }
  const MutexLock lock(&mutex_);
  for (const auto& [id, entry] : sessions_) {
    if (entry.open_id == open_id && entry.owner == owner) {
      return id;
    }
  }
  return 0;
}

std::vector<uint64_t> SessionRegistry::Expire(Clock::time_point now) {
  std::vector<uint64_t> ids;
  const MutexLock lock(&mutex_);
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    Entry& entry = it->second;
    if (entry.uses > 0 || entry.last_used + entry.lease > now) {
      ++it;
      continue;
    }
    ids.push_back(it->first);
    expired_.push_back({.id = it->first, .lease = entry.lease, .owner = std::move(entry.owner)});
    it = sessions_.erase(it);
  }
  while (expired_.size() > kMaxExpiredKept) {
    expired_.pop_front();
  }
  return ids;
}

SessionRegistry::Clock::time_point SessionRegistry::NextExpiry() const {
  auto next = Clock::time_point::max();
  const MutexLock lock(&mutex_);
  for (const auto& [id, entry] : sessions_) {
    if (entry.uses == 0) {
      next = std::min(next, entry.last_used + entry.lease);
    }
  }
  return next;
}

}  // namespace longshore
