#include "client/cpp/ctl/reference_attention.h"

#include <algorithm>
#include <cmath>

namespace longshore::ctl {

void ReferenceAttention::Rotate(int64_t position, std::span<double> head) const {
  if (model_.rope_tables.empty()) {
    return;
  }
  const client::RopeTable& table = model_.rope_tables.front();
  const size_t pairs = table.inv_freq.size();
  for (size_t pair = 0; pair < pairs; ++pair) {
    const bool half = table.pairing == client::RopePairing::kHalf;
    double& x = head[half ? pair : 2 * pair];
    double& y = head[half ? pair + pairs : 2 * pair + 1];
    const double angle = static_cast<double>(position) * table.inv_freq[pair];
    const double cosine = std::cos(angle) * table.attention_scaling;
    const double sine = std::sin(angle) * table.attention_scaling;
    const double turned = x * cosine - y * sine;
    y = x * sine + y * cosine;
    x = turned;
  }
}

void ReferenceAttention::Append(std::span<const float> k, std::span<const float> v) {
  const auto dim = static_cast<size_t>(model_.head_dim);
  const size_t begin = keys_.size();
  keys_.insert(keys_.end(), k.begin(), k.end());
  values_.insert(values_.end(), v.begin(), v.end());
  const size_t row_size = dim * static_cast<size_t>(model_.num_kv_heads);
  for (size_t at = begin; at < keys_.size(); at += dim) {
    Rotate(static_cast<int64_t>(at / row_size), std::span(keys_).subspan(at, dim));
  }
  tokens_ = static_cast<int64_t>(keys_.size() / row_size);
}

double ReferenceAttention::AttendHead(std::span<const double> query,
                                      int64_t last,
                                      int32_t kv_head,
                                      std::span<double> out) const {
  const auto dim = static_cast<size_t>(model_.head_dim);
  const double scale = model_.softmax_scale == 0.0F ? 1.0 / std::sqrt(model_.head_dim)
                                                    : static_cast<double>(model_.softmax_scale);
  const double cap = model_.logit_soft_cap;
  const auto offset_of = [&](int64_t token) {
    return static_cast<size_t>(token * model_.num_kv_heads + kv_head) * dim;
  };
  std::vector<double> scores(static_cast<size_t>(last + 1));
  for (int64_t token = 0; token <= last; ++token) {
    double dot = 0;
    for (size_t element = 0; element < dim; ++element) {
      dot += query[element] * keys_[offset_of(token) + element];
    }
    scores[static_cast<size_t>(token)] =
        cap == 0 ? scale * dot : cap * std::tanh(scale * dot / cap);
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double denominator = 0;
  std::fill(out.begin(), out.end(), 0.0);
  for (int64_t token = 0; token <= last; ++token) {
    const double weight = std::exp(scores[static_cast<size_t>(token)] - largest);
    denominator += weight;
    for (size_t element = 0; element < dim; ++element) {
      out[element] += weight * values_[offset_of(token) + element];
    }
  }
  for (double& element : out) {
    element /= denominator;
  }
  return largest + std::log(denominator);
}

ReferenceAttention::Result ReferenceAttention::Attend(int64_t position,
                                                      std::span<const float> q) const {
  const auto dim = static_cast<size_t>(model_.head_dim);
  const auto heads = static_cast<size_t>(model_.num_heads);
  const size_t rows = q.size() / (heads * dim);
  Result result{.out = std::vector<double>(q.size()),
                .log_sum_exp = std::vector<double>(rows * heads)};
  for (size_t row = 0; row < rows; ++row) {
    const int64_t last = position + static_cast<int64_t>(row);
    for (size_t head = 0; head < heads; ++head) {
      const size_t at = (row * heads + head) * dim;
      std::vector<double> query(q.begin() + static_cast<std::ptrdiff_t>(at),
                                q.begin() + static_cast<std::ptrdiff_t>(at + dim));
      Rotate(last, query);
      const auto kv_head = static_cast<int32_t>(head) * model_.num_kv_heads / model_.num_heads;
      result.log_sum_exp[row * heads + head] =
          AttendHead(query, last, kv_head, std::span(result.out).subspan(at, dim));
    }
  }
  return result;
}

}  // namespace longshore::ctl
