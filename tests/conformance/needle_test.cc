// A planted key must be found, wherever it lies and whatever other heads do.

#include <algorithm>
#include <cmath>

#include <absl/strings/str_cat.h>

#include "tests/conformance/conformance_case.h"
#include "tests/support/judge.h"

namespace longshore {
namespace {

constexpr int64_t kContext = 1000;
constexpr int32_t kHeadDim = 64;
constexpr double kNeedleValue = 3.0;

class NeedleTest : public ::testing::TestWithParam<std::string> {};

// A key that points where `query` does, of logit `logit` against it.
void Plant(const ModelShape& model,
           int64_t token,
           std::span<const double> query,
           double logit,
           TokenRows* rows) {
  double squares = 0.0;
  for (const double element : query) squares += element * element;
  const int64_t width = int64_t{model.num_kv_heads} * model.head_dim;
  for (int32_t dim = 0; dim < model.head_dim; ++dim) {
    rows->k[static_cast<size_t>(token * width + dim)] =
        query[static_cast<size_t>(dim)] * logit / (squares * double{model.softmax_scale});
    rows->v[static_cast<size_t>(token * width + dim)] = kNeedleValue;
  }
}

// The query of head `head` in the last row.
std::span<double> LastQuery(const ModelShape& model, int32_t head, TokenRows* rows) {
  return std::span(rows->q).subspan(
      static_cast<size_t>(((rows->tokens - 1) * model.num_heads + head) * model.head_dim),
      static_cast<size_t>(model.head_dim));
}

// Tokens whose logit against the last row's query of `head` is above `logit`.
int64_t TokensAbove(const ModelShape& model, int32_t head, double logit, TokenRows* rows) {
  const std::span<const double> query = LastQuery(model, head, rows);
  int64_t above = 0;
  for (int64_t token = 0; token < rows->tokens; ++token) {
    double dot = 0.0;
    for (int64_t dim = 0; dim < model.head_dim; ++dim) {
      dot += query[static_cast<size_t>(dim)] *
             rows->k[static_cast<size_t>(token * model.head_dim + dim)];
    }
    above += dot * double{model.softmax_scale} > logit ? 1 : 0;
  }
  return above;
}

// Whether the finest stage keeps the chunk that `token` is in.
bool Keeps(const LayerSelection& selection, int32_t chunk_tokens, int64_t token) {
  const std::vector<int32_t>& chosen = selection.stages.back();
  return std::any_of(chosen.begin(), chosen.end(), [&](int32_t first) {
    return token >= first && token < int64_t{first} + chunk_tokens;
  });
}

// Without rotation: what is planted along the query is what the query finds, at any distance.
ModelShape NeedleModel(int32_t num_heads, int64_t trained_tokens) {
  ModelShape model = TestModel(num_heads, 1, kHeadDim);
  model.rope_tables = {IdentityRope(kHeadDim, trained_tokens)};
  return model;
}

TEST_P(NeedleTest, IsFoundAtEveryDepth) {
  const auto engine = MakeTestEngine(GetParam());
  for (const int64_t trained : {kNeverBeyond, int64_t{1}}) {
    for (int64_t depth = 0; depth < kContext; depth += 61) {
      SCOPED_TRACE(absl::StrCat("needle at ", depth, ", trained to ", trained));
      const ModelShape model = NeedleModel(2, trained);
      Random random(static_cast<uint32_t>(depth));
      TokenRows rows = RandomTokens(model, kContext, ValueKind::kGaussian, &random);
      Plant(model, depth, LastQuery(model, 1, &rows), 14.0, &rows);
      EngineSession session(engine.get(), TestSpec(model, SmallStandard(), kContext));
      session.Append(Slice(model, rows, 0, kContext - 1));
      const StepOutput output = session.Decode(Slice(model, rows, kContext - 1, kContext));
      const LayerSelection selection = session.Selection();
      const bool in_middle = depth >= 64 && depth < selection.mask.middle_end;
      EXPECT_EQ(Keeps(selection, 8, depth), in_middle);
      for (int32_t dim = 0; dim < kHeadDim; ++dim) {
        // exp(14) against about 300 keys of about exp(0.5): all but 1e-3 of head 1's attention.
        ASSERT_NEAR(output.out[static_cast<size_t>(kHeadDim + dim)], kNeedleValue, 0.02);
      }
      ASSERT_TRUE(engine->Close(session.id()).ok());
    }
  }
}

// Head 0's logits are thirty times larger and prefer other tokens. By raw scores it would take the
// whole budget; as log-probabilities the needle of head 1 is nearly certain.
TEST_P(NeedleTest, SurvivesHugeLogitsOfAnotherHead) {
  const auto engine = MakeTestEngine(GetParam());
  for (const int64_t trained : {kNeverBeyond, int64_t{1}}) {
    for (int64_t depth = 64; depth < kContext - 128; depth += 163) {
      SCOPED_TRACE(absl::StrCat("needle at ", depth, ", trained to ", trained));
      const ModelShape model = NeedleModel(2, trained);
      Random random(static_cast<uint32_t>(depth));
      TokenRows rows = RandomTokens(model, kContext, ValueKind::kGaussian, &random);
      Plant(model, depth, LastQuery(model, 1, &rows), 14.0, &rows);
      for (double& element : LastQuery(model, 0, &rows)) element *= 30.0;
      Judge judge(engine.get(), TestSpec(model, SmallStandard(), kContext),
                  StrictnessOf(model, 30.0));
      judge.Append(Slice(model, rows, 0, kContext - 1));
      judge.Decode(Slice(model, rows, kContext - 1, kContext));
      EXPECT_TRUE(Keeps(judge.session().Selection(), 8, depth));
      EXPECT_GT(TokensAbove(model, 0, 14.0, &rows), 64) << "raw scores would find the needle too";
      ASSERT_TRUE(engine->Close(judge.session().id()).ok());
    }
  }
}

// A prompt whose pieces do not end at blocks' ends: the two parts of a split block select on their
// own, and each finds the needle of its rows.
TEST_P(NeedleTest, IsFoundHoweverThePromptIsCut) {
  const auto engine = MakeTestEngine(GetParam());
  const ModelShape model = NeedleModel(1, kNeverBeyond);
  for (const int64_t piece : {1, 63, 65, 64, 192}) {
    SCOPED_TRACE(absl::StrCat("pieces of ", piece));
    Random random;
    TokenRows rows = RandomTokens(model, 700, ValueKind::kGaussian, &random);
    Plant(model, 300, LastQuery(model, 0, &rows), 14.0, &rows);
    EngineSession session(engine.get(), TestSpec(model, SmallStandard(), 700));
    StepOutput output;
    for (int64_t begin = 0; begin < 700; begin += piece) {
      output = session.Prefill(Slice(model, rows, begin, std::min<int64_t>(begin + piece, 700)));
    }
    EXPECT_TRUE(Keeps(session.Selection(), 8, 300));
    for (int32_t dim = 0; dim < kHeadDim; ++dim) {
      ASSERT_NEAR(output.out[output.out.size() - static_cast<size_t>(kHeadDim - dim)], kNeedleValue,
                  0.02);
    }
    ASSERT_TRUE(engine->Close(session.id()).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, NeedleTest, ::testing::ValuesIn(TestBackends()));

}  // namespace
}  // namespace longshore
