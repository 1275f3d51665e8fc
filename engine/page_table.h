#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend.h"

namespace longshore {

/// Where a page was that a sliding window has left behind. An address before the arena, so that a
/// read of it does not go unseen.
inline constexpr int32_t kFreedPage = -1;

/// Where the pages of one layer of one session are: page ids by block of 64 tokens, kept by the
/// host, and the copy of them that kernels read.
///
/// Changes are the host's at once, and the copy's with the next Update, in queue order: what was
/// queued before still sees what it was queued with. Who owns the pages is not its concern. Its
/// memory is taken once.
class PageTable {
 public:
  PageTable() = default;
  /// Room for `max_pages` ids.
  static absl::StatusOr<PageTable> Create(int64_t max_pages, Backend* backend);
  /// Of the ids and their copy.
  static int64_t BytesFor(int64_t max_pages);

  /// Pages of all tokens, the expired ones included.
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  /// Those before are expired.
  int64_t first() const { return first_; }
  int64_t pages() const { return size() - first_; }

  /// The next page, one of at most max_pages. Cannot fail.
  void Push(int32_t page_id) { ids_.push_back(page_id); }
  /// Takes the last page off, which is not expired. No Update with it may still be under way.
  int32_t Pop();
  /// The first page that is not expired becomes so.
  int32_t Expire();
  /// Forgets that there were expired pages: none is left besides.
  void Clear();

  /// Enqueues what brings the kernels' copy up to date: nothing, in most steps.
  absl::Status Update(Backend* backend);
  /// The kernels' copy: [size()] page ids, kFreedPage for those that were expired at the last
  /// Update.
  const int32_t* device_ids() const { return reinterpret_cast<const int32_t*>(copy_.data()); }

 private:
  std::vector<int32_t> ids_;  // [size()]
  Buffer copy_;               // [max_pages] int32
  int64_t first_ = 0;
  int64_t copied_ = 0;  // ids that the copy has
  int64_t marked_ = 0;  // expired pages that it has as kFreedPage
};

}  // namespace longshore
