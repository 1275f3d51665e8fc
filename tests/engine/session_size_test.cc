// What a session may ask for is bounded when it is opened, before anything is made.

#include "engine/session_size.h"

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMillion = int64_t{1} << 20;

std::unique_ptr<Engine> EngineOf(const EngineOptions& options) {
  return *Engine::Create(options, MakeTestBackend());
}

// A long session that reserves no pages.
SessionSpec LongSpec(const ModelShape& model, const AttentionPolicy& policy, int64_t max_tokens) {
  SessionSpec spec = TestSpec(model, policy, max_tokens);
  spec.overcommit = true;
  return spec;
}

void ExpectRefused(const Engine& engine, const absl::Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(DetailsOf(status)->reason, "INVALID_FIELD");
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  EXPECT_EQ(engine.num_sessions(), 0);
  EXPECT_EQ(engine.table_bytes(), 0);
  EXPECT_EQ(engine.pool_usage().free_bytes, engine.pool_usage().total_bytes);
}

TEST(SessionSize, APageFitsASlab) {
  const auto engine = MakeTestEngine();
  ModelShape model = TestModel(1024, 1024, 128);
  model.rope_tables = {TestRope(128)};
  model.query_dtype = model.kv_dtype = DType::kBf16;
  ExpectRefused(*engine, engine->Open(TestSpec(model, SmallDense(), 10)).status(),
                "model.num_kv_heads 1024 of head_dim 128 in bf16 make pages of 33554432 bytes, the "
                "limit is 8388608");
  model.num_heads = model.num_kv_heads = 256;
  EXPECT_TRUE(engine->Open(TestSpec(model, SmallDense(), 10)).ok());
}

// What the parts add up to: tables of 32 pairs, 4 bytes a page and as much for the kernels' copy,
// two generations of kept chunks.
TEST(SessionSize, TablesAreWhatASessionAllocates) {
  ModelShape model = TestModel();
  model.num_layers = 2;
  model.layer_rope_table = {0, 0};
  model.layer_sliding_window = {0, 0};
  const SessionSpec spec = TestSpec(model, SmallStandard(), 6400);
  EXPECT_EQ(TableBytes(spec),
            2 * 4 * 32 * (64 + 100) + 2 * (static_cast<int64_t>(sizeof(LayerState)) + 2 * 4 * 100 +
                                           2 * 4 * (256 / 64 + 64 / 8)));
  const auto engine = MakeTestEngine();
  const uint64_t id = *engine->Open(spec);
  EXPECT_EQ(engine->table_bytes(), TableBytes(spec));
  ASSERT_TRUE(engine->Close(id).ok());
  EXPECT_EQ(engine->table_bytes(), 0);
}

TEST(SessionSize, TablesOfOneSessionAreBounded) {
  const auto engine = MakeTestEngine();
  ModelShape model = TestModel(1, 1, 256);
  model.num_layers = 6;
  model.layer_sliding_window.clear();
  model.rope_tables.clear();
  model.layer_rope_table.clear();
  for (int32_t table = 0; table < 6; ++table) {
    model.rope_tables.push_back(TestRope(256));
    model.layer_rope_table.push_back(table);
  }
  const auto start = std::chrono::steady_clock::now();
  ExpectRefused(*engine, engine->Open(LongSpec(model, SmallDense(), 16 * kMillion)).status(),
                "max_tokens 16777216 needs 1623");
  // 60 tables of 128 pairs took 44 s to make before anybody counted them.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST(SessionSize, TablesOfAllSessionsAreBounded) {
  const SessionSpec spec = LongSpec(TestModel(), SmallStandard(), kMillion);
  EngineOptions options;
  options.pool_bytes = PagePool::kDefaultSlabBytes;
  options.max_table_bytes = 2 * TableBytes(spec) + 1;
  const auto engine = EngineOf(options);
  const uint64_t first = *engine->Open(spec);
  ASSERT_TRUE(engine->Open(spec).ok());
  const absl::Status status = engine->Open(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DetailsOf(status)->reason, "TABLES_FULL");
  EXPECT_EQ(
      status.message(),
      absl::StrCat("tables of open sessions hold ", 2 * TableBytes(spec), " bytes, ",
                   TableBytes(spec), " more are needed, the limit is ", options.max_table_bytes));
  ASSERT_TRUE(engine->Close(first).ok());
  EXPECT_TRUE(engine->Open(spec).ok());
}

// 16 heads, 64 rows, a candidate a token.
TEST(SessionSize, ScoresOfAStageAreBounded) {
  const auto engine = MakeTestEngine();
  AttentionPolicy policy = OneStage(1, 64, 1);
  policy.query_stride = 1;
  const int64_t middle = int64_t{1 << 30} / (16 * 64 * 4);  // 1 GiB of scores
  const int64_t longest = middle + 64 + 64;                 // sink and window
  EXPECT_TRUE(engine->Open(LongSpec(TestModel(16, 1), policy, longest)).ok());
  const auto other = MakeTestEngine();
  ExpectRefused(*other, other->Open(LongSpec(TestModel(16, 1), policy, longest + 1)).status(),
                "max_tokens 262273 gives policy prefill.rest.stages[0] 1073745920 bytes of scores "
                "for 262145 candidates of a query block, the limit is 1073741824");
  policy.query_stride = 64;
  EXPECT_TRUE(other->Open(LongSpec(TestModel(16, 1), policy, longest + 1)).ok());
}

TEST(SessionSize, ScoresOfEveryStageAndPhaseCount) {
  EngineOptions options;
  options.pool_bytes = PagePool::kDefaultSlabBytes;
  options.max_score_bytes = 4 * 2 * 16 * 32;  // 32 candidates of 2 heads, every 4th row
  const auto engine = EngineOf(options);
  AttentionPolicy policy = SmallStandard();  // bounds 64 keep 256, then 32 candidates of 8
  policy.query_stride = 4;
  const int64_t regions = 64 + 128;
  EXPECT_TRUE(engine->Open(TestSpec(TestModel(), policy, regions + 32 * 64)).ok());
  const auto message = [&](const AttentionPolicy& of, int64_t max_tokens) {
    const absl::Status status = engine->Open(TestSpec(TestModel(), of, max_tokens)).status();
    return std::string{status.message()};
  };
  EXPECT_THAT(message(policy, regions + 33 * 64), HasSubstr("prefill.rest.stages[0] 4224 bytes"));
  AttentionPolicy finer = policy;
  finer.decode.rest.stages[1].chunk_tokens = 4;
  EXPECT_THAT(message(finer, regions + 32 * 64), HasSubstr("decode.rest.stages[1] 8192 bytes"));
  AttentionPolicy early = policy;
  early.decode.first_layers = 1;
  early.decode.early = finer.decode.rest;
  EXPECT_THAT(message(early, regions + 32 * 64), HasSubstr("decode.early.stages[1] 8192 bytes"));
  // A stage that keeps all of its candidates scores none.
  EXPECT_EQ(message(finer, regions + 63), "");
}

}  // namespace
}  // namespace longshore
