// At most once: the last call of a layer, sent again, gives the same bits and changes nothing.

#include <cmath>

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/compare.h"
#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

constexpr int64_t kMaxTokens = 800;

// Two sessions with the same rows; only the first is ever replayed.
class ReplayTest : public ::testing::Test {
 protected:
  ReplayTest()
      : engine_(MakeTestEngine()),
        model_(TestModel(4, 2)),
        rows_(RandomTokens(model_, kMaxTokens, ValueKind::kGaussian, &random_)),
        subject_(engine_.get(), TestSpec(model_, SmallStandard(), kMaxTokens)),
        twin_(engine_.get(), TestSpec(model_, SmallStandard(), kMaxTokens)) {}

  // The next `rows` tokens, in both; the outputs must agree.
  StepOutput Step(StepKind kind, int64_t rows) {
    const int64_t begin = subject_.Tokens();
    const TokenRows part = Slice(model_, rows_, begin, begin + rows);
    const auto output = subject_.Run(kind, part);
    const auto expected = twin_.Run(kind, part);
    EXPECT_TRUE(output.ok() && expected.ok());
    EXPECT_TRUE(IsSameBits(*output, *expected));
    return *output;
  }

  // Replays the last call twice, then goes on.
  void ReplayAndGoOn(const StepOutput& output) {
    const SessionState before = StateOf(*engine_, subject_.id());
    const StepTrace trace = subject_.trace();
    for (int32_t replay = 0; replay < 2; ++replay) {
      EXPECT_TRUE(IsSameBits(subject_.Replay(), output));
      EXPECT_TRUE(StateOf(*engine_, subject_.id()) == before) << "the replay changed something";
      EXPECT_EQ(subject_.trace().stage_refreshed, trace.stage_refreshed);
      EXPECT_EQ(subject_.trace().stage_cached, trace.stage_cached);
    }
    for (int32_t step = 0; step < 6; ++step) {
      Step(StepKind::kDecode, 1);
    }
  }

  std::string ReasonOf(StepKind kind, const CallPart& part) {
    const auto output = RunCall(engine_.get(), kind, 0, {&part, 1});
    if (output.ok()) {
      return "OK";
    }
    const auto details = DetailsOf(output.status());
    EXPECT_TRUE(details.has_value() && !details->metadata.empty()) << output.status();
    EXPECT_EQ(details->field, "items[0].position");
    EXPECT_EQ(details->metadata[0].first, "expected_position");
    EXPECT_EQ(details->metadata[0].second, std::to_string(subject_.Tokens()));
    return details->reason;
  }

  std::unique_ptr<Engine> engine_;
  Random random_;
  ModelShape model_;
  TokenRows rows_;
  EngineSession subject_;
  EngineSession twin_;
};

TEST_F(ReplayTest, DecodeWithoutRefreshGivesTheSameBits) {
  Step(StepKind::kAppend, 500);
  Step(StepKind::kDecode, 1);
  ReplayAndGoOn(Step(StepKind::kDecode, 1));
}

TEST_F(ReplayTest, DecodeThatRefreshesGivesTheSameBits) {
  Step(StepKind::kAppend, 500);
  ReplayAndGoOn(Step(StepKind::kDecode, 1));  // every stage
  while (subject_.Tokens() % 16 != 0) {
    Step(StepKind::kDecode, 1);
  }
  const StepOutput output = Step(StepKind::kDecode, 1);  // the clock of every stage moves on
  EXPECT_EQ(subject_.trace().stage_refreshed[0], 1);
  ReplayAndGoOn(output);
}

// The first block works with what was cached before the call, the second refreshes: a replay has
// to begin with the older mask.
TEST_F(ReplayTest, DecodeThatCrossesABlockGivesTheSameBits) {
  Step(StepKind::kAppend, 500);
  Step(StepKind::kDecode, 9);                             // refreshed at 508
  const StepOutput output = Step(StepKind::kDecode, 20);  // 509 .. 528, a new tick from 512 on
  EXPECT_EQ(subject_.trace().stage_refreshed[0], 1);
  EXPECT_EQ(subject_.trace().stage_cached[0], 1);
  ReplayAndGoOn(output);
}

TEST_F(ReplayTest, PrefillGivesTheSameBits) {
  Step(StepKind::kAppend, 300);
  ReplayAndGoOn(Step(StepKind::kPrefill, 290));
}

TEST_F(ReplayTest, AppendDoesNothing) {
  Step(StepKind::kAppend, 500);
  Step(StepKind::kDecode, 1);
  Step(StepKind::kAppend, 30);
  ReplayAndGoOn({});
}

TEST_F(ReplayTest, OutputsThatAreWantedMayDiffer) {
  Step(StepKind::kAppend, 500);
  const TokenRows part = Slice(model_, rows_, 500, 501);
  const auto full = subject_.Run(StepKind::kDecode, part);
  ASSERT_TRUE(full.ok());
  const CallPart again{.session_id = subject_.id(), .position = 500, .append_id = 2, .rows = part};
  const auto output =
      RunCall(engine_.get(), StepKind::kDecode, 0, {&again, 1}, {.log_sum_exp = false});
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_TRUE(IsSameBytes("out", output->parts[0].out_bytes, full->out_bytes));
  EXPECT_EQ(output->layer_tokens, std::vector<int64_t>{501});
}

