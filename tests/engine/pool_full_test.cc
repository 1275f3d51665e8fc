// A pool without room refuses a call and keeps what is there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

using ::testing::HasSubstr;

// One slab of 8 MiB holds 128 pages of this model.
TEST(PoolFull, RefusesTheCallAndKeepsWhatIsThere) {
  const auto engine = MakeTestEngine(DefaultTestBackend(), 1, int64_t{8} << 20);
  const ModelShape model = TestModel(2, 2);
  SessionSpec spec = TestSpec(model, SmallStandard(), 100 * 64);
  spec.overcommit = true;
  EngineSession first(engine.get(), spec);
  EngineSession second(engine.get(), spec);
  Random random;
  const TokenRows rows = RandomTokens(model, 100 * 64, ValueKind::kIntegers, &random);
  first.Append(Slice(model, rows, 0, 100 * 64));
  second.Append(Slice(model, rows, 0, 27 * 64 + 40));  // the last page is half full
  const SessionState before_first = StateOf(*engine, first.id());
  const SessionState before = StateOf(*engine, second.id());
  EXPECT_EQ(before.pool_free_bytes, 0);
  const auto status =
      second.Run(StepKind::kPrefill, Slice(model, rows, 0, 25)).status();  // one token too many
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DetailsOf(status)->reason, "POOL_FULL");
  EXPECT_THAT(std::string(status.message()), HasSubstr("0 bytes free, 65536 are needed"));
  // Of two items that both need a page neither gets one.
  ASSERT_TRUE(engine->Truncate(first.id(), 99 * 64).ok());
  const SessionState freed = StateOf(*engine, first.id());
  std::vector<CallPart> parts(2);
  parts[0] = {.session_id = first.id(),
              .position = 99 * 64,
              .append_id = 50,
              .rows = Slice(model, rows, 0, 30)};
  parts[1] = {.session_id = second.id(),
              .position = 27 * 64 + 40,
              .append_id = 50,
              .rows = Slice(model, rows, 0, 30)};
  EXPECT_EQ(RunCall(engine.get(), StepKind::kPrefill, 0, parts).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(StateOf(*engine, first.id()) == freed);
  EXPECT_EQ(StateOf(*engine, second.id()).layer_tokens, before.layer_tokens);
  EXPECT_EQ(freed.page_bytes_used, before_first.page_bytes_used - 65536);
  second.Decode(Slice(model, rows, 0, 24));  // fits into the page that is there
  second.Decode(Slice(model, rows, 0, 1));   // and into the one that was freed
  EXPECT_EQ(StateOf(*engine, second.id()).pool_free_bytes, 0);
}

}  // namespace
}  // namespace longshore
