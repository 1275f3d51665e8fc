#include "engine/model_shape.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "engine/core/error.h"
#include "engine/magnitude.h"

namespace longshore {
namespace {

constexpr std::array<int32_t, 6> kHeadDims = {64, 80, 96, 128, 192, 256};
constexpr int32_t kMaxLayers = 1024;
constexpr int32_t kMaxHeads = 1024;
constexpr int32_t kMaxGroup = 16;

// False for NaN.
bool IsWithin(float smallest, float value, float largest) {
  return value >= smallest && value <= largest;
}

absl::Status CheckHeads(const ModelShape& shape) {
  if (shape.num_layers < 1 || shape.num_layers > kMaxLayers) {
    return InvalidField("num_layers", shape.num_layers, " is not in 1..", kMaxLayers);
  }
  if (shape.num_heads < 1 || shape.num_heads > kMaxHeads) {
    return InvalidField("num_heads", shape.num_heads, " is not in 1..", kMaxHeads);
  }
  if (shape.num_kv_heads < 1 || shape.num_heads % shape.num_kv_heads != 0) {
    return InvalidField("num_kv_heads", shape.num_kv_heads, " does not divide num_heads ",
                        shape.num_heads);
  }
  if (shape.GroupSize() > kMaxGroup) {
    return InvalidField("num_heads", shape.num_heads, " is more than ", kMaxGroup,
                        " times num_kv_heads ", shape.num_kv_heads);
  }
  if (std::find(kHeadDims.begin(), kHeadDims.end(), shape.head_dim) == kHeadDims.end()) {
    return InvalidField("head_dim", shape.head_dim, " is not one of 64, 80, 96, 128, 192, 256");
  }
  return absl::OkStatus();
}

absl::Status CheckScores(const ModelShape& shape) {
  if (shape.query_dtype == DType::kF8E4M3) {
    return InvalidField("query_dtype", "f8e4m3 is not one of f32, bf16, f16");
  }
  if (shape.kv_dtype == DType::kF8E4M3) {
    return NotImplemented("kv_dtype", "f8e4m3 is not served yet; use f32, bf16 or f16");
  }
  if (!(shape.softmax_scale > 0.0F && shape.softmax_scale <= kMaxSoftmaxScale)) {
    return InvalidField("softmax_scale", shape.softmax_scale, " is not above 0 and at most ",
                        kMaxSoftmaxScale);
  }
  if (shape.logit_soft_cap != 0.0F &&
      !IsWithin(kMinLogitSoftCap, shape.logit_soft_cap, kMaxLogitSoftCap)) {
    return InvalidField("logit_soft_cap", shape.logit_soft_cap, " is neither 0 nor in ",
                        kMinLogitSoftCap, "..", kMaxLogitSoftCap);
  }
  const int64_t logits = static_cast<int64_t>(shape.num_layers) * shape.num_heads;
  if (!shape.sink_logits.empty() && static_cast<int64_t>(shape.sink_logits.size()) != logits) {
    return InvalidField("sink_logits", "has ", shape.sink_logits.size(),
                        " values, num_layers * num_heads is ", logits);
  }
  if (!std::all_of(shape.sink_logits.begin(), shape.sink_logits.end(),
                   [](float logit) { return std::isfinite(logit); })) {
    return InvalidField("sink_logits", "has a value that is not finite");
  }
  return absl::OkStatus();
}

absl::Status CheckRopeTable(const RopeSpec& rope, int32_t head_dim) {
  const auto rotary_dim = static_cast<int64_t>(rope.inv_freq.size()) * 2;
  if (rotary_dim < 2 || rotary_dim > head_dim) {
    return InvalidField("inv_freq", "has ", rope.inv_freq.size(), " values: rotary_dim ",
                        rotary_dim, " is not in 2..head_dim ", head_dim);
  }
  for (size_t pair = 0; pair < rope.inv_freq.size(); ++pair) {
    if (!(std::abs(rope.inv_freq[pair]) <= kMaxInvFreq)) {
      return InvalidField(absl::StrCat("inv_freq[", pair, "]"), rope.inv_freq[pair], " is not in -",
                          kMaxInvFreq, "..", kMaxInvFreq);
    }
  }
  if (!IsWithin(kMinAttentionScaling, rope.attention_scaling, kMaxAttentionScaling)) {
    return InvalidField("attention_scaling", rope.attention_scaling, " is not in ",
                        kMinAttentionScaling, "..", kMaxAttentionScaling);
  }
  if (rope.trained_tokens < 1) {
    return InvalidField("trained_tokens", rope.trained_tokens, " is less than 1");
  }
  return absl::OkStatus();
}

// A table costs memory and time when a session is opened, so each has a use.
absl::Status CheckTableUse(const ModelShape& shape) {
  if (std::ssize(shape.rope_tables) > shape.num_layers) {
    return InvalidField("rope_tables", "has ", shape.rope_tables.size(),
                        " entries, more than num_layers ", shape.num_layers);
  }
  const std::vector<int32_t>& uses = shape.layer_rope_table;
  for (size_t table = 0; table < shape.rope_tables.size(); ++table) {
    if (std::find(uses.begin(), uses.end(), static_cast<int32_t>(table)) == uses.end()) {
      return InvalidField(absl::StrCat("rope_tables[", table, "]"), "is used by none of ",
                          shape.num_layers, " layers; there are ", shape.rope_tables.size(),
                          " tables");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLayers(const ModelShape& shape) {
  const auto num_layers = static_cast<size_t>(shape.num_layers);
  if (shape.layer_rope_table.size() != num_layers) {
    return InvalidField("layer_rope_table", "has ", shape.layer_rope_table.size(),
                        " entries, num_layers is ", num_layers);
  }
  if (shape.layer_sliding_window.size() != num_layers) {
    return InvalidField("layer_sliding_window", "has ", shape.layer_sliding_window.size(),
                        " entries, num_layers is ", num_layers);
  }
  for (size_t layer = 0; layer < num_layers; ++layer) {
    const int32_t table = shape.layer_rope_table[layer];
    if (table < -1 || table >= static_cast<int32_t>(shape.rope_tables.size())) {
      return InvalidField(absl::StrCat("layer_rope_table[", layer, "]"), table,
                          " is not -1 or below the number of rope_tables ",
                          shape.rope_tables.size());
    }
    if (shape.layer_sliding_window[layer] < 0) {
      return InvalidField(absl::StrCat("layer_sliding_window[", layer, "]"),
                          shape.layer_sliding_window[layer], " is less than 0");
    }
  }
  return absl::OkStatus();
}

}  // namespace

const RopeSpec* ModelShape::RopeOf(int32_t layer) const {
  const int32_t table = layer_rope_table[static_cast<size_t>(layer)];
  return table < 0 ? nullptr : &rope_tables[static_cast<size_t>(table)];
}

int64_t ModelShape::TrainedTokens(int32_t layer) const {
  const RopeSpec* rope = RopeOf(layer);
  return rope == nullptr ? std::numeric_limits<int64_t>::max() : rope->trained_tokens;
}

absl::StatusOr<ModelShape> NormalizeModelShape(ModelShape shape) {
  RETURN_IF_ERROR(CheckHeads(shape));
  if (shape.softmax_scale == 0.0F) {
    shape.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  }
  for (RopeSpec& rope : shape.rope_tables) {
    rope.attention_scaling = rope.attention_scaling == 0.0F ? 1.0F : rope.attention_scaling;
  }
  const auto num_layers = static_cast<size_t>(shape.num_layers);
  if (shape.layer_rope_table.empty()) {
    shape.layer_rope_table.assign(num_layers, shape.rope_tables.empty() ? -1 : 0);
  }
  if (shape.layer_sliding_window.empty()) {
    shape.layer_sliding_window.assign(num_layers, 0);
  }
  RETURN_IF_ERROR(CheckScores(shape));
  for (size_t table = 0; table < shape.rope_tables.size(); ++table) {
    if (absl::Status status = CheckRopeTable(shape.rope_tables[table], shape.head_dim);
        !status.ok()) {
      return PrefixField(absl::StrCat("rope_tables[", table, "]."), status);
    }
  }
  RETURN_IF_ERROR(CheckLayers(shape));
  RETURN_IF_ERROR(CheckTableUse(shape));
  return shape;
}

}  // namespace longshore
