#include "engine/policy.h"

#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

// A valid policy, spoilt in one place, and the whole message that says so.
struct Spoilt {
  std::function<void(AttentionPolicy*)> spoil;
  std::string field;
  std::string rest;  // of the message, after the field
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

void Expect(const std::vector<Spoilt>& table) {
  for (const Spoilt& test : table) {
    AttentionPolicy policy = SmallStandard();
    test.spoil(&policy);
    const absl::Status status = ValidatePolicy(policy);
    EXPECT_EQ(status.code(), test.code) << status;
    EXPECT_EQ(status.message(), test.field + " " + test.rest);
    const auto details = DetailsOf(status);
    ASSERT_TRUE(details.has_value()) << test.field;
    EXPECT_EQ(details->field, test.field);
    EXPECT_EQ(details->reason,
              test.code == absl::StatusCode::kUnimplemented ? "NOT_IMPLEMENTED" : "INVALID_FIELD");
  }
}

PruningStage* Stage(AttentionPolicy* policy, size_t stage) {
  return &policy->decode.rest.stages[stage];
}

TEST(Policy, SmallPoliciesAreValid) {
  for (const AttentionPolicy& policy :
       {SmallStandard(), OneStage(1, 1, 1), OneStage(64, 64, 7), SmallDense(), SmallStreaming()}) {
    EXPECT_TRUE(ValidatePolicy(policy).ok()) << ValidatePolicy(policy);
  }
}

TEST(Policy, LimitsAreNamedWithBothNumbers) {
  Expect({
      {[](AttentionPolicy* p) { p->sink_tokens = -1; }, "sink_tokens", "-1 is not in 0..16777216"},
      {[](AttentionPolicy* p) { p->sink_tokens = 16777217; }, "sink_tokens",
       "16777217 is not in 0..16777216"},
      {[](AttentionPolicy* p) { p->query_block = 48; }, "query_block", "48 is not 16, 32 or 64"},
      {[](AttentionPolicy* p) { p->query_block = 0; }, "query_block", "0 is not 16, 32 or 64"},
      {[](AttentionPolicy* p) { p->prefill.rest.stages[1].query_block = -1; },
       "prefill.rest.stages[1].query_block", "-1 is not in 0..1024"},
      {[](AttentionPolicy* p) { p->decode.rest.stages[0].query_block = 1088; },
       "decode.rest.stages[0].query_block", "1088 is not in 0..1024"},
      {[](AttentionPolicy* p) { p->prefill.rest.stages[0].query_block = 96; },
       "prefill.rest.stages[0].query_block", "96 is not a multiple of the policy's 64"},
      {[](AttentionPolicy* p) { p->prefill.rest.stages[1].query_block = 128; },
       "prefill.rest.stages[1].query_block", "128 does not divide the previous stage's 64"},
      {[](AttentionPolicy* p) {
         p->prefill.rest.attention_rope = RopeChoice{.beyond_trained = RopeStyle::kRelative};
       },
       "prefill.rest.attention_rope.beyond_trained", "relative is for pruning only"},
      {[](AttentionPolicy* p) { p->query_stride = 0; }, "query_stride",
       "0 is not in 1..query_block 64"},
      {[](AttentionPolicy* p) { p->query_stride = 65; }, "query_stride",
       "65 is not in 1..query_block 64"},
      {[](AttentionPolicy* p) { p->dense_below_tokens = -5; }, "dense_below_tokens",
       "-5 is less than 0"},
      {[](AttentionPolicy* p) { p->prefill.first_layers = -2; }, "prefill.first_layers",
       "-2 is less than 0"},
      {[](AttentionPolicy* p) { p->decode.rest.window_tokens = 0; }, "decode.rest.window_tokens",
       "0 is not in 1..16777216"},
      {[](AttentionPolicy* p) { p->prefill.rest.window_tokens = 16777217; },
       "prefill.rest.window_tokens", "16777217 is not in 1..16777216"},
  });
}

TEST(Policy, StagesAreNamedWithBothNumbers) {
  Expect({
      {[](AttentionPolicy* p) { p->decode.rest.stages.clear(); }, "decode.rest.stages",
       "has 0 entries, not 1..4"},
      {[](AttentionPolicy* p) { p->decode.rest.stages.resize(5, *Stage(p, 1)); },
       "decode.rest.stages", "has 5 entries, not 1..4"},
      {[](AttentionPolicy* p) { p->decode.rest.middle = Middle::kDense; }, "decode.rest.stages",
       "has 2 entries, middle says that there are 0"},
      {[](AttentionPolicy* p) { p->prefill.rest.middle = Middle::kNone; }, "prefill.rest.stages",
       "has 2 entries, middle says that there are 0"},
      {[](AttentionPolicy* p) { Stage(p, 0)->chunk_tokens = 32; },
       "decode.rest.stages[0].chunk_tokens", "32 is not 64, the only size of bounds"},
      {[](AttentionPolicy* p) { Stage(p, 1)->chunk_tokens = 24; },
       "decode.rest.stages[1].chunk_tokens", "24 does not divide a page of 64 tokens"},
      {[](AttentionPolicy* p) { Stage(p, 1)->chunk_tokens = 0; },
       "decode.rest.stages[1].chunk_tokens", "0 is not in 1..16777216"},
      {[](AttentionPolicy* p) { Stage(p, 1)->chunk_tokens = 128; },
       "decode.rest.stages[1].chunk_tokens", "128 does not divide a page of 64 tokens"},
      {[](AttentionPolicy* p) { Stage(p, 1)->keep_tokens = 60; },
       "decode.rest.stages[1].keep_tokens", "60 is not a multiple of chunk_tokens 8"},
      {[](AttentionPolicy* p) { Stage(p, 1)->keep_tokens = 0; },
       "decode.rest.stages[1].keep_tokens", "0 is less than chunk_tokens 8"},
      {[](AttentionPolicy* p) { Stage(p, 0)->keep_tokens = 16777280; },
       "decode.rest.stages[0].keep_tokens", "16777280 is more than 16777216"},
      {[](AttentionPolicy* p) { Stage(p, 1)->keep_tokens = 264; },
       "decode.rest.stages[1].keep_tokens", "264 is more than the previous stage's 256"},
      {[](AttentionPolicy* p) { Stage(p, 0)->refresh_steps = 0; },
       "decode.rest.stages[0].refresh_steps", "0 is less than 1"},
      {[](AttentionPolicy* p) { Stage(p, 1)->refresh_steps = 6; },
       "decode.rest.stages[1].refresh_steps", "6 does not divide the previous stage's 16"},
      {[](AttentionPolicy* p) { p->sink_tokens = 100; }, "prefill.rest.stages[0].chunk_tokens",
       "64 does not divide sink_tokens 100"},
  });
}

TEST(Policy, ChunksMustDivideTheStageBefore) {
  AttentionPolicy policy = OneStage(8, 64, 4);
  LayerPolicy layers = policy.decode.rest;
  layers.stages.push_back(layers.stages[0]);
  layers.stages[1].chunk_tokens = 16;
  SetLayers(layers, &policy);
  EXPECT_EQ(ValidatePolicy(policy).message(),
            "prefill.rest.stages[1].chunk_tokens 16 does not divide the previous stage's 8");
}

TEST(Policy, EarlyLayersAreCheckedWhereThereAreAny) {
  AttentionPolicy policy = SmallStandard();
  policy.decode.early.window_tokens = -1;
  EXPECT_TRUE(ValidatePolicy(policy).ok());
  policy.decode.first_layers = 1;
  EXPECT_EQ(ValidatePolicy(policy).message(),
            "decode.early.window_tokens -1 is not in 1..16777216");
}

TEST(Policy, StylesMustFitTheirUse) {
  Expect({
      {[](AttentionPolicy* p) { p->attention_rope.within_trained = RopeStyle::kRelative; },
       "attention_rope.within_trained", "relative is for pruning only"},
      {[](AttentionPolicy* p) { p->attention_rope.beyond_trained = RopeStyle::kChunkIndexed; },
       "attention_rope.beyond_trained", "chunk_indexed is for pruning only"},
      {[](AttentionPolicy* p) { Stage(p, 1)->rope.within_trained = RopeStyle::kStreaming; },
       "decode.rest.stages[1].rope.within_trained", "streaming is for attention only"},
  });
}

TEST(Policy, SelectorsHaveRulesOfTheirOwn) {
  const auto probes = [](int32_t count) {
    return [count](AttentionPolicy* p) {
      Stage(p, 1)->selector = Selector::kProbes;
      Stage(p, 1)->probes = count;
    };
  };
  Expect({
      {probes(0), "decode.rest.stages[1].probes.probes", "0 is not a power of two in 1..8"},
      {probes(3), "decode.rest.stages[1].probes.probes", "3 is not a power of two in 1..8"},
      {probes(16), "decode.rest.stages[1].probes.probes", "16 is not a power of two in 1..8"},
      {[](AttentionPolicy* p) { Stage(p, 0)->rope.within_trained = RopeStyle::kChunkIndexed; },
       "decode.rest.stages[0].rope.within_trained",
       "chunk_indexed is not true_positions, relative or infllm, which bounds needs"},
      {[](AttentionPolicy* p) { Stage(p, 0)->rope.beyond_trained = RopeStyle::kDynamicExtend; },
       "decode.rest.stages[0].rope.beyond_trained",
       "dynamic_extend is not true_positions, relative or infllm, which bounds needs"},
  });
  AttentionPolicy policy = SmallStandard();
  probes(4)(&policy);
  EXPECT_TRUE(ValidatePolicy(policy).ok());
  Stage(&policy, 1)->selector = Selector::kDescent;
  EXPECT_TRUE(ValidatePolicy(policy).ok());
}

TEST(Policy, ParametersOfStylesAndRankingsHaveLimits) {
  const auto self_extend = [](int32_t group, int64_t neighbor_tokens) {
    return [=](AttentionPolicy* p) {
      p->attention_rope = {.within_trained = RopeStyle::kTruePositions,
                           .beyond_trained = RopeStyle::kSelfExtend,
                           .self_extend_group = group,
                           .self_extend_neighbor_tokens = neighbor_tokens};
    };
  };
  const auto power = [](float power) {
    return [=](AttentionPolicy* p) {
      p->ranking = Ranking::kProbabilityPower;
      p->probability_power = power;
    };
  };
  Expect({
      {self_extend(0, 100), "attention_rope.self_extend_group", "0 is less than 1"},
      {self_extend(8, 0), "attention_rope.self_extend_neighbor_tokens", "0 is not in 1..16777216"},
      {power(0.5F), "probability_power", "0.5 is not in 1..1024"},
      {power(std::nanf("")), "probability_power", "nan is not in 1..1024"},
  });
  AttentionPolicy policy = SmallStandard();
  self_extend(8, 100)(&policy);
  power(4.0F)(&policy);
  EXPECT_TRUE(ValidatePolicy(policy).ok()) << ValidatePolicy(policy);
}

}  // namespace
}  // namespace longshore
