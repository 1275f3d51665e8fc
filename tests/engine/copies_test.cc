// On a device every copy is an operation that a step waits for: a step makes none that it can do
// without.

#include <gtest/gtest.h>

#include "tests/support/engine_session.h"
#include "tests/support/fake_backend.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

class Copies : public ::testing::Test {
 protected:
  Copies()
      : engine_(*Engine::Create({.pool_bytes = int64_t{16} << 20},
                                std::make_unique<FakeBackend>(&device_))) {}

  // Of a call of `rows` rows.
  int64_t Of(EngineSession* session, StepKind kind, int64_t rows) {
    const int64_t before = device_.copies();
    const auto output =
        session->Run(kind, RandomTokens(session->model(), rows, ValueKind::kIntegers, &random_));
    EXPECT_TRUE(output.ok()) << output.status();
    return device_.copies() - before;
  }

  FakeDevice device_;
  std::unique_ptr<Engine> engine_;
  Random random_;
};

// Both stages refresh many times on the way.
TEST_F(Copies, ADecodeStepMakesOneWhereAPageBegins) {
  EngineSession session(engine_.get(), TestSpec(TestModel(2, 1), SmallStandard(), 2000));
  EXPECT_EQ(Of(&session, StepKind::kAppend, 500), 1);
  for (int64_t position = 500; position < 900; ++position) {
    ASSERT_EQ(Of(&session, StepKind::kDecode, 1), position % 64 == 0 ? 1 : 0) << position;
  }
  const int64_t before = device_.copies();
  session.Replay();
  EXPECT_EQ(device_.copies(), before) << "the replay";
}

TEST_F(Copies, APrefillMakesOneForAllItsPages) {
  EngineSession session(engine_.get(), TestSpec(TestModel(2, 1), SmallStandard(), 2000));
  EXPECT_EQ(Of(&session, StepKind::kPrefill, 500), 1);
  EXPECT_EQ(Of(&session, StepKind::kPrefill, 200), 1);
}

TEST_F(Copies, ASlidingWindowMakesOneMoreForEachPageThatItLeaves) {
  ModelShape model = TestModel(2, 1);
  model.layer_sliding_window = {100};
  EngineSession session(engine_.get(), TestSpec(model, SmallStandard(), 2000));
  EXPECT_EQ(Of(&session, StepKind::kAppend, 500), 1);
  int64_t copies = 0;
  for (int64_t position = 500; position < 500 + 640; ++position) {
    copies += Of(&session, StepKind::kDecode, 1);
  }
  // 10 pages begin, at 512 + 64 i. The step at 500 leaves six behind, those at 547 + 64 i one each.
  EXPECT_EQ(copies, 10 + 1 + 10);
}

}  // namespace
}  // namespace longshore
