#include "tests/support/random_tokens.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace longshore {
namespace {

std::vector<double> Draw(int64_t elements, ValueKind kind, Random* random) {
  std::vector<double> values(static_cast<size_t>(elements));
  for (double& value : values) {
    value = kind == ValueKind::kIntegers ? static_cast<double>(random->Uniform(-4, 4))
                                         : random->Gaussian();
  }
  return values;
}

std::vector<double> Cut(const std::vector<double>& all, int64_t width, int64_t begin, int64_t end) {
  return {all.begin() + begin * width, all.begin() + end * width};
}

}  // namespace

uint32_t TestSeed() {
  const int32_t seed = GTEST_FLAG_GET(random_seed);
  return seed == 0 ? 1 : static_cast<uint32_t>(seed);
}

Random::Random(uint32_t salt) {
  std::seed_seq sequence = {TestSeed(), salt};
  engine_.seed(sequence);
}

int64_t Random::Uniform(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(engine_);
}

TokenRows RandomTokens(const ModelShape& model, int64_t tokens, ValueKind kind, Random* random) {
  const int64_t kv_width = int64_t{model.num_kv_heads} * model.head_dim;
  TokenRows rows;
  rows.tokens = tokens;
  rows.q = Draw(tokens * model.num_heads * model.head_dim, kind, random);
  rows.k = Draw(tokens * kv_width, kind, random);
  rows.v = Draw(tokens * kv_width, kind, random);
  for (int64_t token = 1; kind == ValueKind::kEqualKeys && token < tokens; ++token) {
    std::copy_n(rows.k.begin(), kv_width, rows.k.begin() + token * kv_width);
  }
  return rows;
}

TokenRows Slice(const ModelShape& model, const TokenRows& rows, int64_t begin, int64_t end) {
  const int64_t kv_width = int64_t{model.num_kv_heads} * model.head_dim;
  return {.tokens = end - begin,
          .q = Cut(rows.q, int64_t{model.num_heads} * model.head_dim, begin, end),
          .k = Cut(rows.k, kv_width, begin, end),
          .v = Cut(rows.v, kv_width, begin, end)};
}

}  // namespace longshore
