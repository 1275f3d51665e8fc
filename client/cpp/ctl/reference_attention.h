#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "longshore/client/model_shape.h"

namespace longshore::ctl {

/// Dense causal attention of one layer in fp64, with true positions: what a daemon is judged by.
/// Plain loops, for small contexts. Softmax scale, soft-cap, grouped heads and rotary embedding of
/// table 0; no learned sinks, no sliding window.
class ReferenceAttention {
 public:
  explicit ReferenceAttention(client::ModelShape model) : model_(std::move(model)) {}

  /// k, v  [rows, num_kv_heads, head_dim] unrotated
  void Append(std::span<const float> k, std::span<const float> v);

  struct Result {
    std::vector<double> out;          ///< [rows, num_heads, head_dim]
    std::vector<double> log_sum_exp;  ///< [rows, num_heads]
  };
  /// Of rows at `position` on, whose keys are there already.
  ///
  ///   q  [rows, num_heads, head_dim] unrotated
  Result Attend(int64_t position, std::span<const float> q) const;

 private:
  // Turns one head [head_dim] of a token at `position`.
  void Rotate(int64_t position, std::span<double> head) const;
  // Attention of one query [head_dim] over tokens 0..last of a KV head; returns its log-sum-exp.
  double AttendHead(std::span<const double> query,
                    int64_t last,
                    int32_t kv_head,
                    std::span<double> out) const;

  client::ModelShape model_;
  int64_t tokens_ = 0;
  std::vector<double> keys_;    // [tokens, num_kv_heads, head_dim] rotated
  std::vector<double> values_;  // [tokens, num_kv_heads, head_dim]
};

}  // namespace longshore::ctl
