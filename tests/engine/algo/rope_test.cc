#include "engine/algo/rope.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

RopeRule Rule(RopeStyle style) { return {.style = style, .window_tokens = 128}; }

TEST(Rope, PruningTruePositionsTurnsBoth) {
  const RopeRule rule = Rule(RopeStyle::kTruePositions);
  EXPECT_FALSE(PruneKeysAreUnrotated(rule.style));
  EXPECT_EQ(PruneQueryId(rule, 700, 10), 700);
  EXPECT_EQ(PruneKeyId(rule, 700, 300, 4), 300);
}

// The table says query W + 1 and key 1; any common shift gives the same scores.
TEST(Rope, PruningRelativeTurnsTheQueryAlone) {
  const RopeRule rule = Rule(RopeStyle::kRelative);
  EXPECT_TRUE(PruneKeysAreUnrotated(rule.style));
  EXPECT_EQ(PruneQueryId(rule, 700, 10), 128);
  EXPECT_EQ(PruneQueryId(rule, 9000000, 10), 128);
  EXPECT_EQ(PruneKeyId(rule, 700, 300, 4), 0);
}

TEST(Rope, DescentTellsBranchesApartUnderRelativeAlone) {
  const RopeRule relative = Rule(RopeStyle::kRelative);
  EXPECT_FALSE(DescentKeysAreUnrotated(relative.style));
  EXPECT_EQ(DescentQueryId(relative, 700, 10), 129);
  EXPECT_EQ(DescentKeyId(relative, 700, 300, 4, true), 0);
  EXPECT_EQ(DescentKeyId(relative, 700, 300, 4, false), 1);
  const RopeRule indexed = Rule(RopeStyle::kChunkIndexed);
  EXPECT_EQ(DescentQueryId(indexed, 700, 10), 138);
  EXPECT_EQ(DescentKeyId(indexed, 700, 300, 4, true), 4);
  EXPECT_EQ(DescentKeyId(indexed, 700, 300, 4, false), 4);
}

TEST(Rope, ChunkIndexedCountsCandidates) {
  const RopeRule rule = Rule(RopeStyle::kChunkIndexed);
  EXPECT_FALSE(PruneKeysAreUnrotated(rule.style));
  EXPECT_EQ(PruneQueryId(rule, 700, 10), 138);
  EXPECT_EQ(PruneQueryId(rule, 100, 10), 100);
  EXPECT_EQ(PruneKeyId(rule, 700, 300, 4), 4);
}

TEST(Rope, InfLlmPutsWhatIsFarOneWindowBehind) {
  const RopeRule rule = Rule(RopeStyle::kInfLlm);
  EXPECT_TRUE(PruneKeysAreUnrotated(rule.style));
  EXPECT_EQ(PruneQueryId(rule, 700, 10), 128);
  const AttendIds ids = MakeAttendIds(rule, {64, 512}, 32);
  EXPECT_EQ(ids.OfQuery(700), 700);
  EXPECT_EQ(ids.OfKey(700, 511, 95), 572);
  EXPECT_EQ(ids.OfKey(700, 3, 3), 572);
  EXPECT_EQ(ids.OfKey(700, 512, 96), 512);
  EXPECT_EQ(MakeAttendIds(rule, {64, 64}, 0).OfKey(100, 3, 3), 0);  // nearer than the window
}

TEST(Rope, DynamicExtendSqueezesWhatIsFar) {
  RopeRule rule = Rule(RopeStyle::kDynamicExtend);
  rule.trained_tokens = 400;
  rule.block_first_position = 1000;  // near from 900 on
  EXPECT_EQ(PruneQueryId(rule, 1010, 10), 1010);
  EXPECT_EQ(PruneKeyId(rule, 1010, 905, 4), 905);
  EXPECT_EQ(PruneKeyId(rule, 1010, 900, 4), 900);
  // 900 + floor((600 - 900) 300 / 900) = 800
  EXPECT_EQ(PruneKeyId(rule, 1010, 600, 4), 800);
  // 900 + floor(-299 / 3) = 900 - 100
  EXPECT_EQ(PruneKeyId(rule, 1010, 601, 4), 800);
  EXPECT_EQ(PruneKeyId(rule, 1000, 0, 4), 601);  // at least p - L + 1; squeezed alone it is 600
  EXPECT_EQ(PruneKeyId(rule, 1010, 0, 4), 611);
  rule.block_first_position = 340;
  EXPECT_EQ(PruneKeyId(rule, 399, 0, 4), 0);  // inside the trained length
  EXPECT_EQ(MakeAttendIds(rule, {64, 512}, 32).OfKey(399, 5, 5), 5);
}

TEST(Rope, SelfExtendGroupsWhatIsFar) {
  RopeRule rule = Rule(RopeStyle::kSelfExtend);
  rule.group = 8;
  rule.neighbor_tokens = 100;
  EXPECT_EQ(PruneKeyId(rule, 1000, 901, 4), 901);
  EXPECT_EQ(PruneKeyId(rule, 1000, 900, 4), 900);  // n behind: the first group
  EXPECT_EQ(PruneKeyId(rule, 1000, 893, 4), 900);
  EXPECT_EQ(PruneKeyId(rule, 1000, 892, 4), 899);
  EXPECT_EQ(PruneKeyId(rule, 1000, 0, 4), 1000 - 100 - 112);
  EXPECT_TRUE(KeyIdsDependOnQuery(rule.style));
}

TEST(Rope, AttentionAtTruePositionsLeavesThemAlone) {
  const AttendIds ids = MakeAttendIds(Rule(RopeStyle::kTruePositions), {64, 512}, 32);
  EXPECT_EQ(ids.OfKey(600, 63, 63), 63);
  EXPECT_EQ(ids.OfKey(600, 300, 70), 300);
  EXPECT_EQ(ids.OfKey(600, 513, 97), 513);
  EXPECT_EQ(ids.OfQuery(600), 600);
}

TEST(Rope, StreamingNumbersWhatIsAttended) {
  // Sink 0..63, 32 selected tokens of the middle 64..511, window from 512 on.
  const AttendIds ids = MakeAttendIds(Rule(RopeStyle::kStreaming), {64, 512}, 32);
  EXPECT_EQ(ids.OfKey(600, 0, 0), 0);
  EXPECT_EQ(ids.OfKey(600, 300, 64), 64);
  EXPECT_EQ(ids.OfKey(600, 512, 96), 96);
  EXPECT_EQ(ids.OfQuery(512), 96);
  EXPECT_EQ(ids.OfQuery(600), 184);
}

TEST(Rope, StreamingOfAShortContextIsTruePositions) {
  const AttendIds ids = MakeAttendIds(Rule(RopeStyle::kStreaming), {64, 64}, 0);
  EXPECT_EQ(ids.OfQuery(64), 64);
  EXPECT_EQ(ids.OfQuery(40), 40);  // a query that lies in the sink region
}

}  // namespace
}  // namespace longshore
