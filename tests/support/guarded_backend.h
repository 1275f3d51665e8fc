#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "engine/backend.h"

namespace longshore {

/// The CPU backend as if it were far away, to find host code that only works where device memory is
/// the host's and verbs run at once.
///
/// Device memory cannot be touched, by anybody, but while a verb or a Copy runs: who does dies
/// (SIGSEGV). Verbs and copies wait until somebody waits for them, and then see tensors and host
/// memory as they are by then. Append alone runs at once, after all that was queued before it, for
/// it has an answer to give.
class GuardedBackend final : public Backend {
 public:
  explicit GuardedBackend(std::unique_ptr<Backend> real);
  ~GuardedBackend() override;

  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<Buffer> Allocate(MemorySpace space, int64_t bytes) override;
  absl::Status Copy(void* to, const void* from, int64_t bytes) override;
  absl::Status Append(const AppendArgs& args) override;
  absl::Status Prune(const PruneArgs& args) override;
  absl::Status Attend(const AttendArgs& args) override;
  absl::Status Admit(const AdmitArgs& args) override;
  absl::StatusOr<Fence> Mark() override;
  absl::Status Wait(Fence fence) override;

  /// Verbs and copies that nobody has waited for.
  size_t queued() const { return queue_.size(); }

 private:
  struct Work {
    uint64_t before;  // the first mark after it
    std::function<absl::Status()> run;
  };

  void Free(MemorySpace space, std::byte* data, int64_t bytes) override;
  absl::Status Enqueue(std::function<absl::Status()> work);
  absl::Status RunUntil(uint64_t mark);
  void Protect(int protection);

  std::unique_ptr<Backend> real_;
  DeviceInfo info_;
  std::deque<Work> queue_;
  uint64_t marks_ = 0;
  absl::Status failure_;                 // of queued work, from then on
  std::map<std::byte*, size_t> device_;  // bytes of each mapping but its last page, by where it is
};

}  // namespace longshore
