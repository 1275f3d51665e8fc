#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/policy.h"

namespace longshore {
namespace {

using ::testing::ElementsAre;

TEST(Presets, AreThoseOfTheDesign) {
  EXPECT_THAT(PresetNames(), ElementsAre("standard", "wide", "fast", "flash", "dense", "streaming",
                                         "paper-3k", "paper-3k-fast", "paper-3k-flash", "paper-5k",
                                         "paper-3k-5k", "paper-16k"));
}

TEST(Presets, AreValid) {
  for (const std::string& name : PresetNames()) {
    const auto policy = PresetPolicy(name);
    ASSERT_TRUE(policy.ok()) << name;
    EXPECT_TRUE(ValidatePolicy(*policy).ok()) << ValidatePolicy(*policy);
  }
}

TEST(Presets, UnknownNamesListTheKnownOnes) {
  const absl::Status status = PresetPolicy("paper-4k").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "preset \"paper-4k\" is not one of standard, wide, fast, flash, dense, streaming, "
            "paper-3k, paper-3k-fast, paper-3k-flash, paper-5k, paper-3k-5k, paper-16k");
  EXPECT_EQ(DetailsOf(status)->field, "preset");
}

TEST(Presets, StandardIsWhatTheDesignSays) {
  const AttentionPolicy policy = *PresetPolicy("standard");
  EXPECT_EQ(policy.sink_tokens, 256);
  EXPECT_EQ(policy.ranking, Ranking::kProbability);
  EXPECT_EQ(policy.query_block, 64);
  EXPECT_EQ(policy.query_stride, 4);
  EXPECT_EQ(policy.dense_below_tokens, 8192);
  EXPECT_EQ(policy.extension, Extension::kFromStart);
  EXPECT_EQ(policy.attention_rope.within_trained, RopeStyle::kTruePositions);
  EXPECT_EQ(policy.attention_rope.beyond_trained, RopeStyle::kStreaming);
  EXPECT_TRUE(policy.prefill == policy.decode);
  const LayerPolicy& layers = policy.decode.Of(0);
  EXPECT_EQ(layers.middle, Middle::kStages);
  EXPECT_EQ(layers.window_tokens, 1024);
  ASSERT_EQ(layers.stages.size(), 2U);
  EXPECT_EQ(layers.stages[0].selector, Selector::kBounds);
  EXPECT_EQ(layers.stages[0].chunk_tokens, 64);
  EXPECT_EQ(layers.stages[0].keep_tokens, 8192);
  EXPECT_EQ(layers.stages[0].refresh_steps, 16);
  EXPECT_EQ(layers.stages[1].selector, Selector::kExact);
  EXPECT_EQ(layers.stages[1].chunk_tokens, 8);
  EXPECT_EQ(layers.stages[1].keep_tokens, 2048);
  EXPECT_EQ(layers.stages[1].refresh_steps, 4);
  for (const PruningStage& stage : layers.stages) {
    EXPECT_EQ(stage.rope.within_trained, RopeStyle::kTruePositions);
    EXPECT_EQ(stage.rope.beyond_trained, RopeStyle::kRelative);
  }
}

TEST(Presets, DenseAndStreamingHaveNoStages) {
  for (const auto& [name, middle] :
       {std::pair{"dense", Middle::kDense}, {"streaming", Middle::kNone}}) {
    const AttentionPolicy policy = *PresetPolicy(name);
    EXPECT_EQ(policy.decode.Of(7).middle, middle);
    EXPECT_TRUE(policy.decode.Of(7).stages.empty());
    EXPECT_TRUE(policy.prefill == policy.decode);
    EXPECT_EQ(policy.sink_tokens, 256);
    EXPECT_EQ(policy.decode.Of(7).window_tokens, 1024);
  }
}

}  // namespace
}  // namespace longshore
