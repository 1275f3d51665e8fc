// The standard library finds no memory in the middle of a call, and throws. The session is then
// what it was, and the same call succeeds later, with the bits that it would have had.

#include <limits>
#include <memory>
#include <new>
#include <string>

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/engine_session.h"
#include "tests/support/guarded_backend.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

enum class Verb : uint8_t { kNone, kAllocate, kAppend, kPrune, kAttend, kAdmit };

// A backend whose next verb of one kind does its work and throws before it can say so.
class StarvingBackend final : public Backend {
 public:
  explicit StarvingBackend(Verb* starves,
                           std::unique_ptr<Backend> real = MakeTestBackend(DefaultTestBackend(), 2))
      : starves_(starves),
        real_(std::move(real)) {}
  const DeviceInfo& info() const override { return real_->info(); }
  absl::StatusOr<Buffer> Allocate(MemorySpace space, int64_t bytes) override {
    Starve(Verb::kAllocate);
    return real_->Allocate(space, bytes);
  }
  absl::Status Copy(void* to, const void* from, int64_t bytes) override {
    return real_->Copy(to, from, bytes);
  }
  absl::Status Append(const AppendArgs& args) override {
    absl::Status status = real_->Append(args);
    Starve(Verb::kAppend);
    return status;
  }
  absl::Status Prune(const PruneArgs& args) override {
    absl::Status status = real_->Prune(args);
    Starve(Verb::kPrune);
    return status;
  }
  absl::Status Attend(const AttendArgs& args) override {
    Starve(Verb::kAttend);
    return real_->Attend(args);
  }
  absl::Status Admit(const AdmitArgs& args) override {
    Starve(Verb::kAdmit);
    return real_->Admit(args);
  }
  absl::StatusOr<Fence> Mark() override { return real_->Mark(); }
  absl::Status Wait(Fence fence) override { return real_->Wait(fence); }

 private:
  void Free(MemorySpace /*space*/, std::byte* /*data*/, int64_t /*bytes*/) override {}
  void Starve(Verb verb) {
    if (*starves_ == verb) {
      *starves_ = Verb::kNone;
      throw std::bad_alloc();
    }
  }

  Verb* starves_;
  std::unique_ptr<Backend> real_;
};

// Two sessions with the same rows; only the first ever starves.
class StarvedTest : public ::testing::TestWithParam<bool> {
 protected:
  StarvedTest()
      : engine_(*Engine::Create({.pool_bytes = int64_t{32} << 20, .recall_sample_every = 1},
                                std::make_unique<StarvingBackend>(&starves_))),
        subject_(engine_.get(), Spec()),
        twin_(engine_.get(), Spec()) {
    Both(StepKind::kAppend, 460);
    Both(StepKind::kDecode, 1);
  }

  SessionSpec Spec() const {
    SessionSpec spec = TestSpec(TestModel(4, 2), SmallStandard(), 2000);
    spec.overcommit = GetParam();
    return spec;
  }
  TokenRows Rows(int64_t rows) {
    return RandomTokens(subject_.model(), rows, ValueKind::kGaussian, &random_);
  }
  void Both(StepKind kind, int64_t rows) { Both(kind, Rows(rows)); }
  void Both(StepKind kind, const TokenRows& rows) {
    const auto output = subject_.Run(kind, rows);
    const auto expected = twin_.Run(kind, rows);
    ASSERT_TRUE(output.ok() && expected.ok()) << output.status() << expected.status();
    EXPECT_TRUE(IsSameBits(*output, *expected));
  }
  // The call that starves at `verb`, then the same in both sessions.
  void StarveAndTryAgain(Verb verb, StepKind kind, int64_t rows) {
    const TokenRows tokens = Rows(rows);
    const SessionState before = StateOf(*engine_, subject_.id());
    starves_ = verb;
    EXPECT_THROW((void)subject_.Run(kind, tokens), std::bad_alloc);
    ASSERT_EQ(starves_, Verb::kNone);
    EXPECT_TRUE(StateOf(*engine_, subject_.id()) == before);
    Both(kind, tokens);
    Both(StepKind::kDecode, 1);
  }

  Verb starves_ = Verb::kNone;
  Random random_;
  std::unique_ptr<Engine> engine_;
  EngineSession subject_;
  EngineSession twin_;
};

INSTANTIATE_TEST_SUITE_P(Overcommit, StarvedTest, ::testing::Bool());

