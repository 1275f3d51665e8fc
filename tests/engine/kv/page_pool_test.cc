#include "engine/kv/page_pool.h"

#include <array>
#include <map>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/random_tokens.h"

namespace longshore {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kKiB = 1024;
constexpr int64_t kSlab = 64 * kKiB;

// Promises a page and takes it.
int32_t Take(PagePool* pool, int64_t page_bytes) {
  EXPECT_TRUE(pool->Reserve(page_bytes, 1).ok());
  return pool->AllocateReserved(page_bytes);
}

TEST(PagePool, HasWholeSlabs) {
  EXPECT_EQ(PagePool(3 * kSlab + 5, kSlab).usage().total_bytes, 3 * kSlab);
  EXPECT_EQ(PagePool(kSlab - 1, kSlab).usage().total_bytes, 0);
}

TEST(PagePool, CountsWhatIsUsedAndPromised) {
  PagePool pool(2 * kSlab, kSlab);
  ASSERT_TRUE(pool.Reserve(8 * kKiB, 3).ok());
  EXPECT_EQ(pool.usage().reserved_bytes, 24 * kKiB);
  EXPECT_EQ(pool.usage().free_bytes, 2 * kSlab - 24 * kKiB);
  const int32_t page = pool.AllocateReserved(8 * kKiB);
  EXPECT_EQ(pool.usage().used_bytes, 8 * kKiB);
  EXPECT_EQ(pool.usage().reserved_bytes, 16 * kKiB);
  pool.Free(8 * kKiB, page, true);
  EXPECT_EQ(pool.usage().used_bytes, 0);
  EXPECT_EQ(pool.usage().reserved_bytes, 24 * kKiB);
  pool.Unreserve(8 * kKiB, 3);
  EXPECT_EQ(pool.usage().free_bytes, 2 * kSlab);
  pool.Free(8 * kKiB, Take(&pool, 8 * kKiB), false);
  EXPECT_EQ(pool.usage().free_bytes, 2 * kSlab);
}

TEST(PagePool, AllocateFailsWhenEmptyAndChangesNothing) {
  PagePool pool(2 * kSlab, kSlab);
  ASSERT_TRUE(pool.Reserve(16 * kKiB, 7).ok());
  const absl::Status status = pool.Reserve(16 * kKiB, 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DetailsOf(status)->reason, "POOL_FULL");
  EXPECT_THAT(std::string(status.message()), HasSubstr("16384 bytes free, 32768 are needed"));
  EXPECT_EQ(pool.usage().reserved_bytes, 7 * 16 * kKiB);
  EXPECT_TRUE(pool.Reserve(16 * kKiB, 1).ok());
  EXPECT_FALSE(pool.Reserve(16 * kKiB, 1).ok());
  EXPECT_FALSE(pool.Reserve(4 * kKiB, 1).ok()) << "no slab is left for another size";
  EXPECT_TRUE(pool.Reserve(16 * kKiB, 0).ok());
}

TEST(PagePool, APageMayFillItsSlab) {
  PagePool pool(4 * kSlab, kSlab);
  EXPECT_TRUE(pool.Reserve(kSlab, 4).ok());
  EXPECT_FALSE(pool.Reserve(kSlab, 1).ok());
  EXPECT_EQ(pool.AllocateReserved(kSlab), 0);
  EXPECT_EQ(pool.AllocateReserved(kSlab), 16);
}

// The largest pool: ids of its last pages are still int32.
TEST(PagePool, PageIdsOfTheLargestPoolFit) {
  const int64_t slab = int64_t{1} << 40;
  PagePool pool(PagePool::kMaxBytes, slab);
  EXPECT_EQ(pool.usage().total_bytes, PagePool::kMaxBytes);
  ASSERT_TRUE(pool.Reserve(slab, 8).ok());
  for (int64_t page = 0; page < 8; ++page) {
    EXPECT_EQ(pool.AllocateReserved(slab), page * (slab / 4096));
  }
  pool.Free(slab, static_cast<int32_t>(7 * (slab / 4096)), false);
  EXPECT_EQ(pool.usage().free_bytes, slab);
}

TEST(PagePool, SlabsServeOneSizeAtATime) {
  PagePool pool(2 * kSlab, kSlab);
  std::vector<int32_t> small;
  small.reserve(9);
  for (int32_t page = 0; page < 9; ++page) {  // a slab and one page
    small.push_back(Take(&pool, 8 * kKiB));
  }
  EXPECT_FALSE(pool.Reserve(16 * kKiB, 1).ok());
  pool.Free(8 * kKiB, small.back(), false);  // empties the second slab
  EXPECT_TRUE(pool.Reserve(16 * kKiB, 4).ok());
  EXPECT_FALSE(pool.Reserve(8 * kKiB, 1).ok());
  EXPECT_FALSE(pool.Reserve(16 * kKiB, 1).ok());
}

TEST(PagePool, LowPagesAreUsedFirst) {
  PagePool pool(2 * kSlab, kSlab);
  EXPECT_EQ(Take(&pool, 8 * kKiB), 0);
  EXPECT_EQ(Take(&pool, 8 * kKiB), 2);
  EXPECT_EQ(Take(&pool, 8 * kKiB), 4);
  pool.Free(8 * kKiB, 2, false);
  EXPECT_EQ(Take(&pool, 8 * kKiB), 2);
}

// A page size that does not divide a slab wastes its end and no more.
TEST(PagePool, PagesStayWithinTheirSlab) {
  PagePool pool(2 * kSlab, kSlab);
  const int64_t page_bytes = 20 * kKiB;  // three a slab
  for (int32_t page = 0; page < 6; ++page) {
    const int64_t begin = int64_t{Take(&pool, page_bytes)} * 4096;
    EXPECT_EQ(begin / kSlab, (begin + page_bytes - 1) / kSlab);
  }
  EXPECT_FALSE(pool.Reserve(page_bytes, 1).ok());
}

// Pages that are out, and promises, by page size: what a pool must always be able to keep.
class Holder {
 public:
  explicit Holder(PagePool* pool) : pool_(pool) {}

