#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "service/mutex.h"

namespace longshore {

enum class Readiness : uint8_t { kLoading, kServing, kDraining, kDeviceLost };

/// In a word or two: "loading".
const char* NameOf(Readiness readiness);

/// What people are shown of a session.
struct SessionLine {
  uint64_t id = 0;
  std::string name;    ///< as its client chose it
  int64_t tokens = 0;  ///< of the longest layer
  int64_t max_tokens = 0;
  int64_t bytes_used = 0;
  int64_t bytes_reserved = 0;
  std::optional<double> idle_seconds = std::nullopt;
  std::optional<double> lease_seconds = std::nullopt;
};

/// What the engine's thread says to the HTTP threads: whether the daemon serves, what it runs on,
/// and its sessions as they were a moment ago. Hides that neither side ever waits for the other for
/// longer than it takes to copy that. Thread-safe.
class StatusBoard {
 public:
  using Clock = std::chrono::steady_clock;
  /// Adds what the engine does not know of a session: idle and lease.
  using AddLease = std::function<void(SessionLine*)>;

  struct View {
    std::string instance_id;
    Readiness readiness = Readiness::kLoading;
    std::optional<DeviceInfo> device;  ///< once the backend is there
    std::vector<SessionLine> sessions;
    double sessions_age_seconds = 0;  ///< since they were looked at
  };

  /// How often Update() looks at the sessions, unless their number has changed.
  static constexpr std::chrono::milliseconds kPeriod{500};

  explicit StatusBoard(std::string instance_id) : instance_id_(std::move(instance_id)) {}

  /// A device that was lost stays lost.
  void SetReadiness(Readiness readiness);
  Readiness readiness() const { return readiness_; }
  void SetDevice(const DeviceInfo& device);
  /// On the engine's thread, after each job: mostly no more than a look at the clock.
  void Update(const Engine& engine, const AddLease& add_lease = nullptr);
  View Read() const;

 private:
  const std::string instance_id_;
  std::atomic<Readiness> readiness_ = Readiness::kLoading;
  // The engine's thread's.
  Clock::time_point next_update_;
  int64_t num_sessions_ = 0;

  mutable Mutex mutex_;
  std::optional<DeviceInfo> device_ ABSL_GUARDED_BY(mutex_);
  std::vector<SessionLine> sessions_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point updated_ ABSL_GUARDED_BY(mutex_) = Clock::now();
};

}  // namespace longshore