// A replay is known by position, rows and id: what it brings as keys and values is not looked at.
TEST_F(ReplayTest, KeysAndValuesStayAsTheyWereFirstSent) {
  Step(StepKind::kAppend, 500);
  const StepOutput output = Step(StepKind::kDecode, 3);
  CallPart again{.session_id = subject_.id(),
                 .position = 500,
                 .append_id = 2,
                 .rows = RandomTokens(model_, 3, ValueKind::kGaussian, &random_)};
  again.rows.q = Slice(model_, rows_, 500, 503).q;
  const auto replayed = RunCall(engine_.get(), StepKind::kDecode, 0, {&again, 1});
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_TRUE(IsSameBits(replayed->parts[0], output));
  Step(StepKind::kDecode, 1);
}

// But its queries are used, so they are checked.
TEST_F(ReplayTest, QueriesMustBeWithinTheLimitsAgain) {
  Step(StepKind::kAppend, 500);
  const StepOutput output = Step(StepKind::kDecode, 3);
  const SessionState before = StateOf(*engine_, subject_.id());
  CallPart again{.session_id = subject_.id(),
                 .position = 500,
                 .append_id = 2,
                 .rows = Slice(model_, rows_, 500, 503)};
  for (const double value : {std::nan(""), 3e38}) {
    again.rows.q[7] = value;
    const auto refused = RunCall(engine_.get(), StepKind::kDecode, 0, {&again, 1}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(DetailsOf(refused)->field, "q");
    EXPECT_TRUE(StateOf(*engine_, subject_.id()) == before)
        << "the refused replay changed something";
  }
  ReplayAndGoOn(output);
}

// Two callers that set no id must not be taken for one that repeats itself.
TEST_F(ReplayTest, WithoutAnIdNothingIsAReplay) {
  Step(StepKind::kAppend, 500);
  const CallPart part{.session_id = subject_.id(),
                      .position = 500,
                      .append_id = 0,
                      .rows = Slice(model_, rows_, 500, 501)};
  EXPECT_EQ(ReasonOf(StepKind::kDecode, part), "OK");
  EXPECT_EQ(ReasonOf(StepKind::kDecode, part), "POSITION_CONFLICT");
}

TEST_F(ReplayTest, AnythingElseAtATakenPositionIsAConflict) {
  Step(StepKind::kAppend, 500);
  Step(StepKind::kDecode, 3);  // append id 2
  const SessionState before = StateOf(*engine_, subject_.id());
  const auto part = [&](int64_t position, int64_t rows, uint64_t append_id) {
    return CallPart{.session_id = subject_.id(),
                    .position = position,
                    .append_id = append_id,
                    .rows = Slice(model_, rows_, position, position + rows)};
  };
  EXPECT_EQ(ReasonOf(StepKind::kDecode, part(500, 3, 3)), "POSITION_CONFLICT");  // another id
  EXPECT_EQ(ReasonOf(StepKind::kDecode, part(500, 2, 2)), "POSITION_CONFLICT");  // fewer rows
  EXPECT_EQ(ReasonOf(StepKind::kDecode, part(501, 2, 2)), "POSITION_CONFLICT");  // a part
  EXPECT_EQ(ReasonOf(StepKind::kPrefill, part(500, 3, 2)), "POSITION_CONFLICT");
  EXPECT_EQ(ReasonOf(StepKind::kAppend, part(0, 500, 1)), "POSITION_CONFLICT");  // not the last
  EXPECT_EQ(ReasonOf(StepKind::kDecode, part(504, 1, 3)), "POSITION_GAP");
  EXPECT_TRUE(StateOf(*engine_, subject_.id()) == before);
  EXPECT_EQ(ReasonOf(StepKind::kDecode, part(500, 3, 2)), "OK");
}

TEST_F(ReplayTest, TruncateForgetsTheLastCall) {
  Step(StepKind::kAppend, 500);
  Step(StepKind::kDecode, 3);
  const CallPart part{.session_id = subject_.id(),
                      .position = 500,
                      .append_id = 2,
                      .rows = Slice(model_, rows_, 500, 503)};
  ASSERT_TRUE(engine_->Truncate(subject_.id(), 503).ok());  // cuts nothing
  EXPECT_EQ(ReasonOf(StepKind::kDecode, part), "OK");
  EXPECT_EQ(subject_.Tokens(), 503);
  ASSERT_TRUE(engine_->Truncate(subject_.id(), 502).ok());
  EXPECT_EQ(ReasonOf(StepKind::kDecode, part), "POSITION_CONFLICT");
  ASSERT_TRUE(engine_->Truncate(subject_.id(), 500).ok());
  EXPECT_EQ(ReasonOf(StepKind::kDecode, part), "OK");  // as new rows
  EXPECT_EQ(subject_.Tokens(), 503);
}

}  // namespace
}  // namespace longshore
