#include "service/convert_policy.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/core/error.h"

namespace longshore {
namespace {

std::string FieldOf(const absl::Status& status) {
  const std::optional<ErrorDetails> details = DetailsOf(status);
  return details.has_value() ? details->field : "no details";
}

v1::PolicySpec Preset(const std::string& name) {
  v1::PolicySpec spec;
  spec.set_preset(name);
  return spec;
}

v1::PolicySpec Full(const std::string& preset) {
  v1::PolicySpec spec;
  *spec.mutable_policy() = PolicyToWire(*PresetPolicy(preset));
  return spec;
}

TEST(ConvertPolicy, EveryPresetComesBackUnchanged) {
  for (const std::string& name : PresetNames()) {
    SCOPED_TRACE(name);
    const absl::StatusOr<AttentionPolicy> by_name = PolicyFromWire(Preset(name), "policy");
    const absl::StatusOr<AttentionPolicy> in_full = PolicyFromWire(Full(name), "policy");
    ASSERT_TRUE(by_name.ok()) << by_name.status();
    ASSERT_TRUE(in_full.ok()) << in_full.status();
    EXPECT_EQ(*by_name, *PresetPolicy(name));
    EXPECT_EQ(*in_full, *by_name);
  }
}

TEST(ConvertPolicy, APresetsDenseBelowTokensCanBeReplaced) {
  v1::PolicySpec spec = Preset("standard");
  spec.set_dense_below_tokens(0);
  EXPECT_EQ(PolicyFromWire(spec, "policy")->dense_below_tokens, 0);
  spec = Full("standard");
  spec.set_dense_below_tokens(0);
  EXPECT_EQ(FieldOf(PolicyFromWire(spec, "policy").status()), "policy.dense_below_tokens");
}

TEST(ConvertPolicy, AnUnknownPresetListsTheKnownOnes) {
  const absl::Status status = PolicyFromWire(Preset("fst"), "policy").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(status), "policy.preset");
  EXPECT_NE(status.ToString().find("standard, wide, fast, flash, dense, streaming, paper-3k"),
            std::string::npos)
      << status;
}

TEST(ConvertPolicy, NeitherPresetNorPolicyIsRefused) {
  EXPECT_EQ(FieldOf(PolicyFromWire(v1::PolicySpec(), "policy").status()), "policy.preset");
}

// The tables of convert_policy.cc have a row for each; other fields may refuse it.
TEST(ConvertPolicy, EveryWireValueIsKnown) {
  struct Field {
    const google::protobuf::EnumDescriptor* values;
    std::function<void(v1::AttentionPolicy*, int)> set;
  };
  const auto stage = [](v1::AttentionPolicy* policy) {
    return policy->mutable_decode()->mutable_rest()->mutable_stages(1);
  };
  const std::vector<Field> fields = {
      {v1::Selector_descriptor(),
       [&](auto* policy, int value) {
         stage(policy)->set_selector(static_cast<v1::Selector>(value));
       }},
      {v1::Ranking_descriptor(),
       [](auto* policy, int value) { policy->set_ranking(static_cast<v1::Ranking>(value)); }},
      {v1::RopeStyle_descriptor(),
       [&](auto* policy, int value) {
         stage(policy)->mutable_rope()->set_beyond_trained(static_cast<v1::RopeStyle>(value));
       }},
  };
  for (const Field& field : fields) {
    for (int index = 1; index < field.values->value_count(); ++index) {
      v1::PolicySpec spec = Full("standard");
      field.set(spec.mutable_policy(), field.values->value(index)->number());
      const absl::Status status = PolicyFromWire(spec, "policy").status();
      EXPECT_EQ(status.ToString().find("is not one of its values"), std::string::npos)
          << field.values->value(index)->name() << ": " << status;
    }
  }
}

TEST(ConvertPolicy, EveryUnsetOrWrongFieldIsNamed) {
  struct Case {
    std::string field;
    std::function<void(v1::AttentionPolicy*)> spoil;
  };
  const auto stage = [](v1::AttentionPolicy* policy) {
    return policy->mutable_decode()->mutable_rest()->mutable_stages(1);
  };
  const std::vector<Case> cases = {
      {"ranking", [](auto* policy) { policy->clear_ranking(); }},
      {"ranking", [](auto* policy) { policy->set_ranking(static_cast<v1::Ranking>(99)); }},
      {"attention_rope.within_trained", [](auto* policy) { policy->clear_attention_rope(); }},
      {"attention_rope.beyond_trained",
       [](auto* policy) { policy->mutable_attention_rope()->clear_beyond_trained(); }},
      {"extension", [](auto* policy) { policy->clear_extension(); }},
      {"decode.rest.attention_rope.within_trained",
       [](auto* policy) { policy->mutable_decode()->mutable_rest()->mutable_attention_rope(); }},
      {"prefill.rest.middle", [](auto* policy) { policy->clear_prefill(); }},
      {"decode.rest.middle",
       [](auto* policy) {
         policy->mutable_decode()->mutable_rest()->set_middle(static_cast<v1::Middle>(17));
       }},
      {"decode.rest.stages[1].selector", [&](auto* policy) { stage(policy)->clear_selector(); }},
      {"decode.rest.stages[1].rope.within_trained",
       [&](auto* policy) { stage(policy)->clear_rope(); }},
      {"decode.rest.stages[1].descent", [&](auto* policy) { stage(policy)->mutable_descent(); }},
      {"decode.rest.stages[1].probes", [&](auto* policy) { stage(policy)->mutable_probes(); }},
      {"decode.rest.stages[1].keep_tokens",
       [&](auto* policy) { stage(policy)->set_keep_tokens(2047); }},
      {"decode.early", [](auto* policy) { policy->mutable_decode()->mutable_early(); }},
      {"decode.early.middle", [](auto* policy) { policy->mutable_decode()->set_first_layers(1); }},
      {"query_block", [](auto* policy) { policy->set_query_block(0); }},
  };
  for (const Case& spoiled : cases) {
    v1::PolicySpec spec = Full("standard");
    spoiled.spoil(spec.mutable_policy());
    const absl::Status status = PolicyFromWire(spec, "policy").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(FieldOf(status), "policy.policy." + spoiled.field) << status;
  }
}

TEST(ConvertPolicy, WhatDoesNotBelongTogetherIsSaid) {
  struct Case {
    std::function<void(v1::PhasePolicy*)> spoil;
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](auto* decode) { decode->mutable_rest()->mutable_stages(1)->mutable_descent(); },
       "rest.stages[1].descent is set, and selector is SELECTOR_EXACT, not SELECTOR_DESCENT"},
      {[](auto* decode) { decode->mutable_rest()->mutable_stages(0)->mutable_probes(); },
       "rest.stages[0].probes is set, and selector is SELECTOR_BOUNDS, not SELECTOR_PROBES"},
      {[](auto* decode) { decode->mutable_early(); }, "early is set, and first_layers is 0"},
      {[](auto* decode) {
         decode->mutable_early();
         decode->set_first_layers(-2);
       },
       "early is set, and first_layers is -2"},
  };
  for (const Case& spoiled : cases) {
    v1::PolicySpec spec = Full("standard");
    spoiled.spoil(spec.mutable_policy()->mutable_decode());
    EXPECT_EQ(PolicyFromWire(spec, "policy").status().message(),
              "policy.policy.decode." + spoiled.message);
  }
}

