#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "engine/model_shape.h"

namespace longshore {

/// Seed of all random test data: --gtest_random_seed or GTEST_RANDOM_SEED, 1 if neither is given.
/// Failures print it.
uint32_t TestSeed();

/// Random numbers of one test; the same seed and salt give the same numbers.
class Random {
 public:
  /// `salt` tells apart what one test draws independently.
  explicit Random(uint32_t salt = 0);

  /// In [low, high].
  int64_t Uniform(int64_t low, int64_t high);
  double Gaussian() { return gaussian_(engine_); }
  bool OneIn(int64_t cases) { return Uniform(1, cases) == 1; }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> gaussian_;
};

/// Queries, keys and values of consecutive tokens of one layer, unrotated.
struct TokenRows {
  int64_t tokens = 0;
  std::vector<double> q;  ///< [tokens, num_heads, head_dim]
  std::vector<double> k;  ///< [tokens, num_kv_heads, head_dim]
  std::vector<double> v;  ///< [tokens, num_kv_heads, head_dim]
};

enum class ValueKind : uint8_t {
  kGaussian,  ///< standard normal
  kIntegers,  ///< in [-4, 4]: dot products are exact in fp32, in any order, and so are bf16 and f16
  kEqualKeys,  ///< Gaussian, and all tokens drawn have the key of the first
};

/// Rows that belong to the layers of `model`. Not yet rounded to its dtypes.
TokenRows RandomTokens(const ModelShape& model, int64_t tokens, ValueKind kind, Random* random);

/// Tokens [begin, end) of `rows`.
TokenRows Slice(const ModelShape& model, const TokenRows& rows, int64_t begin, int64_t end);

}  // namespace longshore
