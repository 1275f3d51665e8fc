// Which keys a decode step attends to, read off its output and nothing else: values are one-hot, so
// an output element is the weight of one token. 64 elements tell 64 tokens apart, so a context is
// held by as many sessions as it has groups of 64, alike but for their values.

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

constexpr int64_t kMaxTokens = 560;
constexpr int64_t kDepth = 64;

ModelShape OneHead() {
  ModelShape model = TestModel(1, 1, kDepth);
  model.rope_tables = {IdentityRope(kDepth)};  // so that a score is scale * q.k
  return model;
}

class Witnesses {
 public:
  explicit Witnesses(const AttentionPolicy& policy) : engine_(MakeTestEngine()), policy_(policy) {
    for (int64_t group = 0; group * kDepth < kMaxTokens; ++group) {
      sessions_.emplace_back(engine_.get(), TestSpec(OneHead(), policy, kMaxTokens));
    }
  }

  void Append(int64_t count) {
    const TokenRows rows = Next(count);
    for (size_t group = 0; group < sessions_.size(); ++group) {
      sessions_[group].Append(WithValues(rows, group));
    }
  }

  // One token; its weights of all tokens, its own included.
  std::vector<double> Decode() {
    const TokenRows rows = Next(1);
    query_ = rows.q;
    std::vector<double> weights;
    for (size_t group = 0; group < sessions_.size(); ++group) {
      const StepOutput output = sessions_[group].Decode(WithValues(rows, group));
      weights.insert(weights.end(), output.out.begin(), output.out.end());
    }
    EXPECT_EQ(std::count(weights.begin() + Tokens(), weights.end(), 0.0),
              std::ssize(weights) - Tokens())
        << "a weight of a token that is not there";
    weights.resize(static_cast<size_t>(Tokens()));
    return weights;
  }

  // What the policy and the mask say that the last token attends to.
  std::set<int64_t> Expected() const {
    std::set<int64_t> tokens;
    const LayerSelection selection = sessions_[0].Selection();
    const LayerPolicy& layers = policy_.decode.rest;
    int64_t window = layers.middle == Middle::kDense ? 0 : Tokens() - layers.window_tokens;
    if (layers.middle == Middle::kStages) {
      EXPECT_TRUE(selection.mask.valid);
      EXPECT_LE(selection.mask.middle_end, std::max(window, policy_.sink_tokens));
      window = selection.mask.middle_end;
      for (const int32_t first : selection.stages.back()) {
        for (int32_t token = 0; token < layers.stages.back().chunk_tokens; ++token) {
          tokens.insert(first + token);
        }
      }
    }
    for (int64_t token = 0; token < Tokens(); ++token) {
      if (token < policy_.sink_tokens || token >= window) {
        tokens.insert(token);
      }
    }
    return tokens;
  }

  // exp(scale q.k) of the last query and every key.
  double Share(int64_t token) const {
    const auto key = keys_.begin() + token * kDepth;
    return std::exp(std::inner_product(query_.begin(), query_.end(), key, 0.0) / 8.0);
  }
  int64_t Tokens() const { return sessions_[0].Tokens(); }

 private:
  TokenRows Next(int64_t count) {
    TokenRows rows = RandomTokens(OneHead(), count, ValueKind::kIntegers, &random_);
    keys_.insert(keys_.end(), rows.k.begin(), rows.k.end());
    return rows;
  }

  TokenRows WithValues(TokenRows rows, size_t group) const {
    std::fill(rows.v.begin(), rows.v.end(), 0.0);
    for (int64_t row = 0; row < rows.tokens; ++row) {
      const int64_t element = Tokens(group) + row - static_cast<int64_t>(group) * kDepth;
      if (element >= 0 && element < kDepth) {
        rows.v[static_cast<size_t>(row * kDepth + element)] = 1.0;
      }
    }
    return rows;
  }
  int64_t Tokens(size_t group) const { return sessions_[group].Tokens(); }

  std::unique_ptr<Engine> engine_;
  AttentionPolicy policy_;
  Random random_;
  std::vector<EngineSession> sessions_;  // one a group
  std::vector<double> keys_;             // [tokens, kDepth]
  std::vector<double> query_;            // [kDepth]
};

// Every token of the regions once, with its share of their sum, and no other.
void ExpectAttendsToItsRegionsOnce(const AttentionPolicy& policy, int64_t context) {
  Witnesses witnesses(policy);
  witnesses.Append(context);
  while (witnesses.Tokens() < kMaxTokens && !::testing::Test::HasFailure()) {
    const std::vector<double> weights = witnesses.Decode();
    const std::set<int64_t> expected = witnesses.Expected();
    double sum = 0;
    for (const int64_t token : expected) {
      sum += witnesses.Share(token);
    }
    for (int64_t token = 0; token < witnesses.Tokens(); ++token) {
      const double share = expected.contains(token) ? witnesses.Share(token) / sum : 0.0;
      EXPECT_NEAR(weights[static_cast<size_t>(token)], share, 1e-5 * share)
          << "token " << token << " of " << witnesses.Tokens() << ", seed " << TestSeed();
    }
  }
}

TEST(AttendedKeys, OfTwoStages) { ExpectAttendsToItsRegionsOnce(SmallStandard(), 460); }

TEST(AttendedKeys, OfOneStage) {
  ExpectAttendsToItsRegionsOnce(OneStage(1, 5, 3), 480);
  ExpectAttendsToItsRegionsOnce(OneStage(4, 64, 7), 480);
}

TEST(AttendedKeys, OfTheFirstToken) {
  EXPECT_EQ(Witnesses(SmallDense()).Decode(), std::vector<double>{1.0});
}

TEST(AttendedKeys, OfStreaming) { ExpectAttendsToItsRegionsOnce(SmallStreaming(), 500); }

TEST(AttendedKeys, OfDense) { ExpectAttendsToItsRegionsOnce(SmallDense(), 500); }

}  // namespace
}  // namespace longshore
