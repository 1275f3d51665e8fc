// Two sessions that each hold a part of the tokens give, merged by their log-sum-exp, what one
// gives that holds all of them: what `exclude_sink_logits` and the definition of log-sum-exp are
// for (design section 3).

#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/engine_session.h"
#include "tests/support/judge.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

// No rotary embedding: a token is the same wherever it stands.
ModelShape WithSinks(DType dtype) {
  ModelShape model = TestModel(4, 2);
  model.query_dtype = dtype;
  model.kv_dtype = dtype;
  model.rope_tables.clear();
  model.layer_rope_table = {-1};
  model.sink_logits = {6.0F, -2.0F, 0.0F, 9.0F};
  model.logit_soft_cap = 20.0F;
  return model;
}

// lse = log(exp(a) + exp(b)); out = exp(a - lse) out_a + exp(b - lse) out_b, by row and head.
StepOutput Merge(const StepOutput& a, const StepOutput& b) {
  StepOutput merged = a;
  const size_t depth = a.out.size() / a.log_sum_exp.size();
  for (size_t head = 0; head < a.log_sum_exp.size(); ++head) {
    const double lse = std::log(std::exp(a.log_sum_exp[head]) + std::exp(b.log_sum_exp[head]));
    merged.log_sum_exp[head] = lse;
    for (size_t dim = head * depth; dim < (head + 1) * depth; ++dim) {
      merged.out[dim] = std::exp(a.log_sum_exp[head] - lse) * a.out[dim] +
                        std::exp(b.log_sum_exp[head] - lse) * b.out[dim];
    }
  }
  return merged;
}

// `rows` tokens, the last of which has the query of `query`.
TokenRows WithQueryOf(TokenRows rows, const TokenRows& query) {
  rows.q = query.q;
  return rows;
}

class MergeTest : public ::testing::TestWithParam<DType> {};

TEST_P(MergeTest, TwoPartsAreTheWhole) {
  const auto engine = MakeTestEngine();
  const ModelShape model = WithSinks(GetParam());
  Random random;
  for (const auto& [tokens, cut] : {std::pair{2, 1}, {300, 200}, {300, 1}, {129, 64}}) {
    SCOPED_TRACE(cut);
    const TokenRows all = RandomTokens(model, tokens, ValueKind::kGaussian, &random);
    const TokenRows last = Slice(model, all, tokens - 1, tokens);
    const auto run = [&](int64_t begin, int64_t end, bool exclude_sink_logits) {
      EngineSession session(engine.get(), TestSpec(model, SmallDense(), 320));
      if (end - begin > 1) {
        session.Append(Slice(model, all, begin, end - 1));
      }
      const TokenRows row = WithQueryOf(Slice(model, all, end - 1, end), last);
      return *session.Run(StepKind::kDecode, row, 0, {.exclude_sink_logits = exclude_sink_logits});
    };
    const StepOutput whole = run(0, tokens, false);
    const StepOutput merged = Merge(run(0, cut, true), run(cut, tokens, false));
    Strictness strictness = StrictnessOf(model);
    strictness.out.max_abs *= 2;  // each part is rounded, and the whole
    strictness.out.nmse *= 4;
    EXPECT_TRUE(IsClose("out", {{1, model.num_heads, model.head_dim}}, merged.out, whole.out,
                        strictness.out));
    EXPECT_TRUE(IsClose("log_sum_exp", {{1, model.num_heads}}, merged.log_sum_exp,
                        whole.log_sum_exp, {.nmse = 1.0, .max_abs = strictness.log_sum_exp}));
    // A sink that is counted twice shows.
    const StepOutput twice = Merge(run(0, cut, false), run(cut, tokens, false));
    EXPECT_FALSE(IsClose("log_sum_exp", {{1, model.num_heads}}, twice.log_sum_exp,
                         whole.log_sum_exp, {.nmse = 1.0, .max_abs = 0.01}));
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes,
                         MergeTest,
                         ::testing::Values(DType::kF32, DType::kBf16, DType::kF16),
                         [](const auto& test) { return std::string(NameOf(test.param)); });

}  // namespace
}  // namespace longshore
