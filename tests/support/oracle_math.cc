#include "tests/support/oracle_math.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace longshore::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Shape of a binary floating point type.
struct FloatFormat {
  int significand_bits;  ///< with the leading one
  int min_exponent;      ///< of the smallest normal number, 2^min_exponent
  int max_exponent;  ///< of the largest finite number, in [2^max_exponent, 2^(max_exponent + 1))
};

FloatFormat FormatOf(Storage storage) {
  switch (storage) {
    case Storage::kF32: return {24, -126, 127};
    case Storage::kBf16: return {8, -126, 127};
    case Storage::kF16: return {11, -14, 15};
  }
  throw std::invalid_argument("unknown storage type");
}

}  // namespace

double RoundTo(Storage storage, double value) {
  if (!std::isfinite(value) || value == 0.0) return value;
  const FloatFormat format = FormatOf(storage);
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const int last_bit = exponent - (format.significand_bits - 1);
  // nearbyint rounds ties to even in the default rounding mode; both scalbn are exact.
  const double rounded = std::scalbn(std::nearbyint(std::scalbn(value, -last_bit)), last_bit);
  const bool overflows = std::abs(rounded) >= std::scalbn(1.0, format.max_exponent + 1);
  return overflows ? std::copysign(kInfinity, value) : rounded;
}

std::vector<double> Rotate(const Rope& rope,
                           const RotaryPlace& place,
                           std::span<const double> vector) {
  std::vector<double> rotated(vector.begin(), vector.end());
  const int pairs = rope.rotary_dim / 2;
  for (int pair = 0; pair < pairs; ++pair) {
    double cosine = 0.0;
    double sine = 0.0;
    if (rope.cos_table.empty()) {
      const double angle = static_cast<double>(place.id) * rope.inv_freq.at(pair);
      cosine = std::cos(angle);
      sine = std::sin(angle);
    } else {
      cosine = rope.cos_table.at(place.id * pairs + pair);
      sine = rope.sin_table.at(place.id * pairs + pair);
    }
    const bool half = rope.pairing == Pairing::kHalf;
    const int first = half ? pair : 2 * pair;
    const int second = half ? pair + pairs : 2 * pair + 1;
    const double x = vector[first];
    const double y = vector[second];
    rotated[first] = place.scaling * (x * cosine - y * sine);
    rotated[second] = place.scaling * (y * cosine + x * sine);
  }
  return rotated;
}

RotatedRows::RotatedRows(const Model& model, int heads, std::span<const double> rows)
    : model_(model),
      heads_(heads),
      rows_(rows) {
  entries_.resize(rows.size() / (static_cast<size_t>(heads) * model.head_dim));
}

std::span<const double> RotatedRows::At(int64_t token, const RotaryPlace& place) {
  Entry& entry = entries_.at(token);
  if (!entry.rotated.empty() && entry.place == place) return entry.rotated;
  entry.place = place;
  entry.rotated.clear();
  for (int head = 0; head < heads_; ++head) {
    const auto vector = rows_.subspan((token * heads_ + head) * model_.head_dim, model_.head_dim);
    for (const double element : Rotate(model_.rope, place, vector)) {
      entry.rotated.push_back(RoundTo(model_.kv_dtype, element));
    }
  }
  return entry.rotated;
}

double Dot(std::span<const double> left, std::span<const double> right) {
  double sum = 0.0;
  for (size_t dim = 0; dim < left.size(); ++dim) sum += left[dim] * right[dim];
  return sum;
}

double Logit(const Model& model, double dot) {
  const double scaled = model.scale * dot;
  if (model.soft_cap == 0.0) return scaled;
  return model.soft_cap * std::tanh(scaled / model.soft_cap);
}

double LogSumExp(std::span<const double> values) {
  double largest = -kInfinity;
  for (const double value : values) largest = std::max(largest, value);
  if (largest == -kInfinity) return largest;
  double sum = 0.0;
  for (const double value : values) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

void AttendOnce(const Model& model,
                int head,
                std::span<const double> logits,
                std::span<const std::span<const double>> values,
                Attention& attention) {
  std::vector<double> terms(logits.begin(), logits.end());
  if (!model.sink_logits.empty()) terms.push_back(model.sink_logits.at(head));
  const double lse = LogSumExp(terms);

  std::vector<double> out(model.head_dim, 0.0);
  for (size_t key = 0; key < logits.size(); ++key) {
    const double weight = std::exp(logits[key] - lse);
    for (int dim = 0; dim < model.head_dim; ++dim) out[dim] += weight * values[key][dim];
  }
  attention.out.insert(attention.out.end(), out.begin(), out.end());
  attention.lse.push_back(lse);
}

Attention DenseAttention(const Model& model,
                         int64_t position,
                         std::span<const double> queries,
                         std::span<const double> keys,
                         std::span<const double> values) {
  const int dim = model.head_dim;
  const double scaling = model.rope.attention_scaling;
  const auto rows = static_cast<int64_t>(queries.size()) / (model.heads * dim);
  if (static_cast<int64_t>(keys.size()) < (position + rows) * model.kv_heads * dim) {
    throw std::invalid_argument("dense attention of " + std::to_string(rows) + " rows at " +
                                std::to_string(position) + " needs the keys of the rows too");
  }
  RotatedRows rotated_queries(model, model.heads, queries);
  RotatedRows rotated_keys(model, model.kv_heads, keys);

  Attention attention;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t last = position + row;
    const bool slides = model.sliding_window > 0 && last >= model.sliding_window;
    const int64_t first = slides ? last - model.sliding_window + 1 : 0;
    for (int head = 0; head < model.heads; ++head) {
      const int kv_head = head / (model.heads / model.kv_heads);
      const auto query = rotated_queries.At(row, {last, scaling}).subspan(head * dim, dim);
      std::vector<double> logits;
      std::vector<std::span<const double>> seen;
      for (int64_t token = first; token <= last; ++token) {
        const auto key = rotated_keys.At(token, {token, scaling}).subspan(kv_head * dim, dim);
        logits.push_back(Logit(model, Dot(query, key)));
        seen.push_back(values.subspan((token * model.kv_heads + kv_head) * dim, dim));
      }
      AttendOnce(model, head, logits, seen, attention);
    }
  }
  return attention;
}

}  // namespace longshore::oracle
