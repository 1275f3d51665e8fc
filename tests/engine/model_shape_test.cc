#include "engine/model_shape.h"

#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Spoilt {
  std::function<void(ModelShape*)> spoil;
  std::string field;
  std::string rest;  // of the message, after the field
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

void Expect(const std::vector<Spoilt>& table) {
  for (const Spoilt& test : table) {
    ModelShape model = TestModel(4, 2);
    test.spoil(&model);
    const absl::Status status = NormalizeModelShape(model).status();
    EXPECT_EQ(status.code(), test.code) << status;
    EXPECT_EQ(status.message(), test.field + " " + test.rest);
    ASSERT_TRUE(DetailsOf(status).has_value()) << test.field;
    EXPECT_EQ(DetailsOf(status)->field, test.field);
  }
}

TEST(ModelShape, FillsWhatIsLeftOut) {
  ModelShape model;
  model.num_layers = 3;
  model.num_heads = 32;
  model.num_kv_heads = 8;
  model.head_dim = 128;
  model.rope_tables = {TestRope(128, 8192)};
  model.rope_tables[0].attention_scaling = 0.0F;
  const auto normal = NormalizeModelShape(model);
  ASSERT_TRUE(normal.ok()) << normal.status();
  EXPECT_FLOAT_EQ(normal->softmax_scale, 1.0F / std::sqrt(128.0F));
  EXPECT_EQ(normal->rope_tables[0].attention_scaling, 1.0F);
  EXPECT_EQ(normal->layer_rope_table, (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(normal->layer_sliding_window, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_TRUE(*NormalizeModelShape(*normal) == *normal);
  model.rope_tables.clear();
  EXPECT_EQ(NormalizeModelShape(model)->layer_rope_table, (std::vector<int32_t>{-1, -1, -1}));
}

TEST(ModelShape, KeepsWhatIsGiven) {
  ModelShape model = TestModel(4, 2);
  model.softmax_scale = 0.3F;
  model.rope_tables[0].attention_scaling = 1.25F;
  model.sink_logits = {0.0F, 1.0F, 2.0F, 3.0F};
  EXPECT_TRUE(*NormalizeModelShape(model) == model);
}

TEST(ModelShape, KnowsTheTrainedLengthOfEveryLayer) {
  ModelShape model = TestModel(4, 2);
  model.num_layers = 3;
  model.rope_tables = {TestRope(64, 4096), TestRope(64, 100)};
  model.layer_rope_table = {1, -1, 0};
  EXPECT_EQ(model.TrainedTokens(0), 100);
  EXPECT_EQ(model.TrainedTokens(1), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(model.TrainedTokens(2), 4096);
  EXPECT_EQ(model.RopeOf(1), nullptr);
  EXPECT_EQ(model.RopeOf(0), &model.rope_tables[1]);
}

TEST(ModelShape, ServesTheseHeadSizes) {
  for (int32_t head_dim = 0; head_dim <= 320; head_dim += 16) {
    ModelShape model = TestModel(4, 2);
    model.head_dim = head_dim;
    model.rope_tables.clear();
    model.layer_rope_table = {-1};
    const bool served = head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128 ||
                        head_dim == 192 || head_dim == 256;
    EXPECT_EQ(NormalizeModelShape(model).ok(), served) << head_dim;
  }
}

TEST(ModelShape, SizesAreNamedWithBothNumbers) {
  Expect({
      {[](ModelShape* m) { m->num_layers = 0; }, "num_layers", "0 is not in 1..1024"},
      {[](ModelShape* m) { m->num_layers = 1025; }, "num_layers", "1025 is not in 1..1024"},
      {[](ModelShape* m) { m->num_heads = 0; }, "num_heads", "0 is not in 1..1024"},
      {[](ModelShape* m) { m->num_heads = 1026; }, "num_heads", "1026 is not in 1..1024"},
      {[](ModelShape* m) { m->num_kv_heads = 0; }, "num_kv_heads", "0 does not divide num_heads 4"},
      {[](ModelShape* m) { m->num_kv_heads = 3; }, "num_kv_heads", "3 does not divide num_heads 4"},
      {[](ModelShape* m) { m->num_kv_heads = -2; }, "num_kv_heads",
       "-2 does not divide num_heads 4"},
      {[](ModelShape* m) { m->num_heads = 34; }, "num_heads",
       "34 is more than 16 times num_kv_heads 2"},
      {[](ModelShape* m) { m->head_dim = 72; }, "head_dim",
       "72 is not one of 64, 80, 96, 128, 192, 256"},
      {[](ModelShape* m) {
         m->layer_rope_table = {0, 0};
       },
       "layer_rope_table", "has 2 entries, num_layers is 1"},
      {[](ModelShape* m) {
         m->layer_sliding_window = {0, 0};
       },
       "layer_sliding_window", "has 2 entries, num_layers is 1"},
      {[](ModelShape* m) { m->layer_rope_table = {1}; }, "layer_rope_table[0]",
       "1 is not -1 or below the number of rope_tables 1"},
      {[](ModelShape* m) { m->layer_rope_table = {-2}; }, "layer_rope_table[0]",
       "-2 is not -1 or below the number of rope_tables 1"},
      {[](ModelShape* m) { m->rope_tables.push_back(TestRope(64)); }, "rope_tables",
       "has 2 entries, more than num_layers 1"},
      {[](ModelShape* m) {
         m->num_layers = 3;
         m->layer_rope_table = {0, 0, 2};
         m->layer_sliding_window = {0, 0, 0};
         m->rope_tables.resize(3, TestRope(64));
       },
       "rope_tables[1]", "is used by none of 3 layers; there are 3 tables"},
      {[](ModelShape* m) { m->layer_rope_table = {-1}; }, "rope_tables[0]",
       "is used by none of 1 layers; there are 1 tables"},
      {[](ModelShape* m) { m->layer_sliding_window = {-1}; }, "layer_sliding_window[0]",
       "-1 is less than 0"},
      {[](ModelShape* m) { m->sink_logits = {1.0F}; }, "sink_logits",
       "has 1 values, num_layers * num_heads is 4"},
  });
}

TEST(ModelShape, NumbersAreWithinTheirBounds) {
  const auto scale = [](float value) { return [=](ModelShape* m) { m->softmax_scale = value; }; };
  const auto cap = [](float value) { return [=](ModelShape* m) { m->logit_soft_cap = value; }; };
  Expect({
      {scale(-1.0F), "softmax_scale", "-1 is not above 0 and at most 1000"},
      {scale(1001.0F), "softmax_scale", "1001 is not above 0 and at most 1000"},
      {scale(kInfinity), "softmax_scale", "inf is not above 0 and at most 1000"},
      {scale(kNan), "softmax_scale", "nan is not above 0 and at most 1000"},
      {cap(-1.0F), "logit_soft_cap", "-1 is neither 0 nor in 0.001..1e+06"},
      {cap(0.0009F), "logit_soft_cap", "0.0009 is neither 0 nor in 0.001..1e+06"},
      {cap(2e6F), "logit_soft_cap", "2e+06 is neither 0 nor in 0.001..1e+06"},
      {cap(kNan), "logit_soft_cap", "nan is neither 0 nor in 0.001..1e+06"},
      {[](ModelShape* m) {
         m->sink_logits = {0.0F, kNan, 0.0F, 0.0F};
       },
       "sink_logits", "has a value that is not finite"},
  });
}

TEST(ModelShape, BoundsAreServed) {
  ModelShape model = TestModel(4, 2);
  model.softmax_scale = 1000.0F;
  for (const float cap : {0.0F, 0.001F, 1e6F}) {
    for (const float scaling : {0.01F, 100.0F}) {
      model.logit_soft_cap = cap;
      model.rope_tables[0].attention_scaling = scaling;
      model.rope_tables[0].inv_freq[0] = -64.0;
      EXPECT_TRUE(NormalizeModelShape(model).ok()) << cap << " " << scaling;
    }
  }
}

TEST(ModelShape, RotaryTablesAreNamed) {
  Expect({
      {[](ModelShape* m) { m->rope_tables[0].inv_freq.clear(); }, "rope_tables[0].inv_freq",
       "has 0 values: rotary_dim 0 is not in 2..head_dim 64"},
      {[](ModelShape* m) { m->rope_tables.push_back(TestRope(66)); }, "rope_tables[1].inv_freq",
       "has 33 values: rotary_dim 66 is not in 2..head_dim 64"},
      {[](ModelShape* m) { m->rope_tables[0].inv_freq[3] = HUGE_VAL; },
       "rope_tables[0].inv_freq[3]", "inf is not in -64..64"},
      {[](ModelShape* m) { m->rope_tables[0].inv_freq[0] = -65.0; }, "rope_tables[0].inv_freq[0]",
       "-65 is not in -64..64"},
      {[](ModelShape* m) { m->rope_tables[0].attention_scaling = -1.0F; },
       "rope_tables[0].attention_scaling", "-1 is not in 0.01..100"},
      {[](ModelShape* m) { m->rope_tables[0].attention_scaling = 101.0F; },
       "rope_tables[0].attention_scaling", "101 is not in 0.01..100"},
      {[](ModelShape* m) { m->rope_tables[0].attention_scaling = kNan; },
       "rope_tables[0].attention_scaling", "nan is not in 0.01..100"},
      {[](ModelShape* m) { m->rope_tables[0].trained_tokens = 0; }, "rope_tables[0].trained_tokens",
       "0 is less than 1"},
  });
}

TEST(ModelShape, WhatIsNotServedYetSaysSo) {
  Expect({
      {[](ModelShape* m) { m->query_dtype = DType::kF8E4M3; }, "query_dtype",
       "f8e4m3 is not one of f32, bf16, f16"},
      {[](ModelShape* m) { m->kv_dtype = DType::kF8E4M3; }, "kv_dtype",
       "f8e4m3 is not served yet; use f32, bf16 or f16", absl::StatusCode::kUnimplemented},
  });
}

}  // namespace
}  // namespace longshore
