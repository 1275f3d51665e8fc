#include "tests/support/fake_backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace longshore {

void FakeDevice::Hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void FakeDevice::Release() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void FakeDevice::AwaitHeld() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_; });
}

void FakeDevice::Fail(FakeVerb verb, absl::Status status, int64_t more) {
  const std::lock_guard lock(mutex_);
  statuses_[static_cast<size_t>(verb)] = std::move(status);
  more_[static_cast<size_t>(verb)] = more;
}

int64_t FakeDevice::appends() const {
  const std::lock_guard lock(mutex_);
  return appends_;
}

int64_t FakeDevice::attends() const {
  const std::lock_guard lock(mutex_);
  return attends_;
}

int64_t FakeDevice::copies() const {
  const std::lock_guard lock(mutex_);
  return copies_;
}

void FakeDevice::PassGate() {
  std::unique_lock lock(mutex_);
  waiting_ = held_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return !held_; });
  waiting_ = false;
  ++appends_;
}

void FakeDevice::CountAttend() {
  const std::lock_guard lock(mutex_);
  ++attends_;
}

void FakeDevice::CountCopy() {
  const std::lock_guard lock(mutex_);
  ++copies_;
}

absl::Status FakeDevice::StatusOf(FakeVerb verb) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(verb);
  if (more_[index] > 0) {
    --more_[index];
    return absl::OkStatus();
  }
  return statuses_[index];
}

FakeBackend::FakeBackend(FakeDevice* device)
    : info_{.backend = "fake", .device = "a test's fake", .threads = 1, .device_bytes = 0},
      device_(device) {}

absl::StatusOr<Buffer> FakeBackend::Allocate(MemorySpace space, int64_t bytes) {
  RETURN_IF_ERROR(device_->StatusOf(FakeVerb::kAllocate));
  auto* data = static_cast<std::byte*>(std::calloc(1, static_cast<size_t>(bytes + 1)));
  return Buffer(this, space, data, bytes);
}

void FakeBackend::Free(MemorySpace /*space*/, std::byte* data, int64_t /*bytes*/) {
  std::free(data);
}

absl::Status FakeBackend::Copy(void* to, const void* from, int64_t bytes) {
  RETURN_IF_ERROR(device_->StatusOf(FakeVerb::kCopy));
  device_->CountCopy();
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status FakeBackend::Append(const AppendArgs& args) {
  RETURN_IF_ERROR(device_->StatusOf(FakeVerb::kAppend));
  if (std::any_of(args.items.begin(), args.items.end(),
                  [](const AppendItem& item) { return !item.replay; })) {
    device_->PassGate();
  }
  return absl::OkStatus();
}

absl::Status FakeBackend::Prune(const PruneArgs& args) {
  RETURN_IF_ERROR(device_->StatusOf(FakeVerb::kPrune));
  for (const PruneBlock& block : args.blocks) {
    for (int32_t chunk = 0; chunk < block.num_selected; ++chunk) {
      block.selected[chunk] = block.Candidate(chunk, args.stage.chunk_tokens);
    }
  }
  return absl::OkStatus();
}

absl::Status FakeBackend::Attend(const AttendArgs& args) {
  RETURN_IF_ERROR(device_->StatusOf(FakeVerb::kAttend));
  device_->CountAttend();
  const int64_t row_bytes = args.q.Bytes() / args.q.shape[0];
  for (const AttendBlock& attend : args.blocks) {
    const QueryBlock& block = attend.block;
    const int64_t offset = block.first_row * row_bytes;
    std::memcpy(static_cast<std::byte*>(args.out.data) + offset,
                static_cast<const std::byte*>(args.q.data) + offset,
                static_cast<size_t>(block.rows * row_bytes));
    for (int32_t row = 0; args.log_sum_exp.data != nullptr && row < block.rows; ++row) {
      float* of_row = static_cast<float*>(args.log_sum_exp.data) +
                      (block.first_row + row) * args.shape.num_heads;
      for (int32_t head = 0; head < args.shape.num_heads; ++head) {
        of_row[head] = static_cast<float>(block.first_position + row);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status FakeBackend::Admit(const AdmitArgs& /*args*/) { return absl::OkStatus(); }

absl::StatusOr<Fence> FakeBackend::Mark() {
  RETURN_IF_ERROR(device_->StatusOf(FakeVerb::kMark));
  return Fence{++sequence_};
}

absl::Status FakeBackend::Wait(Fence /*fence*/) { return device_->StatusOf(FakeVerb::kWait); }

}  // namespace longshore
