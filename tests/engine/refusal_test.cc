// A call that fails changes nothing: not the session, not the pool, not the mask, not what comes
// next. Wrong values: refusal_values_test.cc; a full pool: pool_full_test.cc.

#include "tests/engine/refusal_test.h"

#include <cmath>

namespace longshore {
namespace {

using ::testing::HasSubstr;

std::vector<Refusal> SpoiltItems() {
  using absl::StatusCode;
  const auto item = [](auto change) {
    return [change](SpoiltCall* spoilt) { change(&spoilt->items[0]); };
  };
  return {
      {.name = "gap",
       .spoil_call = item([](StepItem* it) { it->position += 5; }),
       .code = StatusCode::kOutOfRange,
       .reason = "POSITION_GAP",
       .field = "items[0].position",
       .message = "position 505 leaves a gap: expected position 500"},
      {.name = "overlap",
       .spoil_call = item([](StepItem* it) { it->position -= 1; }),
       .code = StatusCode::kAborted,
       .reason = "POSITION_CONFLICT",
       .field = "items[0].position",
       .message = "expected position 500"},
      {.name = "negative position",
       .spoil_call = item([](StepItem* it) { it->position = -1; }),
       .field = "items[0].position",
       .message = "-1 is less than 0"},
      {.name = "largest position",
       .spoil_call = item([](StepItem* it) { it->position = INT64_MAX; }),
       .code = StatusCode::kOutOfRange,
       .reason = "POSITION_GAP",
       .field = "items[0].position",
       .message = "expected position 500"},
      {.name = "no rows",
       .spoil_call = item([](StepItem* it) { it->rows = 0; }),
       .field = "items[0].rows",
       .message = "0 is not in 1..64"},
      {.name = "rows of a prefill",
       .spoil_call = item([](StepItem* it) { it->rows = 65; }),
       .field = "items[0].rows",
       .message = "65 is not in 1..64"},
      {.name = "rows that overflow",
       .spoil_call = item([](StepItem* it) { it->rows = INT64_MAX; }),
       .field = "items[0].rows",
       .message = "is not in 1..64"},
      {.name = "past max_tokens",
       .spoil_call = item([](StepItem* it) { it->rows = 21; }),
       .code = StatusCode::kOutOfRange,
       .reason = "MAX_TOKENS",
       .field = "items[0].rows",
       .message = "rows 21 from position 500 pass the session's max_tokens 520"},
      {.name = "unknown session",
       .spoil_call = item([](StepItem* it) { it->session_id = 12345; }),
       .code = StatusCode::kNotFound,
       .reason = "SESSION_NOT_FOUND",
       .field = "items[0].session_id",
       .message = "12345"},
      {.name = "the session twice",
       .spoil_call = [](SpoiltCall* spoilt) { spoilt->items.push_back(spoilt->items[0]); },
       .field = "items[1].session_id",
       .message = "is in this call twice"},
      {.name = "no items",
       .spoil_call = [](SpoiltCall* spoilt) { spoilt->items.clear(); },
       .field = "items",
       .message = "is empty"},
      {.name = "too many items",
       .spoil_call = [](SpoiltCall* spoilt) { spoilt->items.resize(257, spoilt->items[0]); },
       .field = "items",
       .message = "257"},
      {.name = "negative layer",
       .spoil_call = [](SpoiltCall* spoilt) { spoilt->call.layer = -1; },
       .field = "layer",
       .message = "-1 is not below num_layers 1"},
      {.name = "layer past the last",
       .spoil_call = [](SpoiltCall* spoilt) { spoilt->call.layer = 1; },
       .field = "layer",
       .message = "1 is not below num_layers 1"},
  };
}

// For every tensor: missing, of another rank, of another extent on each axis, of another dtype.
std::vector<Refusal> SpoiltTensors() {
  struct Tensor {
    std::string name;
    TensorRef StepCall::*tensor;
    bool optional;
  };
  std::vector<Refusal> refusals;
  for (const Tensor& of : {Tensor{"q", &StepCall::q, false}, Tensor{"k", &StepCall::k, false},
                           Tensor{"v", &StepCall::v, false}, Tensor{"out", &StepCall::out, false},
                           Tensor{"log_sum_exp", &StepCall::log_sum_exp, true}}) {
    const auto spoil = [&of](auto change) {
      return [tensor = of.tensor, change](SpoiltCall* spoilt) { change(&(spoilt->call.*tensor)); };
    };
    if (!of.optional) {
      refusals.push_back({.name = of.name + " missing",
                          .spoil_call = spoil([](TensorRef* ref) { ref->data = nullptr; }),
                          .field = of.name,
                          .message = of.name + " is missing"});
    }
    refusals.push_back({.name = of.name + " rank",
                        .spoil_call = spoil([](TensorRef* ref) { ref->rank += 1; }),
                        .field = of.name + ".shape",
                        .message = " axes, not "});
    for (size_t axis = 0; axis < (of.optional ? 2 : 3); ++axis) {
      for (const int64_t change : {-1, 1}) {
        refusals.push_back(
            {.name = of.name + " axis " + std::to_string(axis),
             .spoil_call = spoil([=](TensorRef* ref) { ref->shape[axis] += change; }),
             .field = of.name + ".shape[" + std::to_string(axis) + "]",
             .message = " is not "});
      }
    }
    refusals.push_back({.name = of.name + " dtype",
                        .spoil_call = spoil([](TensorRef* ref) { ref->dtype = DType::kBf16; }),
                        .field = of.name + ".dtype",
                        .message = "bf16 is not "});
  }
  refusals.push_back({.name = "v of another dtype than k",
                      .spoil_call = [](SpoiltCall* spoilt) { spoilt->call.v.dtype = DType::kF16; },
                      .field = "v.dtype",
                      .message = "v.dtype f16 is not k.dtype f32"});
  return refusals;
}

TEST_F(RefusalTest, OfItemsChangesNothing) {
  for (const Refusal& refusal : SpoiltItems()) {
    Expect(refusal);
  }
  ExpectNothingChanged();
}

TEST_F(RefusalTest, OfTensorsChangesNothing) {
  for (const Refusal& refusal : SpoiltTensors()) {
    Expect(refusal);
  }
  ExpectNothingChanged();
}

// A call applies whole or not at all: what is wrong with one item keeps the others from applying.
TEST_F(RefusalTest, OfOneItemRefusesTheBatch) {
  Random random(3);
  const SessionState subject = StateOf(*engine_, subject_.id());
  const SessionState twin = StateOf(*engine_, twin_.id());
  std::vector<CallPart> parts(2);
  parts[0] = {.session_id = twin_.id(),
              .position = kContext,
              .append_id = 9,
              .rows = RandomTokens(model_, 20, ValueKind::kGaussian, &random)};
  parts[1] = parts[0];
  parts[1].session_id = subject_.id();
  parts[1].rows.k[700] = std::nan("");
  EXPECT_EQ(RunCall(engine_.get(), StepKind::kPrefill, 0, parts).status().code(),
            absl::StatusCode::kInvalidArgument);
  parts[1].rows = parts[0].rows;
  parts[1].position += 1;
  EXPECT_EQ(RunCall(engine_.get(), StepKind::kPrefill, 0, parts).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(StateOf(*engine_, subject_.id()) == subject);
  EXPECT_TRUE(StateOf(*engine_, twin_.id()) == twin);
  ExpectNothingChanged();
}

TEST_F(RefusalTest, OfMixedModelsNamesBoth) {
  ModelShape other = model_;
  other.softmax_scale = 0.5F;
  EngineSession stranger(engine_.get(), TestSpec(other, SmallStandard(), kMaxTokens));
  Random random(3);
  std::vector<CallPart> parts(2);
  parts[0] = {.session_id = subject_.id(),
              .position = kContext,
              .append_id = 9,
              .rows = RandomTokens(model_, 1, ValueKind::kGaussian, &random)};
  parts[1] = {.session_id = stranger.id(), .position = 0, .append_id = 9, .rows = parts[0].rows};
  const absl::Status status = RunCall(engine_.get(), StepKind::kDecode, 0, parts).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DetailsOf(status)->field, "items[1].session_id");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("has another model shape than items[0].session_id"));
  ExpectNothingChanged();
}

}  // namespace
}  // namespace longshore
