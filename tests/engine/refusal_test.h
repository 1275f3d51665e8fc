#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/engine_session.h"
#include "tests/support/host_tensor.h"
#include "tests/support/test_model.h"

namespace longshore {

inline constexpr int64_t kMaxTokens = 520;
inline constexpr int64_t kContext = 500;

/// Two query heads a KV head; calls in f32, storage in f16.
inline ModelShape HalfModel() {
  ModelShape model = TestModel(4, 2);
  model.query_dtype = DType::kF32;
  model.kv_dtype = DType::kF16;
  return model;
}

/// A decode call of three rows that would succeed, to be spoilt.
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

/// What is wrong, how it is spoilt, and what the error must say. `spoil_values` runs before the
/// values are rounded to their dtypes, `spoil_call` after.
struct Refusal {
  std::string name;
  std::function<void(SpoiltCall*)> spoil_values = [](SpoiltCall*) {};
  std::function<void(SpoiltCall*)> spoil_call = [](SpoiltCall*) {};
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  std::string reason = "INVALID_FIELD";
  std::string field;
  std::string message;
};

/// A session that refuses calls, and its twin that never sees them.
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

  /// Runs `rows` in both sessions, which must agree to the last bit.
  void Both(StepKind kind, const TokenRows& rows) {
    const auto output = subject_.Run(kind, rows);
    const auto expected = twin_.Run(kind, rows);
    ASSERT_TRUE(output.ok() && expected.ok());
    EXPECT_TRUE(IsSameBits(*output, *expected));
  }

  /// Refuses the call that `refusal` describes, and expects the error that it names.
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
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(refusal.message));
    EXPECT_TRUE(StateOf(*engine_, subject_.id()) == before) << "the refused call changed something";
    ExpectCheckAgrees(spoilt.call, status);
  }

  /// Check says the same of a call as Submit, except of values, which it does not read, and of
  /// outputs, which need not be there yet.
  void ExpectCheckAgrees(StepCall call, const absl::Status& submitted) {
    const ErrorDetails details = *DetailsOf(submitted);
    const bool sees = details.reason != "NON_FINITE" && details.reason != "OUT_OF_RANGE_VALUE" &&
                      details.field.rfind("out", 0) != 0 && details.field.rfind("log_", 0) != 0;
    EXPECT_EQ(engine_->Check(call), sees ? submitted : absl::OkStatus());
    call.out = TensorRef{};
    call.log_sum_exp = TensorRef{};
    EXPECT_EQ(engine_->Check(call), sees ? submitted : absl::OkStatus());
  }

  /// The refused calls left no trace: what comes next is what it would have been.
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

}  // namespace longshore
