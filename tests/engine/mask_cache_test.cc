#include "engine/mask_cache.h"

#include <gtest/gtest.h>

#include "tests/support/device_memory.h"
#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

class MaskCacheTest : public ::testing::Test {
 protected:
  MaskCacheTest()
      : backend_(MakeTestBackend()),
        policy_(SmallStandard().decode.rest),  // keeps 4 and 8 chunks
        cache_(*MaskCache::Create(policy_.stages, 1000, backend_.get())) {}

  // What a call leaves that ran every stage at `position`, and found `before`.
  static MaskState After(const MaskState& before, int64_t position) {
    MaskState state;
    state.valid = true;
    state.middle_end = position;
    state.refreshed_at = {position, position};
    state.selected_chunks = {4, 8};
    state.slots = {1 - before.slots[0], 1 - before.slots[1]};
    return state;
  }

  // A call at `position` that leaves `first` in every place.
  void Call(int32_t first, int64_t position) {
    cache_.BeginCall(After(cache_.state(), position));
    Fill(0, 4, first);
    Fill(1, 8, first + 1);
  }
  void Replay(int32_t first, int64_t position) {
    cache_.ReplayCall(After(cache_.previous(), position));
    Fill(0, 4, first);
    Fill(1, 8, first + 1);
  }
  // A call that ran the second stage alone.
  void CallOfTheFinerStage(int32_t second) {
    MaskState state = cache_.state();
    state.slots[1] = 1 - state.slots[1];
    cache_.BeginCall(state);
    Fill(1, 8, second);
  }

  void Fill(size_t stage, size_t chunks, int32_t value) {
    WriteDevice<int32_t>(backend_.get(), std::vector<int32_t>(chunks, value),
                         cache_.Selected(stage, cache_.state().slots[stage]));
  }

  void Expect(const MaskState& state, int32_t first, int32_t second, int64_t position) {
    EXPECT_EQ(state.middle_end, position);
    EXPECT_EQ(ReadDevice<int32_t>(backend_.get(), cache_.Selected(0, state.slots[0]), 4),
              std::vector<int32_t>(4, first));
    EXPECT_EQ(ReadDevice<int32_t>(backend_.get(), cache_.Selected(1, state.slots[1]), 8),
              std::vector<int32_t>(8, second));
  }

  std::unique_ptr<Backend> backend_;
  LayerPolicy policy_;
  MaskCache cache_;
};

TEST_F(MaskCacheTest, IsInvalidAtFirst) {
  EXPECT_FALSE(cache_.state().valid);
  EXPECT_TRUE(cache_.state() == MaskState{});
}

TEST_F(MaskCacheTest, StagesHaveRoomOfTheirOwnTwice) {
  EXPECT_EQ(cache_.Selected(1, 0) - cache_.Selected(0, 0), 4);
  EXPECT_EQ(cache_.Selected(0, 1) - cache_.Selected(0, 0), 4 + 8);
  EXPECT_EQ(cache_.Selected(1, 1) - cache_.Selected(0, 1), 4);
  Call(10, 100);
  Expect(cache_.state(), 10, 11, 100);
}

TEST_F(MaskCacheTest, HasRoomForNoMoreChunksThanTheSessionMayHold) {
  EXPECT_EQ(MaskCache::BytesFor(policy_.stages, 1000), 2 * 4 * (4 + 8));
  EXPECT_EQ(MaskCache::BytesFor(policy_.stages, 130), 2 * 4 * (2 + 8));
  EXPECT_EQ(MaskCache::BytesFor(policy_.stages, 17), 2 * 4 * 2);
  EXPECT_EQ(MaskCache::BytesFor({}, 1000), 0);
  const MaskCache small = *MaskCache::Create(policy_.stages, 130, backend_.get());
  EXPECT_EQ(small.Selected(1, 0) - small.Selected(0, 0), 2);
}

TEST_F(MaskCacheTest, WhatTheLastCallFoundIsThereForItsReplays) {
  Call(10, 100);
  Call(20, 200);
  for (int32_t replay = 0; replay < 2; ++replay) {
    Expect(cache_.state(), 20, 21, 200);
    Expect(cache_.previous(), 10, 11, 100);
    Replay(20, 200);
  }
  Call(30, 300);
  Expect(cache_.state(), 30, 31, 300);
  Expect(cache_.previous(), 20, 21, 200);
}

TEST_F(MaskCacheTest, AStageThatIsNotRunStaysWhereItIs) {
  Call(10, 100);
  CallOfTheFinerStage(40);
  Expect(cache_.state(), 10, 40, 100);
  Expect(cache_.previous(), 10, 11, 100);
  CallOfTheFinerStage(50);
  Expect(cache_.state(), 10, 50, 100);
  Expect(cache_.previous(), 10, 40, 100);
  cache_.BeginCall(cache_.state());  // nothing was stale
  Expect(cache_.state(), 10, 50, 100);
  EXPECT_TRUE(cache_.state() == cache_.previous());
}

TEST_F(MaskCacheTest, UndoBringsBackWhatTheCallFound) {
  Call(10, 100);
  Call(20, 200);
  Call(30, 300);
  cache_.UndoCall();
  Expect(cache_.state(), 20, 21, 200);
  Call(40, 400);
  Expect(cache_.previous(), 20, 21, 200);
}

// A replay that did not end is tried again.
TEST_F(MaskCacheTest, InvalidateLeavesWhatAReplayNeeds) {
  Call(10, 100);
  Call(20, 200);
  Replay(66, 200);
  cache_.Invalidate();
  EXPECT_FALSE(cache_.state().valid);
  Expect(cache_.previous(), 10, 11, 100);
  Replay(20, 200);
  EXPECT_TRUE(cache_.state().valid);
  Expect(cache_.state(), 20, 21, 200);
}

TEST_F(MaskCacheTest, TruncateInvalidatesMasksThatReachPastTheCut) {
  Call(10, 100);
  cache_.TruncateTo(101);
  EXPECT_TRUE(cache_.state().valid);
  cache_.TruncateTo(100);
  EXPECT_FALSE(cache_.state().valid);

  // One stage is enough.
  Call(10, 100);
  MaskState state = cache_.state();
  state.refreshed_at[1] = 150;
  cache_.BeginCall(state);
  cache_.TruncateTo(151);
  EXPECT_TRUE(cache_.state().valid);
  cache_.TruncateTo(120);
  EXPECT_FALSE(cache_.state().valid);
}

TEST_F(MaskCacheTest, TruncateHoldsForBothGenerations) {
  Call(10, 100);
  Call(20, 50);
  cache_.TruncateTo(70);
  EXPECT_TRUE(cache_.state().valid);
  EXPECT_FALSE(cache_.previous().valid);
}

TEST_F(MaskCacheTest, PoliciesWithoutStagesNeedNothing) {
  MaskCache cache = *MaskCache::Create({}, 1000, backend_.get());
  cache.BeginCall(MaskState{});
  cache.UndoCall();
  cache.TruncateTo(0);
  EXPECT_FALSE(cache.state().valid);
}

}  // namespace
}  // namespace longshore
