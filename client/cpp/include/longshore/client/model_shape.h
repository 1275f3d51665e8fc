#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longshore/client/tensor.h"

namespace longshore::client {

/// Which elements of a head are rotated together.
enum class RopePairing : uint8_t {
  kHalf,         ///< (i, i + rotary_dim / 2): Hugging Face Llama, GPT-NeoX
  kInterleaved,  ///< (2i, 2i + 1): the original Llama, GPT-J, GGUF Llama weights
};

/// One rotary embedding: pair i of a token with id p is turned by p * inv_freq[i] radians.
struct RopeTable {
  std::vector<double> inv_freq = {};  ///< [rotary_dim / 2] radians per position
  RopePairing pairing = RopePairing::kHalf;
  float attention_scaling = 1.0F;  ///< multiplies cos and sin of queries and keys
  int64_t trained_tokens = 0;      ///< positions below were seen in training; at least 1

  /// The usual inv_freq[i] = base^(-2i / rotary_dim).
  static RopeTable FromBase(double base, int32_t rotary_dim, int64_t trained_tokens);
};

/// The attention part of a decoder; the fields are those of longshore.v1.ModelShape.
struct ModelShape {
  int32_t num_layers = 1;
  int32_t num_heads = 1;            ///< query heads of a layer
  int32_t num_kv_heads = 1;         ///< divides num_heads
  int32_t head_dim = 64;            ///< 64, 80, 96, 128, 192 or 256
  DType query_dtype = DType::kF32;  ///< of q and of the output
  DType kv_dtype = DType::kF32;     ///< in which keys and values are stored
  float softmax_scale = 0.0F;       ///< 0: 1 / sqrt(head_dim)
  float logit_soft_cap = 0.0F;      ///< 0: none
  std::vector<RopeTable> rope_tables = {};
  std::vector<int32_t> layer_rope_table =
      {};  ///< [num_layers]; -1: none; empty: table 0 everywhere
  std::vector<int64_t> layer_sliding_window =
      {};                               ///< [num_layers]; 0: all tokens; empty: 0 everywhere
  std::vector<float> sink_logits = {};  ///< [num_layers, num_heads] or empty
};

/// Which tokens a query attends to: a preset by name, or a policy in full.
struct Policy {
  std::string preset = "standard";  ///< see ServerInfo::presets
  /// Not empty: a longshore.v1.AttentionPolicy in protobuf text format, in place of a preset.
  /// `longshorectl policy show NAME` prints one to change.
  std::string text = {};
  /// Replaces a preset's: shorter contexts are attended whole.
  std::optional<int64_t> dense_below_tokens = std::nullopt;
};

}  // namespace longshore::client
