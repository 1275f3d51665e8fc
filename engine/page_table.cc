#include "engine/page_table.h"

#include <array>

#include "engine/core/math.h"

namespace longshore {
namespace {

constexpr auto kIdBytes = static_cast<int64_t>(sizeof(int32_t));

// What expired pages are overwritten with, some at a time: a step passes few.
constexpr size_t kMarks = 64;
constexpr std::array<int32_t, kMarks> kFreedPages = [] {
  std::array<int32_t, kMarks> ids = {};
  ids.fill(kFreedPage);
  return ids;
}();

}  // namespace

absl::StatusOr<PageTable> PageTable::Create(int64_t max_pages, Backend* backend) {
  PageTable table;
  table.ids_.reserve(static_cast<size_t>(max_pages));
  ASSIGN_OR_RETURN(table.copy_, backend->Allocate(MemorySpace::kDevice, kIdBytes * max_pages));
  return table;
}

int64_t PageTable::BytesFor(int64_t max_pages) { return 2 * kIdBytes * max_pages; }

int32_t PageTable::Pop() {
  const int32_t page_id = ids_.back();
  ids_.pop_back();
  copied_ = Min(copied_, size());
  return page_id;
}

int32_t PageTable::Expire() { return ids_[static_cast<size_t>(first_++)]; }

void PageTable::Clear() {
  ids_.clear();
  first_ = 0;
  copied_ = 0;
  marked_ = 0;
}

absl::Status PageTable::Update(Backend* backend) {
  auto* copy = reinterpret_cast<int32_t*>(copy_.data());
  if (copied_ < size()) {
    RETURN_IF_ERROR(
        backend->Copy(copy + copied_, ids_.data() + copied_, (size() - copied_) * kIdBytes));
    copied_ = size();
  }
  while (marked_ < first_) {
    const int64_t marks = Min(first_ - marked_, static_cast<int64_t>(kMarks));
    RETURN_IF_ERROR(backend->Copy(copy + marked_, kFreedPages.data(), marks * kIdBytes));
    marked_ += marks;
  }
  return absl::OkStatus();
}

}  // namespace longshore
