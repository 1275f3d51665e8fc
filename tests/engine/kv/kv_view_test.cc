#include "engine/kv/kv_view.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

namespace longshore {
namespace {

// 2 KV heads of 64 dimensions in bf16: a token is 256 bytes, a page 2 * 64 * 256 = 32 KiB, a
// granule 4 KiB.
struct Fixture {
  std::vector<std::byte> arena = std::vector<std::byte>(16 * 32768);
  std::vector<std::byte> summaries = std::vector<std::byte>(16 * 512);
  std::array<int32_t, 3> page_ids = {40, 0, 8};
  KvView view;

  Fixture() {
    view.pages = arena.data();
    view.summaries[0] = summaries.data();
    view.summaries[1] = summaries.data() + 8 * 512;
    view.page_ids = page_ids.data();
    view.value_offset = 16384;
    view.token_bytes = 256;
    view.head_bytes = 128;
    view.dtype = DType::kBf16;
  }
};

TEST(KvView, FindsTokensThroughThePageTable) {
  const Fixture f;
  const auto offset = [&](const std::byte* at) { return at - f.arena.data(); };
  EXPECT_EQ(offset(f.view.Keys(0)), 40 * 4096);
  EXPECT_EQ(offset(f.view.Keys(63)), 40 * 4096 + 63 * 256);
  EXPECT_EQ(offset(f.view.Keys(64)), 0);
  EXPECT_EQ(offset(f.view.Keys(129)), 8 * 4096 + 256);
  EXPECT_EQ(offset(f.view.Page(127)), 0);
  EXPECT_EQ(offset(f.view.Values(0)), 40 * 4096 + 16384);
  EXPECT_EQ(offset(f.view.Values(130)), 8 * 4096 + 16384 + 512);
}

TEST(KvView, FindsTheSummaryOfATokensChunk) {
  const Fixture f;
  const auto offset = [&](SummaryKind kind, int64_t token) {
    return f.view.Summary(kind, token) - f.summaries.data();
  };
  // 1/64 of the page's offset; 512 bytes a page: 2 heads, maximum and minimum, 64 dimensions.
  EXPECT_EQ(offset(SummaryKind::kUnrotated, 0), 40 * 4096 / 64);
  EXPECT_EQ(offset(SummaryKind::kUnrotated, 63), 40 * 4096 / 64);
  EXPECT_EQ(offset(SummaryKind::kUnrotated, 64), 0);
  EXPECT_EQ(offset(SummaryKind::kUnrotated, 128), 512);
  EXPECT_EQ(offset(SummaryKind::kRotated, 128), 8 * 512 + 512);
}

TEST(KvView, PageIdsMayPassFourGigabytes) {
  KvView view;
  std::byte base{};
  view.pages = &base;
  view.summaries[0] = &base;
  const std::array<int32_t, 1> page_ids = {INT32_MAX};
  view.page_ids = page_ids.data();
  view.token_bytes = 256;
  EXPECT_EQ(view.Keys(1) - view.pages, (int64_t{1} << 43) - 4096 + 256);
  EXPECT_EQ(view.Summary(SummaryKind::kUnrotated, 0) - view.summaries[0], int64_t{INT32_MAX} * 64);
}

}  // namespace
}  // namespace longshore
