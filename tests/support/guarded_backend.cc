#include "tests/support/guarded_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "engine/core/math.h"

namespace longshore {
namespace {

constexpr int64_t kAlignment = 64;
constexpr uint64_t kEverything = std::numeric_limits<uint64_t>::max();

int64_t PageBytes() { return sysconf(_SC_PAGESIZE); }

// Of a buffer, without the page behind it that is never to be touched.
int64_t MappedBytes(int64_t bytes) { return RoundUp(Max(bytes, 1), PageBytes()); }

// Where a buffer of `bytes` begins in its mapping: it ends where the mapping does, so that what
// lies behind it is that page.
int64_t OffsetOf(int64_t bytes) { return MappedBytes(bytes) - RoundUp(Max(bytes, 1), kAlignment); }

}  // namespace

GuardedBackend::GuardedBackend(std::unique_ptr<Backend> real)
    : real_(std::move(real)),
      info_(real_->info()) {
  info_.backend = "guarded";
}

GuardedBackend::~GuardedBackend() = default;

absl::StatusOr<Buffer> GuardedBackend::Allocate(MemorySpace space, int64_t bytes) {
  if (space != MemorySpace::kDevice) {
    return real_->Allocate(space, bytes);
  }
  const auto mapped = static_cast<size_t>(MappedBytes(bytes));
  void* start = mmap(nullptr, mapped + static_cast<size_t>(PageBytes()), PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) {
    return absl::ResourceExhaustedError("no memory to guard");
  }
  auto* begin = static_cast<std::byte*>(start);
  device_.emplace(begin, mapped);
  return Buffer(this, space, begin + OffsetOf(bytes), bytes);
}

void GuardedBackend::Free(MemorySpace /*space*/, std::byte* data, int64_t bytes) {
  RunUntil(kEverything).IgnoreError();
  std::byte* begin = data - OffsetOf(bytes);
  munmap(begin, device_.at(begin) + static_cast<size_t>(PageBytes()));
  device_.erase(begin);
}

absl::Status GuardedBackend::Copy(void* to, const void* from, int64_t bytes) {
  return Enqueue([this, to, from, bytes] { return real_->Copy(to, from, bytes); });
}

absl::Status GuardedBackend::Append(const AppendArgs& args) {
  RETURN_IF_ERROR(RunUntil(kEverything));
  Protect(PROT_READ | PROT_WRITE);
  absl::Status status = real_->Append(args);
  Protect(PROT_NONE);
  return status;
}

absl::Status GuardedBackend::Prune(const PruneArgs& args) {
  std::vector<PruneBlock> blocks(args.blocks.begin(), args.blocks.end());
  return Enqueue([this, call = args, blocks = std::move(blocks)]() mutable {
    call.blocks = blocks;
    return real_->Prune(call);
  });
}

absl::Status GuardedBackend::Attend(const AttendArgs& args) {
  std::vector<AttendBlock> blocks(args.blocks.begin(), args.blocks.end());
  return Enqueue([this, call = args, blocks = std::move(blocks)]() mutable {
    call.blocks = blocks;
    return real_->Attend(call);
  });
}

absl::Status GuardedBackend::Admit(const AdmitArgs& args) {
  return Enqueue([this, args] { return real_->Admit(args); });
}

absl::StatusOr<Fence> GuardedBackend::Mark() { return Fence{++marks_}; }

absl::Status GuardedBackend::Wait(Fence fence) { return RunUntil(fence.sequence); }

absl::Status GuardedBackend::Enqueue(std::function<absl::Status()> work) {
  queue_.push_back({.before = marks_ + 1, .run = std::move(work)});
  return absl::OkStatus();
}

// Runs what was queued before that mark.
absl::Status GuardedBackend::RunUntil(uint64_t mark) {
  if (queue_.empty() || queue_.front().before > mark) {
    return failure_;
  }
  Protect(PROT_READ | PROT_WRITE);
  while (!queue_.empty() && queue_.front().before <= mark) {
    const std::function<absl::Status()> run = std::move(queue_.front().run);
    queue_.pop_front();
    if (failure_.ok()) {
      failure_ = run();
    }
  }
  Protect(PROT_NONE);
  return failure_;
}

void GuardedBackend::Protect(int protection) {
  for (const auto& [begin, bytes] : device_) {
    if (mprotect(begin, bytes, protection) != 0) {
      std::abort();
    }
  }
}

}  // namespace longshore
