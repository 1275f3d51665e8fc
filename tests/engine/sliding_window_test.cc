// Layers with a sliding window: what they free, keep for a replay, and refuse to go back to.

#include <algorithm>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/session_size.h"
#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kWindow = 100;
constexpr int64_t kMaxRows = 128;
constexpr int64_t kMaxTokens = 4096;
constexpr int64_t kPage = 2 * 64 * 64 * 4;
// The window and two calls, and a page for where they begin: ceil((100 + 256) / 64) + 1.
constexpr int64_t kMostPages = 7;

EngineOptions Options(int64_t pool_bytes = int64_t{64} << 20) {
  EngineOptions options;
  options.pool_bytes = pool_bytes;
  options.max_rows_per_prefill = kMaxRows;
  return options;
}

std::unique_ptr<Engine> MakeEngine(const EngineOptions& options = Options()) {
  return *Engine::Create(options, MakeTestBackend());
}

ModelShape Sliding(int64_t window = kWindow) {
  ModelShape model = TestModel(2, 1);
  model.layer_sliding_window = {window};
  return model;
}

SessionSpec Spec(const ModelShape& model, bool overcommit = false) {
  SessionSpec spec = TestSpec(model, SmallStandard(), kMaxTokens);
  spec.overcommit = overcommit;
  return spec;
}

TEST(SlidingWindow, FreesWhatItHasLeftBehind) {
  for (const bool overcommit : {false, true}) {
    const auto engine = MakeEngine();
    EngineSession session(engine.get(), Spec(Sliding(), overcommit));
    Random random;
    for (int32_t call = 0; call < 12; ++call) {
      session.Prefill(RandomTokens(session.model(), kMaxRows, ValueKind::kGaussian, &random));
      const SessionState state = StateOf(*engine, session.id());
      // From the first token that the last call saw to the end.
      const int64_t tokens = session.Tokens();
      const int64_t first = std::max(int64_t{0}, tokens - kMaxRows - kWindow + 1) / 64;
      EXPECT_EQ(state.page_bytes_used, (tokens / 64 - first) * kPage);
      const int64_t promised = overcommit ? state.page_bytes_used : kMostPages * kPage;
      EXPECT_EQ(state.page_bytes_used + state.page_bytes_reserved, promised);
      EXPECT_EQ(state.pool_free_bytes, engine->pool_usage().total_bytes - promised);
    }
    ASSERT_TRUE(engine->Close(session.id()).ok());
    EXPECT_EQ(engine->pool_usage().free_bytes, engine->pool_usage().total_bytes);
  }
}

TEST(SlidingWindow, ReservesNoMoreThanItCanHold) {
  const auto pages = [](int64_t window, int64_t max_tokens) {
    SessionSpec spec = TestSpec(Sliding(window), SmallStandard(), max_tokens);
    return LayerPages(spec, 0, Options());
  };
  EXPECT_EQ(pages(kWindow, kMaxTokens), kMostPages);
  EXPECT_EQ(pages(kWindow, 300), 5);  // as many as a layer without
  EXPECT_EQ(pages(0, kMaxTokens), 64);
  EXPECT_EQ(pages(kMaxTokens, kMaxTokens), 64);
  EXPECT_EQ(pages(std::numeric_limits<int64_t>::max(), kMaxTokens), 64);
  ModelShape two = TestModel(2, 1);
  two.num_layers = 2;
  two.layer_rope_table = {0, 0};
  two.layer_sliding_window = {kWindow, 0};
  EXPECT_EQ(SessionPages(TestSpec(two, SmallStandard(), kMaxTokens), Options()), kMostPages + 64);
}

// Whatever the calls: the promise covers them.
TEST(SlidingWindow, ThePromiseIsEnoughForEveryCutOfTheRows) {
  const auto engine = MakeEngine();
  Random random;
  for (const int64_t window : {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{65}, kWindow}) {
    const ModelShape model = Sliding(window);
    EngineSession session(engine.get(), Spec(model));
    const SessionState opened = StateOf(*engine, session.id());
    while (session.Tokens() < kMaxTokens) {
      const int64_t rows = std::min(kMaxTokens - session.Tokens(), random.Uniform(1, kMaxRows));
      session.Append(RandomTokens(model, rows, ValueKind::kIntegers, &random));
      const SessionState state = StateOf(*engine, session.id());
      ASSERT_EQ(state.page_bytes_used + state.page_bytes_reserved, opened.page_bytes_reserved);
      ASSERT_GE(state.page_bytes_reserved, 0);
    }
    ASSERT_TRUE(engine->Close(session.id()).ok());
  }
}

// Also where a decode step may have more rows than a prefill.
TEST(SlidingWindow, ThePromiseCoversTheLargestStep) {
  EngineOptions options = Options();
  options.max_rows_per_prefill = 1;
  options.max_rows_per_decode_item = 1000;
  const auto engine = MakeEngine(options);
  EngineSession session(engine.get(), Spec(Sliding()));
  Random random;
  while (session.Tokens() + 1000 <= kMaxTokens) {
    session.Decode(RandomTokens(session.model(), 1000, ValueKind::kIntegers, &random));
    ASSERT_GE(StateOf(*engine, session.id()).page_bytes_reserved, 0);
  }
}

