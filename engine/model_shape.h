#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/block.h"
#include "engine/core/dtype.h"
#include "engine/core/rope_pairing.h"
#include "engine/core/status.h"

namespace longshore {

/// One rotary embedding as the model defines it.
///
/// Pair i of a token with id p is turned by p * inv_freq[i] radians; cos and sin are multiplied by
/// attention_scaling, for queries and keys alike.
struct RopeSpec {
  std::vector<double> inv_freq = {};  ///< [rotary_dim / 2] radians per position, at most 64
  RopePairing pairing = RopePairing::kHalf;
  float attention_scaling = 1.0F;  ///< in 0.01..100; why: magnitude.h
  int64_t trained_tokens = 0;      ///< positions below were seen in training; at least 1

  bool operator==(const RopeSpec&) const = default;
};

/// The attention part of a decoder.
struct ModelShape {
  int32_t num_layers = 0;
  int32_t num_heads = 0;     ///< query heads
  int32_t num_kv_heads = 0;  ///< divides num_heads
  int32_t head_dim = 0;
  DType query_dtype = DType::kF32;  ///< of q and out
  DType kv_dtype = DType::kF32;     ///< as stored
  float softmax_scale = 0.0F;       ///< at most 1000; after Normalize(): never 0
  float logit_soft_cap = 0.0F;      ///< 0: none; else in 0.001..1e6
  /// Each used by some layer.
  std::vector<RopeSpec> rope_tables = {};
  std::vector<int32_t> layer_rope_table = {};      ///< [num_layers]; -1: no rotary embedding
  std::vector<int64_t> layer_sliding_window = {};  ///< [num_layers] tokens a query sees; 0: all
  std::vector<float> sink_logits = {};             ///< [num_layers, num_heads] or empty

  int32_t GroupSize() const { return num_heads / num_kv_heads; }
  /// The rotary table of a layer, or null for a layer without.
  const RopeSpec* RopeOf(int32_t layer) const;
  /// Positions from which a layer is beyond its trained length; the largest int64_t without RoPE.
  int64_t TrainedTokens(int32_t layer) const;
  /// Tokens that a query of a layer sees, itself included; 0: all of them.
  int64_t SlidingWindow(int32_t layer) const {
    return layer_sliding_window[static_cast<size_t>(layer)];
  }

  bool operator==(const ModelShape&) const = default;
};

/// Fills what may be left out (softmax_scale 0, empty per-layer lists) and checks the rest.
///
/// InvalidArgument names the field (as on the wire, for example `rope_tables[1].inv_freq`) and the
/// two numbers; Unimplemented for values that this build does not serve.
absl::StatusOr<ModelShape> NormalizeModelShape(ModelShape shape);

}  // namespace longshore
