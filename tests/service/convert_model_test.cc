#include "service/convert_model.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/core/error.h"

namespace longshore {
namespace {

v1::ModelShape Model() {
  v1::ModelShape model;
  model.set_num_layers(2);
  model.set_num_heads(4);
  model.set_num_kv_heads(2);
  model.set_head_dim(64);
  model.set_query_dtype(v1::DTYPE_F32);
  model.set_kv_dtype(v1::DTYPE_BF16);
  v1::RopeTable* table = model.add_rope_tables();
  for (int pair = 0; pair < 32; ++pair) {
    table->add_inv_freq(1.0F / static_cast<float>(pair + 1));
  }
  table->set_pairing(v1::ROPE_PAIRING_INTERLEAVED);
  table->set_trained_tokens(2048);
  return model;
}

TEST(ConvertModel, FillsWhatMayBeLeftOut) {
  const absl::StatusOr<ModelShape> shape = ModelFromWire(Model(), "model");
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->softmax_scale, 0.125F);
  EXPECT_EQ(shape->rope_tables[0].attention_scaling, 1.0F);
  EXPECT_EQ(shape->rope_tables[0].pairing, RopePairing::kInterleaved);
  EXPECT_EQ(shape->layer_rope_table, (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(shape->layer_sliding_window, (std::vector<int64_t>{0, 0}));
}

TEST(ConvertModel, ComesBackUnchanged) {
  v1::ModelShape wire = Model();
  wire.add_layer_rope_table(-1);
  wire.add_layer_rope_table(0);
  for (int logit = 0; logit < 8; ++logit) {
    wire.add_sink_logits(static_cast<float>(logit));
  }
  wire.set_logit_soft_cap(30.0F);
  const absl::StatusOr<ModelShape> shape = ModelFromWire(wire, "model");
  ASSERT_TRUE(shape.ok()) << shape.status();
  const absl::StatusOr<ModelShape> again = ModelFromWire(ModelToWire(*shape), "model");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *shape);
}

TEST(ConvertModel, EveryWrongFieldIsNamed) {
  struct Case {
    std::string field;
    std::function<void(v1::ModelShape*)> spoil;
  };
  const std::vector<Case> cases = {
      {"num_layers", [](auto* model) { model->clear_num_layers(); }},
      {"num_heads", [](auto* model) { model->set_num_heads(-4); }},
      {"num_kv_heads", [](auto* model) { model->set_num_kv_heads(3); }},
      {"head_dim", [](auto* model) { model->set_head_dim(65); }},
      {"query_dtype", [](auto* model) { model->clear_query_dtype(); }},
      {"query_dtype", [](auto* model) { model->set_query_dtype(static_cast<v1::DType>(77)); }},
      {"kv_dtype", [](auto* model) { model->clear_kv_dtype(); }},
      {"rope_tables[0].pairing",
       [](auto* model) { model->mutable_rope_tables(0)->clear_pairing(); }},
      {"rope_tables[0].trained_tokens",
       [](auto* model) { model->mutable_rope_tables(0)->clear_trained_tokens(); }},
      {"rope_tables[0].inv_freq",
       [](auto* model) { model->mutable_rope_tables(0)->clear_inv_freq(); }},
      {"layer_rope_table", [](auto* model) { model->add_layer_rope_table(0); }},
      {"sink_logits", [](auto* model) { model->add_sink_logits(0); }},
  };
  for (const Case& spoiled : cases) {
    v1::ModelShape model = Model();
    spoiled.spoil(&model);
    const absl::Status status = ModelFromWire(model, "model").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    const std::optional<ErrorDetails> details = DetailsOf(status);
    ASSERT_TRUE(details.has_value()) << status;
    EXPECT_EQ(details->field, "model." + spoiled.field) << status;
  }
}

}  // namespace
}  // namespace longshore
