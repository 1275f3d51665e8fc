// Query blocks of other sizes, and stages whose selection several of them share: whole prefills
// beside the oracle. Selections cannot be seen block by block, so the data make them exact and
// outputs tell.

#include <gtest/gtest.h>

#include "engine/core/math.h"
#include "tests/conformance/conformance_case.h"
#include "tests/support/compare.h"
#include "tests/support/judge.h"

namespace longshore {
namespace {

struct QueryBlocks {
  const char* name;
  int32_t policy;
  int32_t coarse;
  int32_t fine;
  int64_t dense_below_tokens = 0;
  int64_t trained_tokens = kNeverBeyond;
  RopeStyle attention_beyond = RopeStyle::kStreaming;
};

void PrintTo(const QueryBlocks& blocks, std::ostream* out) { *out << blocks.name; }

class QueryBlockTest : public ::testing::TestWithParam<std::tuple<std::string, QueryBlocks>> {};

AttentionPolicy PolicyOf(const QueryBlocks& blocks) {
  AttentionPolicy policy = SmallStandard();
  policy.ranking = Ranking::kScoreMax;  // of integers: exact
  policy.query_block = blocks.policy;
  policy.dense_below_tokens = blocks.dense_below_tokens;
  policy.attention_rope.beyond_trained = blocks.attention_beyond;
  for (PhasePolicy* phase : {&policy.prefill, &policy.decode}) {
    phase->rest.stages[0].query_block = blocks.coarse;
    phase->rest.stages[1].query_block = blocks.fine;
  }
  return policy;
}

TEST_P(QueryBlockTest, PrefillsAndDecodesAsTheOracle) {
  const auto& [backend, blocks] = GetParam();
  const auto engine = MakeTestEngine(backend, 2);
  ModelShape model = TestModel(4, 2);
  model.rope_tables = {IdentityRope(64, blocks.trained_tokens)};
  const AttentionPolicy policy = PolicyOf(blocks);
  EngineSession session(engine.get(), TestSpec(model, policy, 1200));
  oracle::Layer layer(OracleModel(model, 0), OraclePolicy(policy, Phase::kDecode, 0), 0);
  Random random;
  // A prompt cut at no block's end, and decode steps from the mask that it leaves behind.
  for (const auto& [kind, rows] : {std::pair{StepKind::kPrefill, 530},
                                   {StepKind::kPrefill, 300},
                                   {StepKind::kPrefill, 77},
                                   {StepKind::kDecode, 1},
                                   {StepKind::kDecode, 1},
                                   {StepKind::kDecode, 40}}) {
    SCOPED_TRACE(session.Tokens());
    const TokenRows tokens = RandomTokens(model, rows, ValueKind::kIntegers, &random);
    const int64_t position = session.Tokens();
    const bool prefills = kind == StepKind::kPrefill;
    const oracle::Attention expected = prefills
                                           ? layer.Prefill(position, tokens.q, tokens.k, tokens.v)
                                           : layer.Decode(position, tokens.q, tokens.k, tokens.v);
    const auto output = session.Run(kind, tokens);
    ASSERT_TRUE(output.ok()) << output.status();
    const Strictness strictness = StrictnessOf(model, 8.0);
    EXPECT_TRUE(IsClose("out", {{rows, model.num_heads, model.head_dim}}, output->out, expected.out,
                        strictness.out));
    // What is left for decode is the last block's, by every stage.
    const LayerSelection selection = session.Selection();
    const oracle::BlockTrace& last = layer.trace().back();
    ASSERT_EQ(selection.mask.valid, !last.stages.empty());
    EXPECT_EQ(selection.mask.middle_end, last.middle_end);
    for (size_t stage = 0; stage < last.stages.size(); ++stage) {
      const std::vector<int32_t>& kept = selection.stages[stage];
      EXPECT_EQ(std::vector<int64_t>(kept.begin(), kept.end()), last.stages[stage].chosen);
      EXPECT_EQ(selection.mask.refreshed_at[stage], last.stages[stage].refresh_position);
    }
    if (::testing::Test::HasFailure()) {
      return;
    }
  }
}

// A prompt cut at multiples of the largest query block gives the same bits.
TEST_P(QueryBlockTest, CutsAtWholeBlocksChangeNothing) {
  const auto& [backend, blocks] = GetParam();
  const auto engine = MakeTestEngine(backend, 2);
  ModelShape model = TestModel(4, 2);
  model.rope_tables = {TestRope(64, blocks.trained_tokens)};
  const AttentionPolicy policy = PolicyOf(blocks);
  EngineSession whole(engine.get(), TestSpec(model, policy, 1200));
  EngineSession cut(engine.get(), TestSpec(model, policy, 1200));
  Random random;
  const TokenRows rows = RandomTokens(model, 900, ValueKind::kGaussian, &random);
  const StepOutput expected = whole.Prefill(rows);
  const int64_t piece = std::max({blocks.policy, blocks.coarse, blocks.fine});
  std::vector<std::byte> bytes;
  for (int64_t row = 0; row < rows.tokens; row += piece) {
    const StepOutput part = cut.Prefill(Slice(model, rows, row, Min(rows.tokens, row + piece)));
    bytes.insert(bytes.end(), part.out_bytes.begin(), part.out_bytes.end());
  }
  EXPECT_EQ(bytes, expected.out_bytes);
  EXPECT_EQ(StateOf(*engine, cut.id()).stages, StateOf(*engine, whole.id()).stages);
}

INSTANTIATE_TEST_SUITE_P(
    QueryBlocks,
    QueryBlockTest,
    ::testing::Combine(::testing::ValuesIn(TestBackends()),
                       ::testing::Values(QueryBlocks{"Of64", 64, 0, 0},
                                         QueryBlocks{"Of32", 32, 0, 0},
                                         QueryBlocks{"Of16", 16, 0, 0},
                                         QueryBlocks{"CoarseOf256", 64, 256, 0},
                                         QueryBlocks{"CoarseOf192FineOf64Of16", 16, 192, 64},
                                         QueryBlocks{"BothOf128", 64, 128, 128},
                                         QueryBlocks{"CoarseOf1024", 64, 1024, 0},
                                         // 600 lies within a block of the first stage: what is
                                         // before is of another style, or dense.
                                         QueryBlocks{"AcrossTheTrainedLength", 64, 256, 128, 0,
                                                     600},
                                         QueryBlocks{"AcrossDense", 32, 256, 64, 600},
                                         QueryBlocks{"DynamicExtend", 32, 128, 64, 0, 600,
                                                     RopeStyle::kDynamicExtend})),
    [](const auto& test) {
      return absl::StrCat(std::get<0>(test.param), "_", std::get<1>(test.param).name);
    });

}  // namespace
}  // namespace longshore
