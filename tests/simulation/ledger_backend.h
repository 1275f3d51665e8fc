#pragma once

#include "engine/backend.h"
#include "tests/simulation/operation.h"
#include "tests/support/fake_backend.h"

namespace longshore::simulation {

/// A backend whose attention is a checksum of what a row sees, so that a page that is lost, shared
/// or read too early shows in the answer.
///
/// Of a key and a value it keeps the first word each, in the pages. A row's `out` begins with the
/// sum over the tokens that it sees (all up to its own, or its sliding window; selections do not
/// count) of Weight(position, key word, value word); the rest of `out` and the log-sum-exp are
/// FakeBackend's. The second word of a call's first key says which Fault the call meets.
class LedgerBackend final : public Backend {
 public:
  explicit LedgerBackend(FakeDevice* device) : fake_(device) {}

  const DeviceInfo& info() const override { return fake_.info(); }
  absl::StatusOr<Buffer> Allocate(MemorySpace space, int64_t bytes) override {
    return fake_.Allocate(space, bytes);
  }
  absl::Status Copy(void* to, const void* from, int64_t bytes) override {
    return fake_.Copy(to, from, bytes);
  }
  absl::Status Append(const AppendArgs& args) override;
  absl::Status Prune(const PruneArgs& args) override { return fake_.Prune(args); }
  absl::Status Attend(const AttendArgs& args) override;
  absl::Status Admit(const AdmitArgs& args) override { return fake_.Admit(args); }
  absl::StatusOr<Fence> Mark() override { return fake_.Mark(); }
  absl::Status Wait(Fence fence) override { return fake_.Wait(fence); }

 private:
  // Never called: what Allocate hands out belongs to fake_.
  void Free(MemorySpace /*space*/, std::byte* /*data*/, int64_t /*bytes*/) override {}

  FakeBackend fake_;
  bool starves_attend_ = false;
};

/// How a fault is written into the second word of a call's first key.
constexpr uint64_t FaultWord(Fault fault) {
  constexpr uint64_t kMark = 0xfa17000000000000;
  return kMark + static_cast<uint64_t>(fault);
}

}  // namespace longshore::simulation
