#include "engine/page_table.h"

#include <gtest/gtest.h>

#include "tests/support/device_memory.h"
#include "tests/support/engine_session.h"
#include "tests/support/fake_backend.h"

namespace longshore {
namespace {

using Ids = std::vector<int32_t>;

class PageTableTest : public ::testing::Test {
 protected:
  PageTableTest() : backend_(MakeTestBackend()), table_(*PageTable::Create(200, backend_.get())) {}

  void Push(const Ids& ids) {
    for (const int32_t id : ids) {
      table_.Push(id);
    }
  }
  // What kernels see once the table is up to date.
  Ids Updated() {
    EXPECT_TRUE(table_.Update(backend_.get()).ok());
    return ReadDevice(backend_.get(), table_.device_ids(), table_.size());
  }

  std::unique_ptr<Backend> backend_;
  PageTable table_;
};

TEST_F(PageTableTest, KernelsSeeEveryPage) {
  EXPECT_EQ(Updated(), Ids{});
  Push({40, 0, 8});
  EXPECT_EQ(table_.size(), 3);
  EXPECT_EQ(Updated(), (Ids{40, 0, 8}));
  Push({16});
  EXPECT_EQ(Updated(), (Ids{40, 0, 8, 16}));
  EXPECT_EQ(table_.pages(), 4);
}

TEST_F(PageTableTest, PagesThatReplaceOthersAreSeen) {
  Push({1, 2, 3});
  Updated();
  EXPECT_EQ(table_.Pop(), 3);
  EXPECT_EQ(table_.Pop(), 2);
  Push({4});
  EXPECT_EQ(Updated(), (Ids{1, 4}));
  EXPECT_EQ(table_.Pop(), 4);
  Push({5, 6});
  EXPECT_EQ(table_.Pop(), 6);
  Push({7});
  EXPECT_EQ(Updated(), (Ids{1, 5, 7}));
}

// More of them at once than are marked by one copy.
TEST_F(PageTableTest, ExpiredPagesAreMarked) {
  for (int32_t page = 0; page < 150; ++page) {
    Push({page});
  }
  Updated();
  Ids expected = Updated();
  for (int32_t page = 0; page < 140; ++page) {
    EXPECT_EQ(table_.Expire(), page);
    expected[static_cast<size_t>(page)] = kFreedPage;
  }
  EXPECT_EQ(table_.first(), 140);
  EXPECT_EQ(table_.pages(), 10);
  EXPECT_EQ(table_.size(), 150);
  EXPECT_EQ(Updated(), expected);
  // Also where one expires before it was ever seen.
  Push({150});
  while (table_.first() < 151) {
    table_.Expire();
  }
  EXPECT_EQ(Updated(), Ids(151, kFreedPage));
}

TEST_F(PageTableTest, AClearedTableBeginsAgain) {
  Push({1, 2, 3});
  EXPECT_EQ(table_.Expire(), 1);
  Updated();
  EXPECT_EQ(table_.Pop(), 3);
  EXPECT_EQ(table_.Pop(), 2);
  table_.Clear();
  EXPECT_EQ(table_.size(), 0);
  EXPECT_EQ(table_.first(), 0);
  Push({9, 8});
  EXPECT_EQ(Updated(), (Ids{9, 8}));
}

TEST(PageTable, NothingNewIsNotCopied) {
  FakeDevice device;
  FakeBackend backend(&device);
  PageTable table = *PageTable::Create(100, &backend);
  const auto copies = [&] {
    const int64_t before = device.copies();
    EXPECT_TRUE(table.Update(&backend).ok());
    return device.copies() - before;
  };
  EXPECT_EQ(copies(), 0);
  table.Push(1);
  table.Push(2);
  EXPECT_EQ(copies(), 1);
  EXPECT_EQ(copies(), 0);
  table.Expire();
  EXPECT_EQ(copies(), 1);
  EXPECT_EQ(copies(), 0);
  table.Pop();
  EXPECT_EQ(copies(), 0);
}

TEST(PageTable, WhatCouldNotBeCopiedIsCopiedLater) {
  FakeDevice device;
  FakeBackend backend(&device);
  PageTable table = *PageTable::Create(100, &backend);
  table.Push(7);
  device.Fail(FakeVerb::kCopy, absl::UnavailableError("burnt"));
  EXPECT_FALSE(table.Update(&backend).ok());
  device.Fail(FakeVerb::kCopy, absl::OkStatus());
  EXPECT_TRUE(table.Update(&backend).ok());
  EXPECT_EQ(ReadDevice(&backend, table.device_ids(), 1), Ids{7});
}

}  // namespace
}  // namespace longshore
