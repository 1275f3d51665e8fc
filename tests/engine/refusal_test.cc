// A call that fails changes nothing: not the session, not the pool, not the mask, not what comes
// next.

#include <cmath>
#include <functional>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/engine_session.h"
#include "tests/support/host_tensor.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMaxTokens = 520;
constexpr int64_t kContext = 500;

ModelShape HalfModel() {
  ModelShape model = TestModel(4, 2);
  model.query_dtype = DType::kF32;
  model.kv_dtype = DType::kF16;
  return model;
}

// A decode call of three rows that would succeed, to be spoilt.
struct SpoiltCall {
  std::vector<StepItem> items;
  std::vector<double> q, k, v;
  HostTensor out;
  HostTensor log_sum_exp;
  StepCall call;

  SpoiltCall(const ModelShape& model, uint64_t session_id, int64_t position)
      : out(model.query_dtype, {3, model.num_heads, model.head_dim}),
        log_sum_exp(DType::kF32, {3, model.num_heads}) {
    Random random(99);
    const TokenRows rows = RandomTokens(model, 3, ValueKind::kGaussian, &random);
    q = rows.q;
    k = rows.k;
    v = rows.v;
    items = {{.session_id = session_id, .position = position, .rows = 3, .append_id = 77}};
  }
};

// What is wrong, how it is spoilt, and what the error must say. `spoil_values` runs before the
// values are rounded to their dtypes, `spoil_call` after.
struct Refusal {
  std::string name;
  std::function<void(SpoiltCall*)> spoil_values = [](SpoiltCall*) {};
  std::function<void(SpoiltCall*)> spoil_call = [](SpoiltCall*) {};
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  std::string reason = "INVALID_FIELD";
  std::string field;
  std::string message;
};

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
  return refusals;
}

// NaN and infinity in every input, and a value that KV storage cannot hold.
std::vector<Refusal> SpoiltValues() {
  struct Input {
    std::string name;
    std::vector<double> SpoiltCall::*values;
    int64_t heads;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<Refusal> refusals;
  for (const Input& of : {Input{"q", &SpoiltCall::q, 4}, Input{"k", &SpoiltCall::k, 2},
                          Input{"v", &SpoiltCall::v, 2}}) {
    for (const double value : {std::nan(""), kInfinity, -kInfinity, 7e4}) {
      refusals.push_back(
          {.name = of.name + " holds " + std::to_string(value),
           .spoil_values =
               [=](SpoiltCall* spoilt) {
                 // Row 1, last head, element 5.
                 const auto index = static_cast<size_t>((2 * of.heads - 1) * 64 + 5);
                 (spoilt->*of.values)[index] = value;
               },
           .reason = "NON_FINITE",
           .field = of.name,
           .message = "at position 501, head " + std::to_string(of.heads - 1) + ", element 5"});
    }
  }
  return refusals;
}

class RefusalTest : public ::testing::Test {
 protected:
  RefusalTest()
      : model_(HalfModel()),
        engine_(MakeTestEngine()),
        subject_(engine_.get(), TestSpec(model_, SmallStandard(), kMaxTokens)),
        twin_(engine_.get(), TestSpec(model_, SmallStandard(), kMaxTokens)) {
    Random random;
    Both(StepKind::kAppend, RandomTokens(model_, kContext - 1, ValueKind::kGaussian, &random));
    Both(StepKind::kDecode, RandomTokens(model_, 1, ValueKind::kGaussian, &random));
  }

  void Both(StepKind kind, const TokenRows& rows) {
    const auto output = subject_.Run(kind, rows);
    const auto expected = twin_.Run(kind, rows);
    ASSERT_TRUE(output.ok() && expected.ok());
    EXPECT_TRUE(IsSameBits(*output, *expected));
  }

  void Expect(const Refusal& refusal) {
    SCOPED_TRACE(refusal.name);
    const SessionState before = StateOf(*engine_, subject_.id());
    SpoiltCall spoilt(model_, subject_.id(), kContext);
    refusal.spoil_values(&spoilt);
    const int64_t width = model_.head_dim;
    // In fp32, which fp16 storage has to convert: values that do not fit are seen.
    HostTensor q(DType::kF32, {3, model_.num_heads, width}, spoilt.q);
    HostTensor k(DType::kF32, {3, model_.num_kv_heads, width}, spoilt.k);
    HostTensor v(DType::kF32, {3, model_.num_kv_heads, width}, spoilt.v);
    spoilt.call.q = q.Ref();
    spoilt.call.k = k.Ref();
    spoilt.call.v = v.Ref();
    spoilt.call.out = spoilt.out.Ref();
    spoilt.call.log_sum_exp = spoilt.log_sum_exp.Ref();
    refusal.spoil_call(&spoilt);
    spoilt.call.items = spoilt.items;
    const absl::Status status = engine_->Submit(spoilt.call).status();
    EXPECT_EQ(status.code(), refusal.code) << status;
    const auto details = DetailsOf(status);
    ASSERT_TRUE(details.has_value()) << status;
    EXPECT_EQ(details->reason, refusal.reason);
    EXPECT_EQ(details->field, refusal.field);
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.message));
    EXPECT_TRUE(StateOf(*engine_, subject_.id()) == before) << "the refused call changed something";
  }

  // The refused calls left no trace: what comes next is what it would have been.
  void ExpectNothingChanged() {
    Random random(2);
    Both(StepKind::kDecode, RandomTokens(model_, 1, ValueKind::kGaussian, &random));
    Both(StepKind::kDecode, RandomTokens(model_, 15, ValueKind::kGaussian, &random));
    Both(StepKind::kPrefill, RandomTokens(model_, 4, ValueKind::kGaussian, &random));
  }

  ModelShape model_;
  std::unique_ptr<Engine> engine_;
  EngineSession subject_;
  EngineSession twin_;
};

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

TEST_F(RefusalTest, OfValuesChangesNothing) {
  for (const Refusal& refusal : SpoiltValues()) {
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

// One slab of 8 MiB holds 128 pages of this model.
TEST(PoolFull, RefusesTheCallAndKeepsWhatIsThere) {
  const auto engine = MakeTestEngine("cpu", 1, int64_t{8} << 20);
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
