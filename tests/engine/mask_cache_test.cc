#include "engine/mask_cache.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "engine/make_backend.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

class MaskCacheTest : public ::testing::Test {
 protected:
  MaskCacheTest()
      : backend_(*MakeBackend({.name = "cpu", .threads = 1})),
        policy_(SmallStandard().decode.rest),  // keeps 4 and 8 chunks
        cache_(*MaskCache::Create(policy_.stages, 1000, backend_.get())) {}

  // A call that leaves `first` in every place and was refreshed at `position`.
  void Call(int32_t first, int64_t position) {
    ASSERT_TRUE(cache_.BeginCall(backend_.get()).ok());
    Run(first, position);
  }

  void Run(int32_t first, int64_t position) {
    MaskState state;
    state.valid = true;
    state.middle_end = position;
    state.refreshed_at = {position, position};
    state.selected_chunks = {4, 8};
    cache_.Commit(state);
    std::fill_n(cache_.Selected(0), 4, first);
    std::fill_n(cache_.Selected(1), 8, first + 1);
  }

  void Expect(int32_t first, int64_t position) {
    EXPECT_EQ(cache_.state().middle_end, position);
    EXPECT_EQ(std::count(cache_.Selected(0), cache_.Selected(0) + 4, first), 4);
    EXPECT_EQ(std::count(cache_.Selected(1), cache_.Selected(1) + 8, first + 1), 8);
  }

  std::unique_ptr<Backend> backend_;
  LayerPolicy policy_;
  MaskCache cache_;
};

TEST_F(MaskCacheTest, IsInvalidAtFirst) {
  EXPECT_FALSE(cache_.state().valid);
  EXPECT_TRUE(cache_.state() == MaskState{});
}

TEST_F(MaskCacheTest, StagesHaveRoomOfTheirOwn) {
  EXPECT_EQ(cache_.Selected(1) - cache_.Selected(0), 4);
  Call(10, 100);
  Expect(10, 100);
}

TEST_F(MaskCacheTest, HasRoomForNoMoreChunksThanTheSessionMayHold) {
  EXPECT_EQ(MaskCache::BytesFor(policy_.stages, 1000), 2 * 4 * (4 + 8));
  EXPECT_EQ(MaskCache::BytesFor(policy_.stages, 130), 2 * 4 * (2 + 8));
  EXPECT_EQ(MaskCache::BytesFor(policy_.stages, 17), 2 * 4 * 2);
  EXPECT_EQ(MaskCache::BytesFor({}, 1000), 0);
  const MaskCache small = *MaskCache::Create(policy_.stages, 130, backend_.get());
  EXPECT_EQ(small.Selected(1) - small.Selected(0), 2);
}

TEST_F(MaskCacheTest, RewindBringsBackWhatTheLastCallSaw) {
  Call(10, 100);
  Call(20, 200);
  Expect(20, 200);
  ASSERT_TRUE(cache_.RewindCall(backend_.get()).ok());
  Expect(10, 100);
  Run(20, 200);  // the replay does what the call did
  Expect(20, 200);
  ASSERT_TRUE(cache_.RewindCall(backend_.get()).ok());
  Expect(10, 100);
  Run(20, 200);
  Call(30, 300);
  ASSERT_TRUE(cache_.RewindCall(backend_.get()).ok());
  Expect(20, 200);
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
  cache_.Commit(state);
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
  ASSERT_TRUE(cache_.RewindCall(backend_.get()).ok());
  EXPECT_FALSE(cache_.state().valid);
}

TEST_F(MaskCacheTest, PoliciesWithoutStagesNeedNothing) {
  MaskCache cache = *MaskCache::Create({}, 1000, backend_.get());
  EXPECT_TRUE(cache.BeginCall(backend_.get()).ok());
  EXPECT_TRUE(cache.RewindCall(backend_.get()).ok());
  cache.TruncateTo(0);
  EXPECT_FALSE(cache.state().valid);
}

}  // namespace
}  // namespace longshore