TEST_P(StarvedTest, ACallLeavesTheSessionAsItWas) {
  for (const Verb verb : {Verb::kAppend, Verb::kPrune, Verb::kAttend}) {
    SCOPED_TRACE(static_cast<int>(verb));
    StarveAndTryAgain(verb, StepKind::kPrefill, 200);
    StarveAndTryAgain(verb, StepKind::kDecode, 16);  // passes a refresh of both stages
  }
  StarveAndTryAgain(Verb::kAppend, StepKind::kAppend, 70);
  StarveAndTryAgain(Verb::kAllocate, StepKind::kPrefill, 400);  // selections grow
}

TEST_P(StarvedTest, AReplayCanBeTriedAgain) {
  const TokenRows rows = Rows(16);
  const auto output = subject_.Run(StepKind::kDecode, rows);
  ASSERT_TRUE(output.ok());
  for (const Verb verb : {Verb::kPrune, Verb::kAttend}) {
    const int64_t tokens = subject_.Tokens();
    starves_ = verb;
    EXPECT_THROW(subject_.Replay(), std::bad_alloc);
    EXPECT_EQ(subject_.Tokens(), tokens);
    EXPECT_TRUE(IsSameBits(subject_.Replay(), *output));
  }
}

// The mask that the call before had seen went with the call that starved.
TEST_P(StarvedTest, TheCallBeforeIsNoReplayAnyMore) {
  CallPart part{.session_id = subject_.id(),
                .position = subject_.Tokens(),
                .append_id = 500,
                .rows = Rows(1)};
  ASSERT_TRUE(RunCall(engine_.get(), StepKind::kDecode, 0, {&part, 1}).ok());
  starves_ = Verb::kAttend;
  EXPECT_THROW((void)subject_.Run(StepKind::kDecode, Rows(1)), std::bad_alloc);
  const absl::Status status = RunCall(engine_.get(), StepKind::kDecode, 0, {&part, 1}).status();
  EXPECT_EQ(DetailsOf(status)->reason, "POSITION_CONFLICT") << status;
}

// Every block is sampled here; that of a call which was undone must not be measured.
TEST_P(StarvedTest, WhatACallHadSampledIsForgotten) {
  ASSERT_TRUE(engine_->AdvanceRecall(int64_t{1} << 40)->sample.has_value());  // of an earlier call
  starves_ = Verb::kAdmit;
  EXPECT_THROW((void)subject_.Run(StepKind::kDecode, Rows(1)), std::bad_alloc);
  EXPECT_EQ(engine_->recall_counts().dropped_gone, 1);
  EXPECT_EQ(engine_->AdvanceRecall(int64_t{1} << 40)->products, 0);
  Both(StepKind::kDecode, 1);
  EXPECT_TRUE(engine_->AdvanceRecall(int64_t{1} << 40)->sample.has_value());
}

// The caller's tensors go with the call.
TEST(Starved, NothingIsUnderWayWhenTheCallIsOver) {
  Verb starves = Verb::kNone;
  auto guarded = std::make_unique<GuardedBackend>(MakeTestBackend("cpu"));
  const GuardedBackend& device = *guarded;
  const auto engine =
      *Engine::Create({.pool_bytes = int64_t{16} << 20},
                      std::make_unique<StarvingBackend>(&starves, std::move(guarded)));
  EngineSession session(engine.get(), TestSpec(TestModel(4, 2), SmallStandard(), 2000));
  Random random;
  const auto rows = [&](int64_t count) {
    return RandomTokens(session.model(), count, ValueKind::kGaussian, &random);
  };
  session.Append(rows(460));
  for (const Verb verb : {Verb::kPrune, Verb::kAttend, Verb::kAdmit}) {
    starves = verb;
    EXPECT_THROW((void)session.Run(StepKind::kPrefill, rows(100)), std::bad_alloc);
    EXPECT_EQ(device.queued(), 0U);
  }
  TokenRows bad = rows(10);
  bad.k[5] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(session.Run(StepKind::kPrefill, bad).ok());
  EXPECT_EQ(device.queued(), 0U);
}

TEST_P(StarvedTest, OpenLeavesNothingBehind) {
  const PoolUsage before = engine_->pool_usage();
  const int64_t table_bytes = engine_->table_bytes();
  starves_ = Verb::kAllocate;
  EXPECT_THROW((void)engine_->Open(Spec()), std::bad_alloc);
  EXPECT_EQ(engine_->num_sessions(), 2);
  EXPECT_EQ(engine_->table_bytes(), table_bytes);
  EXPECT_EQ(engine_->pool_usage().reserved_bytes, before.reserved_bytes);
  EXPECT_TRUE(engine_->Open(Spec()).ok());
}

}  // namespace
}  // namespace longshore
