#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/policy.h"
#include "tests/support/random_tokens.h"
#include "tests/support/test_model.h"

namespace longshore {

inline constexpr int32_t kHeads = 4;
inline constexpr int32_t kKvHeads = 2;
inline constexpr int32_t kDepth = 64;
inline constexpr int64_t kContext = 600;
inline constexpr int64_t kSteps = 6;

/// One layer, whose scores are scale * q.k at any distance.
inline ModelShape PlainModel() {
  ModelShape model = TestModel(kHeads, kKvHeads, kDepth);
  model.rope_tables.clear();
  model.layer_rope_table = {-1};
  return *NormalizeModelShape(model);
}

/// `exact` stages that are fresh in every step and keep `chunks` chunks of 8 tokens.
inline AttentionPolicy Policy(int32_t chunks, Ranking ranking) {
  AttentionPolicy policy = OneStage(8, 8 * chunks, 1);
  policy.ranking = ranking;
  return policy;
}

/// Each query head wants one token of the middle, its needle, and head 0 wants it most.
struct Haystack {
  TokenRows context;
  std::vector<TokenRows> steps;
};

inline Haystack MakeHaystack() {
  Random random;
  Haystack made;
  const ModelShape model = PlainModel();
  made.context = RandomTokens(model, kContext, ValueKind::kGaussian, &random);
  for (int64_t step = 0; step < kSteps; ++step) {
    made.steps.push_back(RandomTokens(model, 1, ValueKind::kGaussian, &random));
  }
  for (int64_t head = 0; head < kHeads; ++head) {
    const int64_t needle = 100 + 90 * head;
    const int64_t kv_head = head / (kHeads / kKvHeads);
    const auto key = made.context.k.begin() + (needle * kKvHeads + kv_head) * kDepth;
    std::fill_n(key, kDepth, 0.0);
    key[head] = 8.0;
    for (TokenRows& step : made.steps) {
      step.q[static_cast<size_t>(head * kDepth + head)] = head == 0 ? 16.0 : 12.0;
    }
  }
  return made;
}

}  // namespace longshore
