#include "client/cpp/src/convert.h"

#include <cmath>

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include "client/cpp/src/status.h"

namespace longshore::client {
namespace {

// Keeps what is wrong with a text, which protobuf would print to stderr.
class TextErrors final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (first_.empty()) {
      first_ = absl::StrCat("line ", line + 1, ", column ", column + 1, ": ", message);
    }
  }
  const std::string& first() const { return first_; }

 private:
  std::string first_;
};

DType DTypeFromWire(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_BF16: return DType::kBf16;
    case v1::DTYPE_F16: return DType::kF16;
    default: return DType::kF32;
  }
}

}  // namespace

RopeTable RopeTable::FromBase(double base, int32_t rotary_dim, int64_t trained_tokens) {
  RopeTable table{.inv_freq = {}, .trained_tokens = trained_tokens};
  for (int32_t element = 0; element + 1 < rotary_dim; element += 2) {
    table.inv_freq.push_back(std::pow(base, -static_cast<double>(element) / rotary_dim));
  }
  return table;
}

v1::DType ToWire(DType dtype) {
  switch (dtype) {
    case DType::kF32: return v1::DTYPE_F32;
    case DType::kBf16: return v1::DTYPE_BF16;
    case DType::kF16: return v1::DTYPE_F16;
  }
  return v1::DTYPE_UNSPECIFIED;
}

v1::ModelShape ToWire(const ModelShape& model) {
  v1::ModelShape wire;
  wire.set_num_layers(model.num_layers);
  wire.set_num_heads(model.num_heads);
  wire.set_num_kv_heads(model.num_kv_heads);
  wire.set_head_dim(model.head_dim);
  wire.set_query_dtype(ToWire(model.query_dtype));
  wire.set_kv_dtype(ToWire(model.kv_dtype));
  wire.set_softmax_scale(model.softmax_scale);
  wire.set_logit_soft_cap(model.logit_soft_cap);
  for (const RopeTable& table : model.rope_tables) {
    v1::RopeTable* to = wire.add_rope_tables();
    to->mutable_inv_freq()->Assign(table.inv_freq.begin(), table.inv_freq.end());
    to->set_pairing(table.pairing == RopePairing::kHalf ? v1::ROPE_PAIRING_HALF
                                                        : v1::ROPE_PAIRING_INTERLEAVED);
    to->set_attention_scaling(table.attention_scaling);
    to->set_trained_tokens(table.trained_tokens);
  }
  wire.mutable_layer_rope_table()->Assign(model.layer_rope_table.begin(),
                                          model.layer_rope_table.end());
  wire.mutable_layer_sliding_window()->Assign(model.layer_sliding_window.begin(),
                                              model.layer_sliding_window.end());
  wire.mutable_sink_logits()->Assign(model.sink_logits.begin(), model.sink_logits.end());
  return wire;
}

absl::StatusOr<v1::PolicySpec> ToWire(const Policy& policy) {
  v1::PolicySpec wire;
  if (policy.text.empty()) {
    wire.set_preset(policy.preset);
  } else {
    google::protobuf::TextFormat::Parser parser;
    TextErrors errors;
    parser.RecordErrorsTo(&errors);
    if (!parser.ParseFromString(policy.text, wire.mutable_policy())) {
      return InvalidField("policy.text", errors.first());
    }
  }
  if (policy.dense_below_tokens.has_value()) {
    wire.set_dense_below_tokens(*policy.dense_below_tokens);
  }
  return wire;
}

ModelShape FromWire(const v1::ModelShape& wire) {
  ModelShape model{.num_layers = wire.num_layers(),
                   .num_heads = wire.num_heads(),
                   .num_kv_heads = wire.num_kv_heads(),
                   .head_dim = wire.head_dim(),
                   .query_dtype = DTypeFromWire(wire.query_dtype()),
                   .kv_dtype = DTypeFromWire(wire.kv_dtype()),
                   .softmax_scale = wire.softmax_scale(),
                   .logit_soft_cap = wire.logit_soft_cap(),
                   .rope_tables = {},
                   .layer_rope_table = {},
                   .layer_sliding_window = {},
                   .sink_logits = {}};
  for (const v1::RopeTable& table : wire.rope_tables()) {
    model.rope_tables.push_back({.inv_freq = {table.inv_freq().begin(), table.inv_freq().end()},
                                 .pairing = table.pairing() == v1::ROPE_PAIRING_INTERLEAVED
                                                ? RopePairing::kInterleaved
                                                : RopePairing::kHalf,
                                 .attention_scaling = table.attention_scaling(),
                                 .trained_tokens = table.trained_tokens()});
  }
  model.layer_rope_table.assign(wire.layer_rope_table().begin(), wire.layer_rope_table().end());
  model.layer_sliding_window.assign(wire.layer_sliding_window().begin(),
                                    wire.layer_sliding_window().end());
  model.sink_logits.assign(wire.sink_logits().begin(), wire.sink_logits().end());
  return model;
}

SessionInfo FromWire(const v1::SessionInfo& wire) {
  SessionInfo info;
  info.id = wire.session_id();
  info.name = wire.name();
  info.model = FromWire(wire.model());
  info.max_tokens = wire.max_tokens();
  info.overcommit = wire.overcommit();
  info.layer_tokens.assign(wire.layer_tokens().begin(), wire.layer_tokens().end());
  info.page_bytes_used = wire.page_bytes_used();
  info.page_bytes_reserved = wire.page_bytes_reserved();
  info.failure = StatusFromRpc(wire.failure());
  info.lease = absl::Seconds(wire.lease_seconds());
  info.idle = absl::Seconds(wire.idle_seconds());
  info.owner = wire.owner();
  return info;
}

ServerInfo FromWire(const v1::GetServerInfoResponse& wire) {
  ServerInfo info{.version = wire.version(),
                  .instance_id = wire.instance_id(),
                  .backends = {},
                  .limits = {},
                  .presets = {wire.presets().begin(), wire.presets().end()},
                  .extensions = {wire.extensions().begin(), wire.extensions().end()},
                  .uptime = absl::Seconds(wire.uptime_seconds())};
  for (const v1::BackendInfo& backend : wire.backends()) {
    info.backends.push_back({.name = backend.name(),
                             .device = backend.device(),
                             .threads = backend.threads(),
                             .device_bytes = backend.device_bytes()});
  }
  const v1::Limits& limits = wire.limits();
  info.limits = {.max_message_bytes = limits.max_message_bytes(),
                 .max_rows_per_prefill = limits.max_rows_per_prefill(),
                 .max_rows_per_decode_item = limits.max_rows_per_decode_item(),
                 .max_items_per_call = limits.max_items_per_call(),
                 .max_sessions = limits.max_sessions(),
                 .max_tokens_per_session = limits.max_tokens_per_session(),
                 .max_queued_calls = limits.max_queued_calls(),
                 .pool_bytes = limits.pool_bytes(),
                 .max_steps_in_flight = limits.max_steps_in_flight(),
                 .max_queued_bytes = limits.max_queued_bytes(),
                 .max_table_bytes = limits.max_table_bytes(),
                 .max_score_bytes = limits.max_score_bytes(),
                 .default_lease = absl::Seconds(limits.default_lease_seconds()),
                 .max_lease = absl::Seconds(limits.max_lease_seconds())};
  return info;
}

}  // namespace longshore::client
