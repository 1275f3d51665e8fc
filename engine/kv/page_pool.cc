#include "engine/kv/page_pool.h"

#include <utility>

#include "engine/core/error.h"
#include "engine/core/math.h"
#include "engine/kv/kv_view.h"

namespace longshore {

PagePool::PagePool(int64_t total_bytes, int64_t slab_bytes)
    : slab_bytes_(slab_bytes),
      num_slabs_(total_bytes / slab_bytes) {
  LONGSHORE_CHECK(total_bytes <= kMaxBytes);
  pages_in_use_.resize(static_cast<size_t>(num_slabs_));
  for (int64_t slab = 0; slab < num_slabs_; ++slab) {
    unused_slabs_.insert(static_cast<int32_t>(slab));
  }
}

int64_t PagePool::SizeClass::NeededSlabs() const {
  return CeilDiv(used_pages() + reserved_pages, pages_per_slab);
}

PagePool::SizeClass& PagePool::ClassOf(int64_t page_bytes) {
  LONGSHORE_CHECK(page_bytes > 0 && page_bytes <= slab_bytes_);
  LONGSHORE_CHECK(page_bytes % KvView::kGranuleBytes == 0);
  SizeClass& size_class = classes_[page_bytes];
  size_class.pages_per_slab = slab_bytes_ / page_bytes;
  return size_class;
}

// Slabs that no class holds or will need for what it has promised.
int64_t PagePool::FreeSlabs() const {
  auto free_slabs = static_cast<int64_t>(unused_slabs_.size());
  for (const auto& [page_bytes, size_class] : classes_) {
    free_slabs -= Max(0, size_class.NeededSlabs() - static_cast<int64_t>(size_class.slabs.size()));
  }
  return free_slabs;
}

absl::Status PagePool::Reserve(int64_t page_bytes, int64_t pages) {
  SizeClass& size_class = ClassOf(page_bytes);
  const auto held = static_cast<int64_t>(size_class.slabs.size());
  // What this class may grow to: the slabs that it holds or is owed, and those that nobody needs.
  const int64_t slabs = Max(held, size_class.NeededSlabs()) + FreeSlabs();
  const int64_t free_pages =
      slabs * size_class.pages_per_slab - size_class.used_pages() - size_class.reserved_pages;
  if (pages > free_pages) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("the pool has ", free_pages * page_bytes, " bytes free, ",
                                  pages * page_bytes, " are needed"),
                     {.reason = "POOL_FULL",
                      .field = "",
                      .metadata = {{"free_bytes", absl::StrCat(free_pages * page_bytes)},
                                   {"needed_bytes", absl::StrCat(pages * page_bytes)}}});
  }
  size_class.reserved_pages += pages;
  return absl::OkStatus();
}

void PagePool::Unreserve(int64_t page_bytes, int64_t pages) {
  SizeClass& size_class = ClassOf(page_bytes);
  LONGSHORE_CHECK(pages <= size_class.reserved_pages);
  size_class.reserved_pages -= pages;
}

int32_t PagePool::AllocateReserved(int64_t page_bytes) {
  SizeClass& size_class = ClassOf(page_bytes);
  LONGSHORE_CHECK(size_class.reserved_pages > 0);
  if (size_class.free_page_ids.empty()) {
    TakeSlab(page_bytes, &size_class);
  }
  auto page = size_class.free_page_ids.extract(size_class.free_page_ids.begin());
  const int32_t page_id = page.value();
  size_class.used_page_ids.insert(std::move(page));
  --size_class.reserved_pages;
  ++pages_in_use_[SlabOf(page_id)];
  return page_id;
}

// All or nothing: what needs memory comes before the first change.
void PagePool::TakeSlab(int64_t page_bytes, SizeClass* size_class) {
  LONGSHORE_CHECK(!unused_slabs_.empty());
  const int32_t slab = *unused_slabs_.begin();
  std::set<int32_t> page_ids;
  for (int64_t page = 0; page < size_class->pages_per_slab; ++page) {
    const int64_t offset = slab * slab_bytes_ + page * page_bytes;
    page_ids.insert(page_ids.end(), static_cast<int32_t>(offset / KvView::kGranuleBytes));
  }
  size_class->free_page_ids.merge(page_ids);
  size_class->slabs.insert(unused_slabs_.extract(slab));
}

void PagePool::Free(int64_t page_bytes, int32_t page_id, bool keep_promise) {
  SizeClass& size_class = ClassOf(page_bytes);
  const size_t slab = SlabOf(page_id);
  auto page = size_class.used_page_ids.extract(page_id);
  LONGSHORE_CHECK(!page.empty() && pages_in_use_[slab] > 0);
  size_class.free_page_ids.insert(std::move(page));
  size_class.reserved_pages += keep_promise ? 1 : 0;
  if (--pages_in_use_[slab] > 0) {
    return;
  }
  // The slab is empty: another page size may have it.
  const int64_t first = static_cast<int64_t>(slab) * slab_bytes_ / KvView::kGranuleBytes;
  const int64_t last = first + slab_bytes_ / KvView::kGranuleBytes - 1;
  size_class.free_page_ids.erase(size_class.free_page_ids.lower_bound(static_cast<int32_t>(first)),
                                 size_class.free_page_ids.upper_bound(static_cast<int32_t>(last)));
  unused_slabs_.insert(size_class.slabs.extract(static_cast<int32_t>(slab)));
}

size_t PagePool::SlabOf(int32_t page_id) const {
  return static_cast<size_t>(int64_t{page_id} * KvView::kGranuleBytes / slab_bytes_);
}

PoolUsage PagePool::usage() const {
  PoolUsage usage;
  usage.total_bytes = num_slabs_ * slab_bytes_;
  for (const auto& [page_bytes, size_class] : classes_) {
    usage.used_bytes += size_class.used_pages() * page_bytes;
    usage.reserved_bytes += size_class.reserved_pages * page_bytes;
  }
  usage.free_bytes = usage.total_bytes - usage.used_bytes - usage.reserved_bytes;
  return usage;
}

}  // namespace longshore
