// Items of other policies and query blocks in one call give the bits of calls of their own, on
// another number of threads; so do replays, and calls after a truncation.

#include <algorithm>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

constexpr int64_t kMaxTokens = 2000;

LayerPolicy WithQueryBlocks(LayerPolicy layers, int32_t coarse, int32_t fine) {
  for (size_t stage = 0; stage < layers.stages.size(); ++stage) {
    layers.stages[stage].query_block = stage == 0 ? coarse : fine;
  }
  return layers;
}

// Blocks of 16, 32 or 64 rows; stages of up to 512.
AttentionPolicy RandomPolicy(Random* random) {
  const std::vector<AttentionPolicy> policies = {SmallStandard(), SmallStandard(),
                                                 SmallStandard(), OneStage(4, 64, 4),
                                                 SmallDense(),    SmallStreaming()};
  AttentionPolicy policy = policies[static_cast<size_t>(random->Uniform(0, 5))];
  policy.query_block = 16 << random->Uniform(0, 2);
  policy.query_stride = static_cast<int32_t>(random->Uniform(1, policy.query_block));
  policy.dense_below_tokens = random->OneIn(2) ? 0 : random->Uniform(1, 700);
  policy.extension = random->OneIn(2) ? Extension::kAtTrainedLength : Extension::kFromStart;
  policy.ranking = random->OneIn(2) ? Ranking::kProbability : Ranking::kProbabilitySum;
  policy.attention_rope.beyond_trained =
      random->OneIn(3) ? RopeStyle::kDynamicExtend : RopeStyle::kStreaming;
  const auto coarse = policy.query_block * static_cast<int32_t>(random->Uniform(1, 8));
  policy.prefill.rest = WithQueryBlocks(policy.prefill.rest, coarse, random->OneIn(2) ? 0 : coarse);
  EXPECT_TRUE(ValidatePolicy(policy).ok()) << ValidatePolicy(policy);
  return policy;
}

// The same sessions twice: of one engine each by itself, of another all in one call.
class MixedBatch {
 public:
  explicit MixedBatch(Random* random)
      : random_(random),
        model_(TestModel(4, 2)),
        alone_engine_(MakeTestEngine(DefaultTestBackend(), 1)),
        together_engine_(MakeTestEngine(DefaultTestBackend(), 2)) {
    model_.rope_tables[0].trained_tokens = 640;
    model_.layer_sliding_window = {random->OneIn(4) ? random->Uniform(1, 200) : 0};
    for (int64_t session = random->Uniform(2, 5); session > 0; --session) {
      const SessionSpec spec = TestSpec(model_, RandomPolicy(random), kMaxTokens);
      alone_.emplace_back(alone_engine_.get(), spec);
      together_.emplace_back(together_engine_.get(), spec);
    }
  }

  // One call of every session, and its replay.
  void Call(StepKind kind) {
    ++append_id_;
    std::vector<CallPart> parts;
    std::vector<StepOutput> expected;
    const int64_t most = kind == StepKind::kDecode ? 40 : 500;
    for (size_t session = 0; session < alone_.size(); ++session) {
      const int64_t position = alone_[session].Tokens();
      const int64_t rows = random_->Uniform(1, std::min(most, kMaxTokens - position));
      parts.push_back({.session_id = together_[session].id(),
                       .position = position,
                       .append_id = append_id_,
                       .rows = RandomTokens(model_, rows, ValueKind::kGaussian, random_)});
      expected.push_back(*alone_[session].Run(kind, parts.back().rows));
    }
    for (const int32_t replays : {0, static_cast<int32_t>(parts.size())}) {
      const auto output = RunCall(together_engine_.get(), kind, 0, parts);
      ASSERT_TRUE(output.ok()) << output.status();
      EXPECT_EQ(output->trace.replayed_items, replays);
      for (size_t session = 0; session < parts.size(); ++session) {
        EXPECT_TRUE(IsSameBits(output->parts[session], expected[session])) << "item " << session;
        EXPECT_EQ(StateOf(*together_engine_, together_[session].id()).stages,
                  StateOf(*alone_engine_, alone_[session].id()).stages);
      }
    }
  }

  void TruncateSome() {
    for (size_t session = 0; session < alone_.size(); ++session) {
      const int64_t cut = std::max(int64_t{0}, alone_[session].Tokens() - random_->Uniform(0, 30));
      if (random_->OneIn(3)) {
        EXPECT_EQ(alone_engine_->Truncate(alone_[session].id(), cut).ok(),
                  together_engine_->Truncate(together_[session].id(), cut).ok());
      }
    }
  }

 private:
  Random* random_;
  ModelShape model_;
  std::unique_ptr<Engine> alone_engine_;
  std::unique_ptr<Engine> together_engine_;
  std::vector<EngineSession> alone_;
  std::vector<EngineSession> together_;
  uint64_t append_id_ = 1000;
};

TEST(MixedBatch, GivesTheBitsOfSingleCalls) {
  Random random;
  for (int32_t round = 0; round < 8 && !HasFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round, ", seed ", TestSeed()));
    MixedBatch batch(&random);
    batch.Call(StepKind::kPrefill);
    for (int32_t call = 0; call < 4; ++call) {
      batch.TruncateSome();
      batch.Call(random.OneIn(2) ? StepKind::kDecode : StepKind::kPrefill);
    }
  }
}

}  // namespace
}  // namespace longshore
