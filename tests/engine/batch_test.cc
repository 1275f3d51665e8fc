// Bits do not depend on batch neighbours, threads, or where a prompt is cut between blocks.

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

constexpr int64_t kMaxTokens = 1200;

ModelShape BatchModel() {
  ModelShape model = TestModel(4, 2);
  model.rope_tables[0].trained_tokens = 640;
  model.sink_logits = {1.0F, 2.0F, -3.0F, 0.5F};
  return model;
}

AttentionPolicy PolicyOf(int64_t index) {
  switch (index % 4) {
    case 0: return SmallStandard();
    case 1: return OneStage(4, 64, 4);
    case 2: return SmallDense();
    default: return SmallStreaming();
  }
}

// Eight sessions of other lengths and policies, opened twice.
struct Batch {
  std::vector<EngineSession> singles;
  std::vector<EngineSession> together;
};

Batch OpenBatch(Engine* engine, const ModelShape& model, Random* random) {
  Batch batch;
  for (int64_t index = 0; index < 8; ++index) {
    const SessionSpec spec = TestSpec(model, PolicyOf(index / 2), kMaxTokens + 64 * index);
    const TokenRows rows = RandomTokens(model, 500 + 50 * index, ValueKind::kGaussian, random);
    for (auto* sessions : {&batch.singles, &batch.together}) {
      sessions->emplace_back(engine, spec);
      sessions->back().Append(rows);
    }
  }
  return batch;
}

// One call for all of `together` beside a call for each of `singles`.
void CompareCalls(Engine* engine, Batch* batch, StepKind kind, uint64_t append_id, Random* random) {
  std::vector<CallPart> parts;
  std::vector<StepOutput> expected;
  for (size_t index = 0; index < batch->together.size(); ++index) {
    const int64_t rows = kind == StepKind::kDecode ? random->Uniform(1, 6) : random->Uniform(1, 90);
    CallPart& part = parts.emplace_back();
    part.session_id = batch->together[index].id();
    part.position = batch->together[index].Tokens();
    part.append_id = append_id;
    part.rows = RandomTokens(BatchModel(), rows, ValueKind::kGaussian, random);
    const auto single = batch->singles[index].Run(kind, part.rows);
    ASSERT_TRUE(single.ok()) << single.status();
    expected.push_back(*single);
  }
  // Two of the items are replays when the others come.
  ASSERT_TRUE(RunCall(engine, kind, 0, std::span(parts).subspan(3, 2)).ok());
  const auto output = RunCall(engine, kind, 0, parts);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(output->trace.replayed_items, 2);
  for (size_t index = 0; index < parts.size(); ++index) {
    SCOPED_TRACE(absl::StrCat("item ", index));
    EXPECT_EQ(output->layer_tokens[index], parts[index].position + parts[index].rows.tokens);
    if (kind != StepKind::kAppend) {
      EXPECT_TRUE(IsSameBits(output->parts[index], expected[index]));
    }
    EXPECT_EQ(batch->together[index].Selection().stages, batch->singles[index].Selection().stages);
  }
}

TEST(Batch, GivesTheBitsOfSingleCalls) {
  const auto engine = MakeTestEngine();
  Random random;
  Batch batch = OpenBatch(engine.get(), BatchModel(), &random);
  uint64_t append_id = 100;
  for (const StepKind kind : {StepKind::kDecode, StepKind::kDecode, StepKind::kPrefill,
                              StepKind::kDecode, StepKind::kAppend, StepKind::kDecode}) {
    CompareCalls(engine.get(), &batch, kind, ++append_id, &random);
  }
}

// What a session gives on an engine of so many threads.
std::vector<StepOutput> RunOnThreads(int32_t threads, const AttentionPolicy& policy) {
  const auto engine = MakeTestEngine(DefaultTestBackend(), threads);
  const ModelShape model = BatchModel();
  Random random;
  EngineSession session(engine.get(), TestSpec(model, policy, kMaxTokens));
  std::vector<StepOutput> outputs;
  session.Append(RandomTokens(model, 400, ValueKind::kGaussian, &random));
  outputs.push_back(session.Prefill(RandomTokens(model, 200, ValueKind::kGaussian, &random)));
  for (const int64_t rows : {1, 1, 7, 1, 30, 1}) {
    outputs.push_back(session.Decode(RandomTokens(model, rows, ValueKind::kGaussian, &random)));
  }
  return outputs;
}

