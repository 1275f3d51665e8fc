#include "service/convert_model.h"

#include "engine/core/error.h"

namespace longshore {
namespace {

absl::StatusOr<RopePairing> PairingFromWire(v1::RopePairing pairing) {
  switch (pairing) {
    case v1::ROPE_PAIRING_HALF: return RopePairing::kHalf;
    case v1::ROPE_PAIRING_INTERLEAVED: return RopePairing::kInterleaved;
    default: break;
  }
  return InvalidField("pairing", static_cast<int>(pairing), " is not a RopePairing");
}

v1::RopePairing PairingToWire(RopePairing pairing) {
  switch (pairing) {
    case RopePairing::kHalf: return v1::ROPE_PAIRING_HALF;
    case RopePairing::kInterleaved: return v1::ROPE_PAIRING_INTERLEAVED;
  }
  return v1::ROPE_PAIRING_UNSPECIFIED;
}

absl::StatusOr<RopeSpec> RopeFromWire(const v1::RopeTable& table) {
  RopeSpec spec;
  spec.inv_freq.assign(table.inv_freq().begin(), table.inv_freq().end());
  ASSIGN_OR_RETURN(spec.pairing, PairingFromWire(table.pairing()));
  spec.attention_scaling = table.attention_scaling() == 0.0F ? 1.0F : table.attention_scaling();
  spec.trained_tokens = table.trained_tokens();
  return spec;
}

absl::StatusOr<ModelShape> FieldsFromWire(const v1::ModelShape& wire) {
  ModelShape model;
  model.num_layers = wire.num_layers();
  model.num_heads = wire.num_heads();
  model.num_kv_heads = wire.num_kv_heads();
  model.head_dim = wire.head_dim();
  ASSIGN_OR_RETURN(model.query_dtype, DTypeFromWire(wire.query_dtype(), "query_dtype"));
  ASSIGN_OR_RETURN(model.kv_dtype, DTypeFromWire(wire.kv_dtype(), "kv_dtype"));
  model.softmax_scale = wire.softmax_scale();
  model.logit_soft_cap = wire.logit_soft_cap();
  for (int index = 0; index < wire.rope_tables_size(); ++index) {
    absl::StatusOr<RopeSpec> spec = RopeFromWire(wire.rope_tables(index));
    if (!spec.ok()) {
      return PrefixField(absl::StrCat("rope_tables[", index, "]."), spec.status());
    }
    model.rope_tables.push_back(*std::move(spec));
  }
  model.layer_rope_table.assign(wire.layer_rope_table().begin(), wire.layer_rope_table().end());
  model.layer_sliding_window.assign(wire.layer_sliding_window().begin(),
                                    wire.layer_sliding_window().end());
  model.sink_logits.assign(wire.sink_logits().begin(), wire.sink_logits().end());
  return NormalizeModelShape(std::move(model));
}

}  // namespace

absl::StatusOr<DType> DTypeFromWire(v1::DType dtype, absl::string_view field) {
  switch (dtype) {
    case v1::DTYPE_F32: return DType::kF32;
    case v1::DTYPE_BF16: return DType::kBf16;
    case v1::DTYPE_F16: return DType::kF16;
    case v1::DTYPE_F8E4M3: return DType::kF8E4M3;
    case v1::DTYPE_UNSPECIFIED: return InvalidField(field, "is not set");
    default: break;
  }
  return InvalidField(field, static_cast<int>(dtype), " is not a DType");
}

v1::DType DTypeToWire(DType dtype) {
  switch (dtype) {
    case DType::kF32: return v1::DTYPE_F32;
    case DType::kBf16: return v1::DTYPE_BF16;
    case DType::kF16: return v1::DTYPE_F16;
    case DType::kF8E4M3: return v1::DTYPE_F8E4M3;
  }
  return v1::DTYPE_UNSPECIFIED;
}

absl::StatusOr<ModelShape> ModelFromWire(const v1::ModelShape& model, absl::string_view field) {
  absl::StatusOr<ModelShape> shape = FieldsFromWire(model);
  if (!shape.ok()) {
    return PrefixField(absl::StrCat(field, "."), shape.status());
  }
  return shape;
}

v1::ModelShape ModelToWire(const ModelShape& model) {
  v1::ModelShape wire;
  wire.set_num_layers(model.num_layers);
  wire.set_num_heads(model.num_heads);
  wire.set_num_kv_heads(model.num_kv_heads);
  wire.set_head_dim(model.head_dim);
  wire.set_query_dtype(DTypeToWire(model.query_dtype));
  wire.set_kv_dtype(DTypeToWire(model.kv_dtype));
  wire.set_softmax_scale(model.softmax_scale);
  wire.set_logit_soft_cap(model.logit_soft_cap);
  for (const RopeSpec& spec : model.rope_tables) {
    v1::RopeTable* table = wire.add_rope_tables();
    table->mutable_inv_freq()->Assign(spec.inv_freq.begin(), spec.inv_freq.end());
    table->set_pairing(PairingToWire(spec.pairing));
    table->set_attention_scaling(spec.attention_scaling);
    table->set_trained_tokens(spec.trained_tokens);
  }
  wire.mutable_layer_rope_table()->Assign(model.layer_rope_table.begin(),
                                          model.layer_rope_table.end());
  wire.mutable_layer_sliding_window()->Assign(model.layer_sliding_window.begin(),
                                              model.layer_sliding_window.end());
  wire.mutable_sink_logits()->Assign(model.sink_logits.begin(), model.sink_logits.end());
  return wire;
}

}  // namespace longshore
