#include "engine/algo/rope.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

TEST(Rope, PruningTruePositionsTurnsBoth) {
  EXPECT_FALSE(PruneKeysAreUnrotated(RopeStyle::kTruePositions));
  EXPECT_EQ(PruneQueryId(RopeStyle::kTruePositions, 700, 128), 700);
  EXPECT_EQ(PruneKeyId(RopeStyle::kTruePositions, 300), 300);
}

// The table says query W + 1 and key 1; any common shift gives the same scores.
TEST(Rope, PruningRelativeTurnsTheQueryAlone) {
  EXPECT_TRUE(PruneKeysAreUnrotated(RopeStyle::kRelative));
  EXPECT_EQ(PruneQueryId(RopeStyle::kRelative, 700, 128), 128);
  EXPECT_EQ(PruneQueryId(RopeStyle::kRelative, 9000000, 128), 128);
}

TEST(Rope, AttentionAtTruePositionsLeavesThemAlone) {
  const AttendIds ids = MakeAttendIds(RopeStyle::kTruePositions, {64, 512}, 32);
  EXPECT_EQ(ids.OfSink(63), 63);
  EXPECT_EQ(ids.OfSelected(300, 7), 300);
  EXPECT_EQ(ids.OfWindow(513), 513);
}

TEST(Rope, StreamingNumbersWhatIsAttended) {
  // Sink 0..63, 32 selected tokens of the middle 64..511, window from 512 on.
  const AttendIds ids = MakeAttendIds(RopeStyle::kStreaming, {64, 512}, 32);
  EXPECT_EQ(ids.OfSink(0), 0);
  EXPECT_EQ(ids.OfSink(63), 63);
  EXPECT_EQ(ids.OfSelected(300, 0), 64);
  EXPECT_EQ(ids.OfSelected(511, 31), 95);
  EXPECT_EQ(ids.OfWindow(512), 96);
  EXPECT_EQ(ids.OfWindow(600), 184);
}

TEST(Rope, StreamingOfAShortContextIsTruePositions) {
  const AttendIds ids = MakeAttendIds(RopeStyle::kStreaming, {64, 64}, 0);
  EXPECT_EQ(ids.OfSink(10), 10);
  EXPECT_EQ(ids.OfWindow(64), 64);
  EXPECT_EQ(ids.OfWindow(40), 40);  // a query that lies in the sink region
}

}  // namespace
}  // namespace longshore
