#include "engine/algo/regions.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

TEST(Regions, MiddleBeginsWhereAChunkFitsBehindTheWindow) {
  constexpr int64_t kSink = 64;
  constexpr int64_t kWindow = 128;
  struct Case {
    int64_t first_position;
    int64_t chunk_tokens;
    int64_t middle_end;
  };
  for (const Case& test :
       {Case{0, 8, 64}, Case{63, 8, 64}, Case{190, 8, 64}, Case{191, 8, 64}, Case{198, 8, 64},
        Case{199, 8, 72}, Case{206, 8, 72}, Case{207, 8, 80}, Case{192, 1, 65}, Case{191, 1, 64},
        Case{254, 64, 64}, Case{255, 64, 128}, Case{318, 64, 128}, Case{319, 64, 192}}) {
    const Regions regions = SplitRegions(test.first_position, kSink, kWindow, test.chunk_tokens);
    EXPECT_EQ(regions.sink_end, kSink);
    EXPECT_EQ(regions.middle_end, test.middle_end)
        << test.first_position << ", chunks of " << test.chunk_tokens;
    EXPECT_EQ(regions.MiddleTokens(), test.middle_end - kSink);
  }
}

TEST(Regions, LargePositionsDoNotOverflow) {
  constexpr int64_t kPosition = int64_t{1} << 40;
  EXPECT_EQ(SplitRegions(kPosition, 0, 1, 1).middle_end, kPosition);
  EXPECT_EQ(SplitRegions(kPosition, 256, 1024, 64).middle_end, kPosition - 1024);
}

TEST(Regions, TheWindowKeepsItsTokensAtLeast) {
  for (int64_t position = 0; position < 400; ++position) {
    for (const int64_t chunk : {1, 4, 64}) {
      const Regions regions = SplitRegions(position, 64, 30, chunk);
      const int64_t window = position + 1 - regions.middle_end;
      EXPECT_EQ(regions.MiddleTokens() % chunk, 0);
      if (regions.MiddleTokens() > 0) {
        EXPECT_GE(window, 30);
        EXPECT_LT(window, 30 + chunk);
      }
    }
  }
}

TEST(Regions, RefreshTicksDependOnPositionAndLayer) {
  EXPECT_EQ(RefreshTick(15, 0, 16), 0);
  EXPECT_EQ(RefreshTick(16, 0, 16), 1);
  EXPECT_EQ(RefreshTick(15, 1, 16), 1);
  EXPECT_EQ(RefreshTick(14, 1, 16), 0);
  EXPECT_EQ(RefreshTick(7, 3, 1), 10);
}

TEST(Regions, ScoredRowsCountBackFromTheLast) {
  for (const int32_t rows : {1, 2, 3, 4, 5, 63, 64}) {
    for (const int32_t stride : {1, 2, 4, 5, 64}) {
      int32_t scored = 0;
      int32_t first = -1;
      for (int32_t row = 0; row < rows; ++row) {
        if ((rows - 1 - row) % stride == 0) {
          first = first < 0 ? row : first;
          ++scored;
        }
      }
      EXPECT_EQ(FirstScoredRow(rows, stride), first) << rows << " by " << stride;
      EXPECT_EQ(ScoredRows(rows, stride), scored) << rows << " by " << stride;
      EXPECT_EQ(first + (scored - 1) * stride, rows - 1);
    }
  }
}

}  // namespace
}  // namespace longshore
