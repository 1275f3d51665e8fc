#include "engine/algo/ranking.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

TEST(Ranking, ScoresAreScaledThenCapped) {
  EXPECT_EQ(ScaledScore(8.0F, 0.125F, 0.0F), 1.0F);
  EXPECT_FLOAT_EQ(ScaledScore(8.0F, 0.5F, 2.0F), 2.0F * std::tanh(2.0F));
  EXPECT_FLOAT_EQ(ScaledScore(-1000.0F, 1.0F, 30.0F), -30.0F);
}

TEST(Ranking, EqualRanksKeepTheLowerToken) {
  EXPECT_TRUE(RanksBefore(2.0F, 900, 1.0F, 3));
  EXPECT_FALSE(RanksBefore(1.0F, 3, 2.0F, 900));
  EXPECT_TRUE(RanksBefore(1.0F, 3, 1.0F, 4));
  EXPECT_FALSE(RanksBefore(1.0F, 4, 1.0F, 3));
  EXPECT_FALSE(RanksBefore(1.0F, 4, 1.0F, 4));
}

}  // namespace
}  // namespace longshore
