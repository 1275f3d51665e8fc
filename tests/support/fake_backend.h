#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "engine/backend.h"

namespace longshore {

/// What a FakeBackend can be told to fail at.
enum class FakeVerb : uint8_t { kAllocate, kCopy, kAppend, kPrune, kAttend, kMark, kWait };
inline constexpr size_t kNumFakeVerbs = 7;

/// What a test holds of a FakeBackend: a gate that its appends wait at, switches that make its
/// verbs fail, and counts of what it did. Thread-safe; outlives the backend.
class FakeDevice {
 public:
  /// Appends block from now on, until Release().
  void Hold();
  void Release();
  /// Blocks until an append waits at the gate.
  void AwaitHeld();
  /// After `more` calls of it the verb does nothing and answers `status`; OK mends it.
  void Fail(FakeVerb verb, absl::Status status, int64_t more = 0);

  int64_t appends() const;
  int64_t attends() const;
  int64_t copies() const;

 private:
  friend class FakeBackend;
  void PassGate();
  void CountAttend();
  void CountCopy();
  absl::Status StatusOf(FakeVerb verb);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  bool waiting_ = false;
  std::array<absl::Status, kNumFakeVerbs> statuses_;  // by FakeVerb
  std::array<int64_t, kNumFakeVerbs> more_ = {};      // that come before it
  int64_t appends_ = 0;
  int64_t attends_ = 0;
  int64_t copies_ = 0;
};

/// A backend whose attention is an echo: out = q, and the log-sum-exp of a row is its position.
/// Stages keep the first chunks. Nothing is stored.
class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(FakeDevice* device);

  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<Buffer> Allocate(MemorySpace space, int64_t bytes) override;
  absl::Status Copy(void* to, const void* from, int64_t bytes) override;
  absl::Status Append(const AppendArgs& args) override;
  absl::Status Prune(const PruneArgs& args) override;
  absl::Status Attend(const AttendArgs& args) override;
  absl::Status Admit(const AdmitArgs& args) override;
  absl::StatusOr<Fence> Mark() override;
  absl::Status Wait(Fence fence) override;

 private:
  void Free(MemorySpace space, std::byte* data, int64_t bytes) override;

  DeviceInfo info_;
  FakeDevice* device_;
  uint64_t sequence_ = 0;
};

}  // namespace longshore