TEST(ConvertPolicy, LayersMayHaveTheirOwnAttentionRope) {
  AttentionPolicy policy = *PresetPolicy("standard");
  policy.decode.rest.attention_rope = RopeChoice{.within_trained = RopeStyle::kTruePositions,
                                                 .beyond_trained = RopeStyle::kSelfExtend,
                                                 .self_extend_group = 4,
                                                 .self_extend_neighbor_tokens = 512};
  v1::PolicySpec spec;
  *spec.mutable_policy() = PolicyToWire(policy);
  const auto back = PolicyFromWire(spec, "policy");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, policy);
}

TEST(ConvertPolicy, SelectorsBringTheirParameters) {
  v1::PolicySpec spec = Full("standard");
  v1::Stage* stage = spec.mutable_policy()->mutable_decode()->mutable_rest()->mutable_stages(1);
  stage->set_selector(v1::SELECTOR_DESCENT);
  stage->mutable_descent()->set_representative(v1::DescentParams::REPRESENTATIVE_MIDDLE);
  stage->mutable_descent()->set_score(v1::DescentParams::SCORE_RUNNING_MAXIMUM);
  auto policy = PolicyFromWire(spec, "policy");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->decode.rest.stages[1].representative, DescentRepresentative::kMiddle);
  EXPECT_EQ(policy->decode.rest.stages[1].descent_score, DescentScore::kRunningMaximum);
  stage->clear_descent();
  stage->set_selector(v1::SELECTOR_PROBES);
  stage->mutable_probes()->set_probes(4);
  policy = PolicyFromWire(spec, "policy");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->decode.rest.stages[1].probes, 4);
}

}  // namespace
}  // namespace longshore
