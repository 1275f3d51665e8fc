#include "engine/algo/ranking.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

TEST(Ranking, EqualRanksKeepTheLowerToken) {
  EXPECT_TRUE(RanksBefore(2.0F, 900, 1.0F, 3));
  EXPECT_FALSE(RanksBefore(1.0F, 3, 2.0F, 900));
  EXPECT_TRUE(RanksBefore(1.0F, 3, 1.0F, 4));
  EXPECT_FALSE(RanksBefore(1.0F, 4, 1.0F, 3));
  EXPECT_FALSE(RanksBefore(1.0F, 4, 1.0F, 4));
}

}  // namespace
}  // namespace longshore
