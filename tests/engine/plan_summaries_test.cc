#include <gtest/gtest.h>

#include "engine/plan.h"
#include "tests/engine/plan_test.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

TEST(PlanSummaries, CoverWhatEachStyleReads) {
  AttentionPolicy policy = SmallStandard();  // true positions within, relative beyond
  const auto plan = [&policy](int64_t trained, int64_t max_tokens) {
    ModelShape model = TestModel();
    model.rope_tables[0].trained_tokens = trained;
    return PlanSummaries(policy, model, 0, max_tokens);
  };
  EXPECT_FALSE(plan(1000, 1000).unrotated);
  EXPECT_EQ(plan(1000, 1000).rotated_below, 1000);
  EXPECT_EQ(plan(1000, 600).rotated_below, 600);
  EXPECT_TRUE(plan(1000, 1001).unrotated);
  EXPECT_EQ(plan(1000, 1001).rotated_below, 1000);
  EXPECT_EQ(plan(kNoLimit, 5000).rotated_below, 5000);

  policy.extension = Extension::kFromStart;  // one regime: one kind
  EXPECT_TRUE(plan(1000, 5000).unrotated);
  EXPECT_EQ(plan(1000, 5000).rotated_below, 0);
  EXPECT_FALSE(plan(1000, 1000).unrotated);
  EXPECT_EQ(plan(1000, 1000).rotated_below, 1000);
  policy.extension = Extension::kAtTrainedLength;

  for (PhasePolicy* phase : {&policy.prefill, &policy.decode}) {
    phase->rest.stages[0].rope = {.within_trained = RopeStyle::kRelative,
                                  .beyond_trained = RopeStyle::kTruePositions};
  }
  EXPECT_TRUE(plan(1000, 600).unrotated);
  EXPECT_EQ(plan(1000, 600).rotated_below, 0);
  EXPECT_EQ(plan(1000, 5000).rotated_below, 5000);

  policy = OneStage(8, 64, 4);  // no bounds
  EXPECT_FALSE(plan(1000, 5000).unrotated);
  EXPECT_EQ(plan(1000, 5000).rotated_below, 0);
  policy = SmallDense();
  EXPECT_FALSE(plan(1000, 5000).unrotated);
  EXPECT_EQ(plan(1000, 5000).rotated_below, 0);
  policy.prefill = SmallStandard().prefill;  // one phase is enough
  EXPECT_TRUE(plan(1000, 5000).unrotated);

  ModelShape sliding = TestModel();
  sliding.layer_sliding_window = {512};
  EXPECT_FALSE(PlanSummaries(SmallStandard(), sliding, 0, 5000).unrotated);
  EXPECT_EQ(PlanSummaries(SmallStandard(), sliding, 0, 5000).rotated_below, 0);
}

}  // namespace
}  // namespace longshore
