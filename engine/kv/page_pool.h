#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "engine/core/status.h"

namespace longshore {

/// Bytes of a pool by what they are promised to.
struct PoolUsage {
  int64_t total_bytes = 0;
  int64_t used_bytes = 0;      ///< pages in use
  int64_t reserved_bytes = 0;  ///< promised to open sessions, not yet in use
  int64_t free_bytes = 0;      ///< neither
};

/// Hides how one arena of bytes serves pages of several sizes (a model's shape decides its page
/// size) and how space is promised ahead. Nothing is ever evicted: a full pool is an error before
/// anything changed.
///
/// The arena is cut into slabs; a slab serves one page size at a time and goes back when its last
/// page does. Knows offsets only: no tokens, sessions or memory. Page ids count 4 KiB granules from
/// the base.
class PagePool {
 public:
  /// `total_bytes`, at most kMaxBytes, is rounded down to whole slabs.
  explicit PagePool(int64_t total_bytes, int64_t slab_bytes = kDefaultSlabBytes);

  /// Promises `pages` pages of `page_bytes` (a multiple of 4 KiB, at most a slab).
  /// ResourceExhausted names the bytes asked for and free.
  absl::Status Reserve(int64_t page_bytes, int64_t pages);
  /// Takes a promise back. At most what is still promised.
  void Unreserve(int64_t page_bytes, int64_t pages);

  /// A page that Reserve promised; uses up one of the promises, which are kept. Only
  /// std::bad_alloc, from the standard library, can come instead, and nothing has changed then.
  int32_t AllocateReserved(int64_t page_bytes);
  /// Returns a page. With `keep_promise` its space stays promised to whoever had it. Cannot fail.
  void Free(int64_t page_bytes, int32_t page_id, bool keep_promise);

  PoolUsage usage() const;

  static constexpr int64_t kDefaultSlabBytes = int64_t{8} << 20;
  /// Page ids are int32 and count granules of 4 KiB.
  static constexpr int64_t kMaxBytes = int64_t{8} << 40;

 private:
  struct SizeClass {
    int64_t pages_per_slab = 0;
    int64_t reserved_pages = 0;
    std::set<int32_t> slabs;  // that serve this size
    // Of those slabs, the lowest is used first. Pages move between the two as nodes of the tree, so
    // that giving one back needs no memory and cannot fail.
    std::set<int32_t> free_page_ids;
    std::set<int32_t> used_page_ids;
    int64_t used_pages() const { return static_cast<int64_t>(used_page_ids.size()); }
    int64_t NeededSlabs() const;  // for used and promised pages
  };

  SizeClass& ClassOf(int64_t page_bytes);
  int64_t FreeSlabs() const;
  void TakeSlab(int64_t page_bytes, SizeClass* size_class);
  size_t SlabOf(int32_t page_id) const;

  int64_t slab_bytes_;
  int64_t num_slabs_;
  std::map<int64_t, SizeClass> classes_;  // by page_bytes
  std::set<int32_t> unused_slabs_;
  std::vector<int32_t> pages_in_use_;  // [slabs]
};

}  // namespace longshore
