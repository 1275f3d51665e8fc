#include "tests/support/oracle_positions.h"

#include <vector>

#include <gtest/gtest.h>

namespace longshore::oracle {
namespace {

using Ids = std::vector<int64_t>;

const Model kModel = {.rope = {.attention_scaling = 3.0, .trained_tokens = 16}};
const Policy kPolicy = {.window_tokens = 7};

Stage Within(RopeStyle style) {
  return {.rope_within = style, .rope_beyond = RopeStyle::kTruePositions};
}

void ExpectPlaces(const PairPlaces& places, const RotaryPlace& query, const RotaryPlace& key) {
  EXPECT_EQ(places.query.id, query.id);
  EXPECT_EQ(places.query.scaling, query.scaling);
  EXPECT_EQ(places.key.id, key.id);
  EXPECT_EQ(places.key.scaling, key.scaling);
}

TEST(OraclePositions, TruePositionsAreTrue) {
  const Pair pair = {.query_position = 100, .key_position = 50};
  ExpectPlaces(PlaceScored(kModel, kPolicy, Within(RopeStyle::kTruePositions), {.pair = pair}),
               {100, 3.0}, {50, 3.0});
  ExpectPlaces(PlaceAttended(kModel, kPolicy, {.pair = pair}), {100, 3.0}, {50, 3.0});
}

TEST(OraclePositions, TheBlockDecidesBetweenTheTwoStyles) {
  const Stage stage = {.rope_within = RopeStyle::kTruePositions, .rope_beyond = RopeStyle::kInfLlm};
  const Policy policy = {.window_tokens = 7,
                         .rope_within = RopeStyle::kTruePositions,
                         .rope_beyond = RopeStyle::kStreaming};
  for (const bool beyond : {false, true}) {
    const Pair pair = {.query_position = 100, .key_position = 50, .beyond = beyond};
    const int64_t scored = PlaceScored(kModel, policy, stage, {.pair = pair}).query.id;
    EXPECT_EQ(scored, beyond ? 7 : 100);
    const AttendedPair attended = {.pair = pair, .query_rank = 20, .key_rank = 10};
    EXPECT_EQ(PlaceAttended(kModel, policy, attended).query.id, beyond ? 20 : 100);
    EXPECT_EQ(PlaceAttended(kModel, policy, attended).key.id, beyond ? 10 : 50);
  }
}

TEST(OraclePositions, RelativeTurnsKeysByTheirBranchOnly) {
  const Stage stage = Within(RopeStyle::kRelative);
  ScoredPair scored = {.pair = {.query_position = 100, .key_position = 50}};
  ExpectPlaces(PlaceScored(kModel, kPolicy, stage, scored), {7, 9.0}, {0, 1.0});
  scored.role = KeyRole::kLeftBranch;
  ExpectPlaces(PlaceScored(kModel, kPolicy, stage, scored), {8, 3.0}, {0, 3.0});
  for (const KeyRole role : {KeyRole::kRightBranch, KeyRole::kFinalToken}) {
    scored.role = role;
    ExpectPlaces(PlaceScored(kModel, kPolicy, stage, scored), {8, 3.0}, {1, 3.0});
  }
}

TEST(OraclePositions, ChunkIndexedCountsCandidates) {
  const Stage stage = Within(RopeStyle::kChunkIndexed);
  ScoredPair scored = {
      .pair = {.query_position = 100, .key_position = 50}, .chunk_ordinal = 3, .num_chunks = 5};
  for (const KeyRole role :
       {KeyRole::kScored, KeyRole::kLeftBranch, KeyRole::kRightBranch, KeyRole::kFinalToken}) {
    scored.role = role;
    ExpectPlaces(PlaceScored(kModel, kPolicy, stage, scored), {12, 3.0}, {3, 3.0});
  }
  scored.pair.query_position = 12;
  EXPECT_EQ(PlaceScored(kModel, kPolicy, stage, scored).query.id, 12);
  scored.pair.query_position = 11;
  EXPECT_EQ(PlaceScored(kModel, kPolicy, stage, scored).query.id, 11);
}

TEST(OraclePositions, InfLlmPutsTheFarAtOneDistance) {
  Pair pair = {.query_position = 100, .key_position = 50};
  ExpectPlaces(PlaceScored(kModel, kPolicy, Within(RopeStyle::kInfLlm), {.pair = pair}), {7, 3.0},
               {0, 3.0});
  Policy policy = kPolicy;
  policy.rope_within = RopeStyle::kInfLlm;
  ExpectPlaces(PlaceAttended(kModel, policy, {.pair = pair}), {100, 3.0}, {93, 3.0});
  ExpectPlaces(PlaceAttended(kModel, policy, {.pair = pair, .key_in_window = true}), {100, 3.0},
               {50, 3.0});
  pair = {.query_position = 5, .key_position = 2};
  EXPECT_EQ(PlaceAttended(kModel, policy, {.pair = pair}).key.id, 0);
}

TEST(OraclePositions, StreamingNumbersByRank) {
  const Policy policy = {.rope_within = RopeStyle::kStreaming};
  const AttendedPair attended = {
      .pair = {.query_position = 100, .key_position = 50}, .query_rank = 20, .key_rank = 10};
  ExpectPlaces(PlaceAttended(kModel, policy, attended), {20, 3.0}, {10, 3.0});
}

Ids DynamicExtendIds(int64_t trained, int64_t query, int64_t block_first, const Ids& keys) {
  Ids ids;
  for (const int64_t key : keys) {
    ids.push_back(DynamicExtendId(
        trained, {.query_position = query, .key_position = key, .block_first = block_first}));
  }
  return ids;
}

TEST(OraclePositions, DynamicExtendSqueezesWhatIsOld) {
  // L = 16, w = 4: keys from 36 on are where they are, the 36 before share 12 ids, of which the
  // last is 35; key i is at 36 + floor((i - 36) / 3).
  EXPECT_EQ(DynamicExtendIds(16, 40, 40, {40, 37, 36, 35, 34, 33, 32, 30, 29}),
            (Ids{40, 37, 36, 35, 35, 35, 34, 34, 33}));
  EXPECT_EQ(DynamicExtendIds(16, 40, 40, {6, 5, 3, 2, 0}),
            (Ids{26, 25, 25, 25, 25}));  // 25 at least
  // Another row of the same block moves only what would be 16 or more away.
  EXPECT_EQ(DynamicExtendIds(16, 42, 40, {42, 36, 33, 12, 9, 8, 0}),
            (Ids{42, 36, 35, 28, 27, 27, 27}));
  EXPECT_EQ(DynamicExtendIds(16, 42, 42, {36, 12}), (Ids{37, 29}));  // 38 + floor(12 (i - 38) / 38)
  // The last quarter stays where it is, even what is further away than L.
  EXPECT_EQ(DynamicExtendIds(16, 60, 40, {44, 36, 35}), (Ids{44, 36, 45}));
  // Within the trained length, and one past it in a block that begins early.
  EXPECT_EQ(DynamicExtendIds(16, 15, 8, {0, 3, 4, 15}), (Ids{0, 3, 4, 15}));
  EXPECT_EQ(DynamicExtendIds(16, 16, 8, {0, 3, 4, 16}), (Ids{1, 1, 4, 16}));
  // w is rounded down; no trained length means no limit.
  EXPECT_EQ(DynamicExtendIds(18, 40, 40, {36, 35, 33, 0}), (Ids{36, 35, 34, 23}));
  EXPECT_EQ(DynamicExtendIds(0, 40, 40, {0, 36, 40}), (Ids{0, 36, 40}));
}

TEST(OraclePositions, SelfExtendGroupsWhatIsNotANeighbor) {
  const SelfExtend self_extend = {.group = 4, .neighbor_tokens = 6};
  const auto id = [&](int64_t key) {
    return SelfExtendId(self_extend, {.query_position = 100, .key_position = key});
  };
  EXPECT_EQ(id(100), 100);
  EXPECT_EQ(id(95), 95);
  EXPECT_EQ(id(94), 94);  // distance 6: 6 + floor(0 / 4)
  EXPECT_EQ(id(91), 94);
  EXPECT_EQ(id(90), 93);
  EXPECT_EQ(id(87), 93);
  EXPECT_EQ(id(86), 92);
  EXPECT_EQ(id(0), 71);  // 100 - (6 + floor(94 / 4))
}

TEST(OraclePositions, StagesAndAttentionExtendByTheirOwnParameters) {
  const Pair pair = {.query_position = 100, .key_position = 0, .block_first = 96};
  Policy policy = {.rope_within = RopeStyle::kSelfExtend,
                   .self_extend = {.group = 10, .neighbor_tokens = 50}};
  Stage stage = Within(RopeStyle::kSelfExtend);
  stage.self_extend = {.group = 4, .neighbor_tokens = 6};
  ExpectPlaces(PlaceScored(kModel, policy, stage, {.pair = pair}), {100, 3.0}, {71, 3.0});
  ExpectPlaces(PlaceAttended(kModel, policy, {.pair = pair}), {100, 3.0}, {45, 3.0});
  stage.rope_within = policy.rope_within = RopeStyle::kDynamicExtend;
  ExpectPlaces(PlaceScored(kModel, policy, stage, {.pair = pair}), {100, 3.0}, {85, 3.0});
  ExpectPlaces(PlaceAttended(kModel, policy, {.pair = pair}), {100, 3.0}, {85, 3.0});
}

}  // namespace
}  // namespace longshore::oracle
