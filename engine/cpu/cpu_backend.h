#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend.h"
#include "engine/cpu/scratch.h"
#include "engine/cpu/thread_team.h"

namespace longshore::cpu {

/// The readable backend: plain loops over the decisions of engine/algo, SIMD in tile_kernels,
/// threads in ThreadTeam. Ships for hosts without a GPU and judges the CUDA backend. Verbs run at
/// once, so every fence has passed. Results do not depend on the number of threads.
class CpuBackend final : public Backend {
 public:
  /// `threads` >= 1.
  explicit CpuBackend(int32_t threads);

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
  ThreadTeam team_;
  std::vector<Scratch> scratch_;        // [threads] for tiles
  std::vector<Scratch> block_scratch_;  // [threads] for what outlives a tile
  Scratch shared_scratch_;              // for what all threads of a loop read
  uint64_t sequence_ = 0;
};

}  // namespace longshore::cpu