TEST(Threads, GiveTheSameBits) {
  for (int64_t policy = 0; policy < 4; ++policy) {
    const std::vector<StepOutput> expected = RunOnThreads(1, PolicyOf(policy));
    for (const int32_t threads : {2, 3}) {
      SCOPED_TRACE(absl::StrCat("policy ", policy, ", ", threads, " threads"));
      const std::vector<StepOutput> outputs = RunOnThreads(threads, PolicyOf(policy));
      for (size_t call = 0; call < outputs.size(); ++call) {
        EXPECT_TRUE(IsSameBits(outputs[call], expected[call])) << "call " << call;
      }
    }
  }
}

// A prompt of `rows` in pieces, then decode steps: all outputs in a row.
StepOutput RunInPieces(Engine* engine,
                       const AttentionPolicy& policy,
                       const TokenRows& rows,
                       int64_t prompt,
                       int64_t piece) {
  const ModelShape model = BatchModel();
  EngineSession session(engine, TestSpec(model, policy, rows.tokens));
  StepOutput all;
  const auto add = [&all](const StepOutput& output) {
    all.out.insert(all.out.end(), output.out.begin(), output.out.end());
    all.log_sum_exp.insert(all.log_sum_exp.end(), output.log_sum_exp.begin(),
                           output.log_sum_exp.end());
  };
  for (int64_t begin = 0; begin < prompt; begin += piece) {
    add(session.Prefill(Slice(model, rows, begin, std::min(begin + piece, prompt))));
  }
  for (int64_t token = prompt; token < rows.tokens; ++token) {
    add(session.Decode(Slice(model, rows, token, token + 1)));
  }
  EXPECT_TRUE(engine->Close(session.id()).ok());
  return all;
}

TEST(Pieces, OfWholeBlocksGiveTheSameBits) {
  const auto engine = MakeTestEngine();
  Random random;
  const TokenRows rows = RandomTokens(BatchModel(), 710, ValueKind::kGaussian, &random);
  for (int64_t policy = 0; policy < 4; ++policy) {
    const StepOutput whole = RunInPieces(engine.get(), PolicyOf(policy), rows, 700, 4096);
    for (const int64_t piece : {64, 192}) {
      SCOPED_TRACE(absl::StrCat("policy ", policy, ", pieces of ", piece));
      const StepOutput pieces = RunInPieces(engine.get(), PolicyOf(policy), rows, 700, piece);
      // Equal to the last bit: doubles hold every fp32 number.
      EXPECT_EQ(pieces.out, whole.out);
      EXPECT_EQ(pieces.log_sum_exp, whole.log_sum_exp);
    }
  }
}

TEST(Pieces, OfAnySizeGiveTheSameDenseAttentionWithinRounding) {
  const auto engine = MakeTestEngine();
  const ModelShape model = BatchModel();
  Random random;
  const TokenRows rows = RandomTokens(model, 400, ValueKind::kGaussian, &random);
  const StepOutput whole = RunInPieces(engine.get(), SmallDense(), rows, 395, 4096);
  for (const int64_t piece : {1, 63, 65}) {
    SCOPED_TRACE(absl::StrCat("pieces of ", piece));
    const StepOutput pieces = RunInPieces(engine.get(), SmallDense(), rows, 395, piece);
    // fp32 sums in another order.
    EXPECT_TRUE(IsClose("out", {{rows.tokens, model.num_heads, model.head_dim}}, pieces.out,
                        whole.out, {.nmse = 1e-12, .max_abs = 4e-6}));
    EXPECT_TRUE(IsClose("log_sum_exp", {{rows.tokens, model.num_heads}}, pieces.log_sum_exp,
                        whole.log_sum_exp, {.nmse = 1e-12, .max_abs = 4e-6}));
  }
}

}  // namespace
}  // namespace longshore
