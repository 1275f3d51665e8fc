#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kSlab = PagePool::kDefaultSlabBytes;

absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options) {
  return Engine::Create(options, MakeTestBackend());
}

TEST(Engine, NeedsAPoolOfASlab) {
  EngineOptions options;
  options.pool_bytes = kSlab - 1;
  const absl::Status status = Create(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "pool_bytes 8388607 is less than one slab of 8388608");
  options.pool_bytes = 2 * kSlab + 5;
  EXPECT_EQ((*Create(options))->pool_usage().total_bytes, 2 * kSlab);
}

// Page ids and token ids are int32.
TEST(Engine, RefusesOptionsThatItsIdsCannotCount) {
  EngineOptions options;
  options.pool_bytes = PagePool::kMaxBytes + 1;
  EXPECT_EQ(Create(options).status().message(),
            "pool_bytes 8796093022209 is more than 8796093022208");
  options.pool_bytes = kSlab;
  options.max_tokens_per_session = (int64_t{1} << 31) - 63;
  EXPECT_EQ(Create(options).status().message(),
            "max_tokens_per_session 2147483585 is more than 2147483584");
  options.max_tokens_per_session = EngineOptions::kMaxTokens;
  options.max_rows_per_prefill = INT64_MAX;
  EXPECT_EQ(Create(options).status().message(),
            "max_rows_per_prefill 9223372036854775807 is more than 2147483584");
  options.max_rows_per_prefill = EngineOptions::kMaxTokens;
  EXPECT_TRUE(Create(options).ok());
}

