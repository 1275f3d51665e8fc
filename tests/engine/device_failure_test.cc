// What a backend's error means for a call: no memory and refused input change nothing, anything
// else ends the engine.

#include <memory>
#include <utility>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/engine_session.h"
#include "tests/support/fake_backend.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

constexpr int64_t kContext = 700;

// Two sessions on one fake device; one reserves its pages as it goes.
class DeviceFailure : public ::testing::TestWithParam<FakeVerb> {
 protected:
  DeviceFailure()
      : model_(TestModel(2, 1)),
        engine_(*Engine::Create({.pool_bytes = int64_t{16} << 20},
                                std::make_unique<FakeBackend>(&device_))),
        session_(engine_.get(), Spec(true)),
        other_(engine_.get(), Spec(false)) {
    session_.Append(Rows(kContext));
    session_.Decode(Rows(1));  // leaves a mask
  }

  SessionSpec Spec(bool overcommit) const {
    SessionSpec spec = TestSpec(model_, SmallStandard(), 2000);
    spec.overcommit = overcommit;
    return spec;
  }
  TokenRows Rows(int64_t rows) {
    return RandomTokens(model_, rows, ValueKind::kIntegers, &random_);
  }
  // A prefill of several blocks, whose stages keep more than a mask cache holds.
  absl::Status Prefill() { return session_.Run(StepKind::kPrefill, Rows(200)).status(); }

  void ExpectFailed(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    ASSERT_TRUE(DetailsOf(status).has_value()) << status;
    EXPECT_EQ(DetailsOf(status)->reason, "DEVICE_FAILED");
    EXPECT_EQ(status.message(), "the device has failed: burnt");
    EXPECT_EQ(engine_->device_status(), status);
  }

  FakeDevice device_;
  ModelShape model_;
  Random random_;
  std::unique_ptr<Engine> engine_;
  EngineSession session_;
  EngineSession other_;
};

TEST_F(DeviceFailure, NoMemoryForSelectionsRefusesTheCall) {
  const SessionState before = StateOf(*engine_, session_.id());
  device_.Fail(FakeVerb::kAllocate, absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(Prefill().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(StateOf(*engine_, session_.id()) == before) << "the refused call changed something";
  EXPECT_TRUE(engine_->device_status().ok());
  session_.Decode(Rows(1));  // needs none
  device_.Fail(FakeVerb::kAllocate, absl::OkStatus());
  EXPECT_TRUE(Prefill().ok());
  EXPECT_EQ(session_.Tokens(), kContext + 2 + 200);
}

TEST_F(DeviceFailure, RefusedInputChangesNothing) {
  const SessionState before = StateOf(*engine_, session_.id());
  device_.Fail(FakeVerb::kAppend, absl::InvalidArgumentError("a NaN"));
  EXPECT_EQ(Prefill().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(StateOf(*engine_, session_.id()) == before) << "the refused call changed something";
  EXPECT_TRUE(engine_->device_status().ok());
  device_.Fail(FakeVerb::kAppend, absl::OkStatus());
  EXPECT_TRUE(Prefill().ok());
}

TEST_F(DeviceFailure, NoMemoryRefusesASession) {
  device_.Fail(FakeVerb::kAllocate, absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(engine_->Open(Spec(false)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine_->device_status().ok());
}

TEST_F(DeviceFailure, WhileASessionOpensIsRemembered) {
  const int64_t free_bytes = engine_->pool_usage().free_bytes;
  device_.Fail(FakeVerb::kCopy, absl::UnavailableError("burnt"));
  ExpectFailed(engine_->Open(Spec(false)).status());
  EXPECT_EQ(engine_->pool_usage().free_bytes, free_bytes);
  device_.Fail(FakeVerb::kCopy, absl::OkStatus());
  ExpectFailed(engine_->Open(Spec(false)).status());
}

// Whatever its code: memory that a backend misses in the middle of a step is lost rows, too.
TEST_P(DeviceFailure, EndsTheEngine) {
  device_.Fail(GetParam(), absl::ResourceExhaustedError("burnt"));
  const absl::Status status = Prefill();
  ExpectFailed(status);
  device_.Fail(GetParam(), absl::OkStatus());
  EXPECT_EQ(Prefill(), status);
  EXPECT_EQ(other_.Run(StepKind::kDecode, Rows(1)).status(), status);
  EXPECT_TRUE(engine_->Close(session_.id()).ok());
}

std::string VerbName(const ::testing::TestParamInfo<FakeVerb>& info) {
  constexpr const char* kNames[] = {"Allocate", "Copy", "Append", "Prune",
                                    "Attend",   "Mark", "Wait"};
  return kNames[static_cast<size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Verbs,
                         DeviceFailure,
                         ::testing::Values(FakeVerb::kCopy,
                                           FakeVerb::kAppend,
                                           FakeVerb::kPrune,
                                           FakeVerb::kAttend,
                                           FakeVerb::kMark,
                                           FakeVerb::kWait),
                         VerbName);

}  // namespace
}  // namespace longshore