// Pages that a window frees go to another session at once, and neither sees the other's tokens.
TEST(SlidingWindow, FreedPagesServeOtherSessions) {
  const ModelShape model = Sliding();
  const auto engine = MakeEngine(Options(int64_t{8} << 20));
  const auto roomy = MakeEngine();
  EngineSession first(engine.get(), Spec(model, true));
  EngineSession second(engine.get(), Spec(model, true));
  EngineSession alone(roomy.get(), Spec(model, true));
  Random random;
  const TokenRows rows = RandomTokens(model, 1280, ValueKind::kGaussian, &random);
  for (int64_t row = 0; row < rows.tokens; row += kMaxRows) {
    const TokenRows piece = Slice(model, rows, row, row + kMaxRows);
    const StepOutput expected = alone.Prefill(piece);
    EXPECT_TRUE(IsSameBits(first.Prefill(piece), expected));
    second.Prefill(RandomTokens(model, kMaxRows, ValueKind::kGaussian, &random));
  }
}

TEST(SlidingWindow, TheLastCallCanBeReplayed) {
  const auto engine = MakeEngine();
  const ModelShape model = Sliding();
  EngineSession session(engine.get(), Spec(model));
  Random random;
  for (const int64_t rows : {kMaxRows, kMaxRows, int64_t{7}, kMaxRows, int64_t{64}}) {
    const StepOutput output =
        session.Prefill(RandomTokens(model, rows, ValueKind::kGaussian, &random));
    EXPECT_TRUE(IsSameBits(session.Replay(), output));
    // A refused call in between changes nothing.
    TokenRows bad = RandomTokens(model, 10, ValueKind::kGaussian, &random);
    bad.k[5] = std::numeric_limits<double>::quiet_NaN();
    const SessionState before = StateOf(*engine, session.id());
    const std::vector<CallPart> parts = {
        {.session_id = session.id(), .position = session.Tokens(), .append_id = 99, .rows = bad}};
    EXPECT_EQ(DetailsOf(RunCall(engine.get(), StepKind::kPrefill, 0, parts).status())->reason,
              "NON_FINITE");
    EXPECT_TRUE(StateOf(*engine, session.id()) == before);
    EXPECT_TRUE(IsSameBits(session.Replay(), output));
  }
}

TEST(SlidingWindow, TruncatesToWhatItStillHas) {
  const ModelShape model = Sliding();
  Random random;
  const TokenRows rows = RandomTokens(model, 512, ValueKind::kGaussian, &random);
  const TokenRows next = RandomTokens(model, 20, ValueKind::kGaussian, &random);
  // The last call began at 384, and saw from 285 on: pages from 256 on are there.
  for (const int64_t cut : {0, 355, 384, 511, 512}) {
    SCOPED_TRACE(cut);
    const auto engine = MakeEngine();
    EngineSession session(engine.get(), Spec(model));
    EngineSession fresh(engine.get(), Spec(model));
    for (int64_t row = 0; row < rows.tokens; row += kMaxRows) {
      session.Prefill(Slice(model, rows, row, row + kMaxRows));
      if (row < cut) {
        fresh.Prefill(Slice(model, rows, row, std::min(cut, row + kMaxRows)));
      }
    }
    ASSERT_TRUE(engine->Truncate(session.id(), cut).ok());
    EXPECT_TRUE(IsSameBits(session.Decode(next), fresh.Decode(next)));
    if (cut == 0) {
      EXPECT_EQ(StateOf(*engine, session.id()).page_bytes_used, kPage);
    }
  }
}

TEST(SlidingWindow, RefusesToGoBackToWhatItHasFreed) {
  const auto engine = MakeEngine();
  ModelShape model = TestModel(2, 1);
  model.num_layers = 3;
  model.layer_rope_table = {0, 0, 0};
  model.layer_sliding_window = {0, 64, kWindow};
  EngineSession session(engine.get(), Spec(model));
  Random random;
  for (int32_t call = 0; call < 4; ++call) {
    for (int32_t layer = 0; layer < 3; ++layer) {
      session.Append(RandomTokens(model, kMaxRows, ValueKind::kIntegers, &random), layer);
    }
  }
  // The last call began at 384, so layer 1 saw from 321 on, layer 2 from 285: pages from 320 and
  // 256.
  const SessionState before = StateOf(*engine, session.id());
  for (const int64_t position : {1, 300, 382}) {
    const absl::Status status = engine->Truncate(session.id(), position).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("position ", position,
                                       " is below 383, the earliest besides "
                                       "0 that layer 1 can go back to: it sees 64 tokens")));
    EXPECT_EQ(DetailsOf(status)->reason, "TOKENS_EXPIRED");
    EXPECT_EQ(DetailsOf(status)->field, "position");
    EXPECT_EQ(DetailsOf(status)->metadata[0].second, "383");
    EXPECT_TRUE(StateOf(*engine, session.id()) == before);
  }
  EXPECT_TRUE(engine->Truncate(session.id(), 383).ok());
}

}  // namespace
}  // namespace longshore