  void Step(Random* random) {
    const int64_t page_bytes = kSizes[static_cast<size_t>(random->Uniform(0, 3))];
    Held& held = held_[page_bytes];
    switch (random->Uniform(0, 5)) {
      case 0: Reserve(page_bytes, random->Uniform(0, 12)); break;
      case 1:
        if (held.promised > 0) {
          const int64_t pages = random->Uniform(1, held.promised);
          pool_->Unreserve(page_bytes, pages);
          held.promised -= pages;
        }
        break;
      case 2:
      case 3:
        for (int64_t page = random->Uniform(0, held.promised); page > 0; --page) {
          Allocate(page_bytes);
        }
        break;
      default: FreeSome(page_bytes, random); break;
    }
    Check();
  }

  // Every promise is kept, whatever came before.
  void TakeAll() {
    for (auto& [page_bytes, held] : held_) {
      while (held.promised > 0) {
        Allocate(page_bytes);
      }
    }
    Check();
  }

  int64_t refusals() const { return refusals_; }

 private:
  struct Held {
    int64_t promised = 0;
    std::vector<int32_t> pages;
  };

  void Reserve(int64_t page_bytes, int64_t pages) {
    const PoolUsage before = pool_->usage();
    if (pool_->Reserve(page_bytes, pages).ok()) {
      held_[page_bytes].promised += pages;
    } else {
      ++refusals_;
      EXPECT_EQ(pool_->usage().reserved_bytes, before.reserved_bytes);
      EXPECT_EQ(pool_->usage().used_bytes, before.used_bytes);
    }
  }

  // Takes a page that nobody has.
  void Allocate(int64_t page_bytes) {
    const int32_t page = pool_->AllocateReserved(page_bytes);
    const int64_t begin = int64_t{page} * 4096;
    ASSERT_GE(begin, 0);
    ASSERT_LE(begin + page_bytes, pool_->usage().total_bytes);
    const auto next = taken_.lower_bound(begin);
    ASSERT_TRUE(next == taken_.end() || begin + page_bytes <= next->first);
    ASSERT_TRUE(next == taken_.begin() || std::prev(next)->second <= begin);
    taken_[begin] = begin + page_bytes;
    held_[page_bytes].pages.push_back(page);
    --held_[page_bytes].promised;
  }

  void FreeSome(int64_t page_bytes, Random* random) {
    Held& held = held_[page_bytes];
    const bool keep_promise = random->OneIn(2);
    for (int64_t count = random->Uniform(0, std::ssize(held.pages)); count > 0; --count) {
      const int64_t index = random->Uniform(0, std::ssize(held.pages) - 1);
      const int32_t page = held.pages[static_cast<size_t>(index)];
      held.pages[static_cast<size_t>(index)] = held.pages.back();
      held.pages.pop_back();
      pool_->Free(page_bytes, page, keep_promise);
      held.promised += keep_promise ? 1 : 0;
      taken_.erase(int64_t{page} * 4096);
    }
  }

  void Check() {
    int64_t used = 0;
    int64_t reserved = 0;
    for (const auto& [page_bytes, held] : held_) {
      used += std::ssize(held.pages) * page_bytes;
      reserved += held.promised * page_bytes;
    }
    const PoolUsage usage = pool_->usage();
    ASSERT_EQ(usage.used_bytes, used);
    ASSERT_EQ(usage.reserved_bytes, reserved);
    ASSERT_EQ(usage.free_bytes, usage.total_bytes - used - reserved);
    ASSERT_GE(usage.free_bytes, 0);
  }

  static constexpr std::array<int64_t, 4> kSizes = {4 * kKiB, 12 * kKiB, 32 * kKiB, 64 * kKiB};

  PagePool* pool_;
  std::map<int64_t, Held> held_;      // by page size
  std::map<int64_t, int64_t> taken_;  // begin -> end, in bytes
  int64_t refusals_ = 0;
};

TEST(PagePool, KeepsItsPromisesOverRandomCalls) {
  for (uint32_t round = 0; round < 20; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round, ", seed ", TestSeed()));
    Random random(round);
    PagePool pool(8 * kSlab, kSlab);
    Holder holder(&pool);
    for (int32_t step = 0; step < 300 && !HasFailure(); ++step) {
      holder.Step(&random);
    }
    EXPECT_GT(holder.refusals(), 0) << "the pool never was full";
    holder.TakeAll();
  }
}

}  // namespace
}  // namespace longshore