TEST(Engine, OpenNamesTheFieldThatIsWrong) {
  const auto engine = MakeTestEngine();
  const auto field_of = [&](const SessionSpec& spec) {
    const absl::Status status = engine->Open(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    const auto details = DetailsOf(status);
    EXPECT_THAT(std::string(status.message()), StartsWith(details->field));
    return details->field;
  };
  const SessionSpec good = TestSpec(TestModel(), SmallStandard(), 100);
  SessionSpec spec = good;
  spec.max_tokens = 0;
  EXPECT_EQ(field_of(spec), "max_tokens");
  spec.max_tokens = engine->options().max_tokens_per_session + 1;
  EXPECT_EQ(field_of(spec), "max_tokens");
  spec = good;
  spec.model.head_dim = 72;
  EXPECT_EQ(field_of(spec), "model.head_dim");
  spec = good;
  spec.model.rope_tables[0].inv_freq.clear();
  EXPECT_EQ(field_of(spec), "model.rope_tables[0].inv_freq");
  spec = good;
  spec.policy.decode.rest.stages[1].keep_tokens = 63;
  EXPECT_EQ(field_of(spec), "policy.decode.rest.stages[1].keep_tokens");
  EXPECT_EQ(engine->num_sessions(), 0);
  EXPECT_EQ(engine->pool_usage().free_bytes, engine->pool_usage().total_bytes);
}

TEST(Engine, OpenReservesMaxTokensUnlessOvercommitted) {
  const auto engine = MakeTestEngine(DefaultTestBackend(), 1, kSlab);  // 256 pages of TestModel
  SessionSpec spec = TestSpec(TestModel(), SmallStandard(), 200 * 64 - 5);
  const uint64_t first = *engine->Open(spec);
  EXPECT_EQ(engine->pool_usage().reserved_bytes, 200 * 32768);
  const absl::Status status = engine->Open(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DetailsOf(status)->reason, "POOL_FULL");
  EXPECT_THAT(std::string(status.message()), HasSubstr("1835008 bytes free, 6553600 are needed"));
  EXPECT_EQ(engine->num_sessions(), 1);
  spec.overcommit = true;
  const uint64_t second = *engine->Open(spec);
  EXPECT_EQ(engine->pool_usage().reserved_bytes, 200 * 32768);
  EXPECT_TRUE(engine->Close(first).ok());
  EXPECT_TRUE(engine->Close(second).ok());
  EXPECT_EQ(engine->pool_usage().free_bytes, kSlab);
}

TEST(Engine, RefusesMoreSessionsThanItMayHave) {
  EngineOptions options;
  options.pool_bytes = kSlab;
  options.max_sessions = 2;
  const auto engine = *Create(options);
  const SessionSpec spec = TestSpec(TestModel(), SmallDense(), 10);
  const uint64_t first = *engine->Open(spec);
  ASSERT_TRUE(engine->Open(spec).ok());
  const absl::Status status = engine->Open(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DetailsOf(status)->reason, "TOO_MANY_SESSIONS");
  EXPECT_EQ(status.message(), "2 sessions are open, the limit is 2");
  ASSERT_TRUE(engine->Close(first).ok());
  const auto third = engine->Open(spec);
  ASSERT_TRUE(third.ok());
  EXPECT_NE(*third, first) << "ids are not used again";
}

TEST(Engine, LimitsTheRowsOfACall) {
  EngineOptions options;
  options.pool_bytes = kSlab;
  options.max_rows_per_prefill = 100;
  options.max_rows_per_decode_item = 3;
  options.max_items_per_call = 2;
  const auto engine = *Create(options);
  const ModelShape model = TestModel();
  std::vector<CallPart> parts(3);
  Random random;
  for (CallPart& part : parts) {
    part.session_id = *engine->Open(TestSpec(model, SmallDense(), 500));
    part.rows = RandomTokens(model, 51, ValueKind::kIntegers, &random);
  }
  const auto message = [&](StepKind kind, size_t items) {
    const auto output = RunCall(engine.get(), kind, 0, std::span(parts).first(items));
    return output.ok() ? "" : std::string{output.status().message()};
  };
  for (const StepKind kind : {StepKind::kPrefill, StepKind::kAppend}) {
    EXPECT_EQ(message(kind, 2), "items have 102 rows, the limit is 100");
    EXPECT_EQ(message(kind, 3), "items has 3 entries, the limit is 2");
  }
  EXPECT_EQ(message(StepKind::kDecode, 1), "items[0].rows 51 is not in 1..3");
  parts[0].rows = RandomTokens(model, 101, ValueKind::kIntegers, &random);
  EXPECT_EQ(message(StepKind::kPrefill, 1), "items[0].rows 101 is not in 1..100");
  parts[0].rows = parts[1].rows = RandomTokens(model, 3, ValueKind::kIntegers, &random);
  EXPECT_EQ(message(StepKind::kDecode, 2), "") << "a decode has no limit besides its items'";
}

TEST(Engine, DescribesItsSessions) {
  const auto engine = MakeTestEngine();
  ModelShape model = TestModel();
  model.num_layers = 3;
  model.layer_rope_table.clear();
  model.layer_sliding_window.clear();
  model.softmax_scale = 0.0F;  // left out
  SessionSpec spec = TestSpec(model, SmallStandard(), 640);
  spec.name = "a name";
  EngineSession session(engine.get(), spec);
  EngineSession other(engine.get(), spec);
  Random random;
  session.Append(RandomTokens(session.model(), 70, ValueKind::kIntegers, &random), 1);
  const SessionInfo info = *engine->Describe(session.id());
  EXPECT_EQ(info.id, session.id());
  EXPECT_EQ(info.spec.name, "a name");
  EXPECT_EQ(info.spec.model.softmax_scale, 0.125F);
  EXPECT_EQ(info.spec.model.layer_rope_table, (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(info.layer_tokens, (std::vector<int64_t>{0, 70, 0}));
  EXPECT_EQ(info.page_bytes_used, 2 * 32768);
  EXPECT_EQ(info.page_bytes_reserved, 28 * 32768);
  const std::vector<SessionInfo> all = engine->List();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].id, session.id());
  EXPECT_EQ(all[1].id, other.id());
}

TEST(Engine, KnowsWhichSessionsAreOpen) {
  const auto engine = MakeTestEngine();
  const uint64_t id = *engine->Open(TestSpec(TestModel(), SmallStandard(), 10));
  EXPECT_FALSE(engine->SelectionOf(id, 0)->mask.valid);
  EXPECT_EQ(engine->SelectionOf(id, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->SelectionOf(id, -1).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(engine->Close(id).ok());
  for (const absl::Status& status :
       {engine->Close(id), engine->Describe(id).status(), engine->ShapeOf(id).status(),
        engine->SelectionOf(id, 0).status(), engine->Truncate(id, 0).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(DetailsOf(status)->reason, "SESSION_NOT_FOUND");
  }
}

// The summaries and pages of a closed session are another's now; old bytes must not shine through.
TEST(Engine, ReusedPagesGiveTheBitsOfFreshOnes) {
  const auto engine = MakeTestEngine();
  const auto fresh_engine = MakeTestEngine();
  const ModelShape model = TestModel();
  Random random;
  EngineSession old(engine.get(), TestSpec(model, SmallStandard(), 640));
  old.Prefill(RandomTokens(model, 640, ValueKind::kGaussian, &random));
  ASSERT_TRUE(engine->Close(old.id()).ok());
  const TokenRows rows = RandomTokens(model, 600, ValueKind::kGaussian, &random);
  EngineSession session(engine.get(), TestSpec(model, SmallStandard(), 640));
  EngineSession fresh(fresh_engine.get(), TestSpec(model, SmallStandard(), 640));
  EXPECT_TRUE(IsSameBits(session.Prefill(rows), fresh.Prefill(rows)));
}

}  // namespace
}  // namespace longshore
