#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tests/support/oracle_model.h"

/// The oracle's numbers: rounding, rotation, softmax.
namespace longshore::oracle {

/// Rounds to the nearest value of the storage type, ties to even, subnormals kept, overflow to
/// infinity.
double RoundTo(Storage storage, double value);

/// Where one vector stands in a rotation: its position id and the factor on cosines and sines.
struct RotaryPlace {
  int64_t id = 0;
  double scaling = 1.0;

  /// Same id and factor.
  bool operator==(const RotaryPlace&) const = default;
};

/// Rotates one head's vector: (x, y) -> f (x cos - y sin, y cos + x sin) with angle id * inv_freq
/// and f = place.scaling for each pair; dimensions from rotary_dim on pass through.
///
///   vector  [head_dim]
///
/// std::out_of_range if the rope has tables and the id is outside them.
std::vector<double> Rotate(const Rope& rope,
                           const RotaryPlace& place,
                           std::span<const double> vector);

/// Vectors of many tokens, rotated and rounded to the storage type when they are asked for.
///
/// Only remembers each token's last place, so that asking again for the same is cheap.
class RotatedRows {
 public:
  /// `rows` [tokens, heads, head_dim] must outlive this object.
  RotatedRows(const Model& model, int heads, std::span<const double> rows);

  /// [heads, head_dim] of one token; valid until the token is asked for at another place.
  std::span<const double> At(int64_t token, const RotaryPlace& place);

 private:
  struct Entry {
    RotaryPlace place;
    std::vector<double> rotated;
  };

  const Model& model_;
  int heads_;
  std::span<const double> rows_;
  std::vector<Entry> entries_;
};

/// sum_d a_d b_d.
double Dot(std::span<const double> left, std::span<const double> right);

/// A raw dot product as a logit: scaled, then soft-capped.
double Logit(const Model& model, double dot);

/// log sum exp(values); minus infinity for no values.
double LogSumExp(std::span<const double> values);

/// Attention of rows: `out` [rows, heads, head_dim], `lse` [rows, heads].
///
/// lse = log(sum exp(s) + exp(sink_logit)), the logarithm of what normalised `out`.
struct Attention {
  std::vector<double> out;
  std::vector<double> lse;
};

/// Appends one (row, head) to `attention`: out = sum exp(s) v / (sum exp(s) + exp(sink_logit)).
///
///   logits  [n]            scaled and soft-capped
///   values  n spans of [head_dim]
void AttendOnce(const Model& model,
                int head,
                std::span<const double> logits,
                std::span<const std::span<const double>> values,
                Attention& attention);

/// Causal attention of rows at `position`, `position` + 1, ... over every key, or the last
/// `sliding_window` ones, at true positions.
///
///   queries       [rows, heads, head_dim]                    unrotated
///   keys, values  [position + rows or more, kv_heads, head_dim]  unrotated; later tokens are
///   unseen
///
/// Shares only `Rotate`, `Logit` and `AttendOnce` with the pruned path.
Attention DenseAttention(const Model& model,
                         int64_t position,
                         std::span<const double> queries,
                         std::span<const double> keys,
                         std::span<const double> values);

}  // namespace longshore::oracle
