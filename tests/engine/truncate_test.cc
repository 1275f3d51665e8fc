#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/compare.h"
#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

constexpr int64_t kMaxTokens = 800;

ModelShape TwoLayers() {
  ModelShape model = TestModel(2, 1);
  model.num_layers = 2;
  model.layer_rope_table = {0, 0};
  model.layer_sliding_window = {0, 0};
  return model;
}

// One session goes to 700 tokens, back to `cut` and on with other rows; another never had more
// than `cut`.
void TruncateAndGoOn(const AttentionPolicy& policy, int64_t cut, StepKind kind, int64_t rows) {
  SCOPED_TRACE(cut);
  const auto engine = MakeTestEngine();
  const ModelShape model = TestModel(2, 1);
  Random random;
  const TokenRows all = RandomTokens(model, 700, ValueKind::kGaussian, &random);
  const TokenRows next = RandomTokens(model, rows, ValueKind::kGaussian, &random);
  EngineSession truncated(engine.get(), TestSpec(model, policy, kMaxTokens));
  truncated.Append(Slice(model, all, 0, 690));
  truncated.Decode(Slice(model, all, 690, 700));
  ASSERT_TRUE(engine->Truncate(truncated.id(), cut).ok());
  EngineSession fresh(engine.get(), TestSpec(model, policy, kMaxTokens));
  if (cut > 0) {
    fresh.Append(Slice(model, all, 0, cut));
  }
  const auto output = truncated.Run(kind, next);
  const auto expected = fresh.Run(kind, next);
  ASSERT_TRUE(output.ok() && expected.ok());
  EXPECT_TRUE(IsSameBits(*output, *expected));
  EXPECT_EQ(StateOf(*engine, truncated.id()).stages, StateOf(*engine, fresh.id()).stages);
}

TEST(Truncate, GoesOnAsIfTheRowsHadNeverBeen) {
  for (const int64_t cut : {0, 1, 63, 64, 65, 300, 640, 689}) {
    TruncateAndGoOn(SmallDense(), cut, StepKind::kDecode, 5);
    TruncateAndGoOn(SmallStreaming(), cut, StepKind::kPrefill, 70);
    // A prefill selects afresh, from summaries that the new rows had to rewrite.
    TruncateAndGoOn(SmallStandard(), cut, StepKind::kPrefill, 100);
    // The mask was made at 690 or later, so it is invalid and every stage runs.
    TruncateAndGoOn(SmallStandard(), cut, StepKind::kDecode, 5);
  }
}

TEST(Truncate, KeepsMasksThatEndBeforeTheCut) {
  const auto engine = MakeTestEngine();
  const ModelShape model = TestModel(1, 1);
  EngineSession session(engine.get(), TestSpec(model, SmallStandard(), kMaxTokens));
  Random random;
  session.Append(RandomTokens(model, 512, ValueKind::kGaussian, &random));
  for (int32_t step = 0; step < 10; ++step) {  // stage 0 at 512, stage 1 at 512, 516 and 520
    session.Decode(RandomTokens(model, 1, ValueKind::kGaussian, &random));
  }
  const LayerSelection before = session.Selection();
  EXPECT_EQ(before.mask.refreshed_at[0], 512);
  EXPECT_EQ(before.mask.refreshed_at[1], 520);
  ASSERT_TRUE(engine->Truncate(session.id(), 521).ok());
  EXPECT_TRUE(session.Selection().mask == before.mask);
  EXPECT_EQ(session.Selection().stages, before.stages);
  ASSERT_TRUE(engine->Truncate(session.id(), 520).ok());
  EXPECT_FALSE(session.Selection().mask.valid);
  EXPECT_TRUE(session.Selection().stages.empty());
}

TEST(Truncate, ReturnsPagesToWhoHadThem) {
  const auto engine = MakeTestEngine();
  const ModelShape model = TwoLayers();
  constexpr int64_t kPage = 2 * 64 * 64 * 4;
  for (const bool overcommit : {false, true}) {
    SessionSpec spec = TestSpec(model, SmallStandard(), 640);
    spec.overcommit = overcommit;
    EngineSession session(engine.get(), spec);
    const int64_t promised = overcommit ? 0 : 20;
    Random random;
    session.Append(RandomTokens(model, 300, ValueKind::kIntegers, &random), 0);
    session.Append(RandomTokens(model, 129, ValueKind::kIntegers, &random), 1);
    const auto expect_pages = [&](int64_t used) {
      const SessionState state = StateOf(*engine, session.id());
      EXPECT_EQ(state.page_bytes_used, used * kPage);
      EXPECT_EQ(state.page_bytes_reserved, overcommit ? 0 : (promised - used) * kPage);
      EXPECT_EQ(state.pool_free_bytes,
                engine->pool_usage().total_bytes - (overcommit ? used : promised) * kPage);
    };
    expect_pages(5 + 3);
    ASSERT_TRUE(engine->Truncate(session.id(), 257).ok());  // cuts no page
    expect_pages(5 + 3);
    const auto lengths = engine->Truncate(session.id(), 256);
    ASSERT_TRUE(lengths.ok());
    EXPECT_EQ(*lengths, (std::vector<int64_t>{256, 129}));  // the shorter layer stays as it is
    expect_pages(4 + 3);
    ASSERT_TRUE(engine->Truncate(session.id(), 0).ok());
    expect_pages(0);
    ASSERT_TRUE(engine->Close(session.id()).ok());
    EXPECT_EQ(engine->pool_usage().free_bytes, engine->pool_usage().total_bytes);
  }
}

TEST(Truncate, RefusesPositionsThatNoLayerReaches) {
  const auto engine = MakeTestEngine();
  const ModelShape model = TwoLayers();
  EngineSession session(engine.get(), TestSpec(model, SmallStandard(), kMaxTokens));
  Random random;
  session.Append(RandomTokens(model, 40, ValueKind::kIntegers, &random), 1);
  const SessionState before = StateOf(*engine, session.id());
  for (const int64_t position : {-1, 41}) {
    const absl::Status status = engine->Truncate(session.id(), position).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(DetailsOf(status)->reason, "TRUNCATE_PAST_END");
    EXPECT_EQ(DetailsOf(status)->metadata[0].second, "40");
  }
  EXPECT_EQ(engine->Truncate(session.id() + 1, 0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(StateOf(*engine, session.id()) == before);
  EXPECT_TRUE(engine->Truncate(session.id(), 40).ok());
  EXPECT_TRUE(StateOf(*engine, session.id()) == before);
}

}  // namespace
}  // namespace longshore
