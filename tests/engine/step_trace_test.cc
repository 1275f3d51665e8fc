// What a call says of itself, for metrics.

#include <numeric>

#include <gtest/gtest.h>

#include "engine/step.h"
#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

constexpr int64_t kMaxTokens = 800;

int64_t Uses(const StepTrace& trace, size_t stage, StageUse use) {
  return trace.stage_uses[stage][static_cast<size_t>(use)];
}

TEST(MaskAges, BucketsArePowersOfTwo) {
  MaskAges ages;
  for (const int64_t age : {0, 1, 2, 3, 4, 7, 8, 127, 128, 1'000'000}) {
    ages.Add(age);
  }
  EXPECT_EQ(ages.blocks, (std::array<int64_t, MaskAges::kBuckets>{1, 1, 2, 2, 1, 0, 0, 1, 2}));
  EXPECT_EQ(ages.positions, 1'000'280);
}

// 500 tokens kept unattended, then one decode step after the other. Ticks of layer 0: multiples of
// 16 and of 4.
TEST(StepTrace, SaysWhyStagesRanAndHowOldTheOthersAre) {
  const auto engine = MakeTestEngine();
  const ModelShape model = TestModel(4, 2);
  EngineSession session(engine.get(), TestSpec(model, SmallStandard(), kMaxTokens));
  Random random;
  const TokenRows rows = RandomTokens(model, kMaxTokens, ValueKind::kGaussian, &random);
  session.Append(Slice(model, rows, 0, 509));
  EXPECT_EQ(session.trace().items, 1);
  EXPECT_EQ(session.trace().rows, 509);

  session.Decode(Slice(model, rows, 509, 510));
  EXPECT_EQ(Uses(session.trace(), 0, StageUse::kFirst), 1);
  EXPECT_EQ(Uses(session.trace(), 1, StageUse::kFirst), 1);
  session.Decode(Slice(model, rows, 510, 511));
  EXPECT_EQ(Uses(session.trace(), 0, StageUse::kCached), 1);
  EXPECT_EQ(session.trace().stage_ages[0].blocks[1], 1) << "one position old";
  EXPECT_EQ(session.trace().stage_ages[1].positions, 1);
  session.Decode(Slice(model, rows, 511, 512));
  session.Decode(Slice(model, rows, 512, 513));
  EXPECT_EQ(Uses(session.trace(), 0, StageUse::kClock), 1);
  EXPECT_EQ(Uses(session.trace(), 1, StageUse::kPropagated), 1);
  ASSERT_TRUE(engine->Truncate(session.id(), 512).ok());
  session.Decode(Slice(model, rows, 512, 513));
  EXPECT_EQ(Uses(session.trace(), 0, StageUse::kInvalidated), 1);
  session.Prefill(Slice(model, rows, 513, 700));  // 513..575, 576..639, 640..699
  EXPECT_EQ(Uses(session.trace(), 0, StageUse::kPrefill), 3);
  EXPECT_EQ(session.trace().stage_refreshed[0], 3);
}

TEST(StepTrace, UsesAddUpToWhatRanAndWhatDidNot) {
  const auto engine = MakeTestEngine();
  const ModelShape model = TestModel(4, 2);
  EngineSession session(engine.get(), TestSpec(model, SmallStandard(), kMaxTokens));
  Random random;
  const TokenRows rows = RandomTokens(model, kMaxTokens, ValueKind::kGaussian, &random);
  session.Append(Slice(model, rows, 0, 500));
  for (int64_t begin = 500; begin < 700; begin += 40) {
    session.Decode(Slice(model, rows, begin, begin + 40));
    const StepTrace& trace = session.trace();
    for (size_t stage = 0; stage < 2; ++stage) {
      const auto& uses = trace.stage_uses[stage];
      const auto& ages = trace.stage_ages[stage].blocks;
      EXPECT_EQ(std::accumulate(uses.begin(), uses.end(), int64_t{0}), trace.staged_blocks);
      EXPECT_EQ(Uses(trace, stage, StageUse::kCached), trace.stage_cached[stage]);
      EXPECT_EQ(std::accumulate(ages.begin(), ages.end(), int64_t{0}), trace.stage_cached[stage]);
      EXPECT_EQ(trace.stage_refreshed[stage] + trace.stage_cached[stage], trace.staged_blocks);
    }
  }
}

}  // namespace
}  // namespace longshore
