// Inputs as large as an engine takes give finite outputs; larger ones are refused.

#include "engine/magnitude.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/core/half.h"
#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

constexpr float kHalf = 65504.0F;

TEST(LargestInputs, FollowFromTypesAndScaling) {
  const InputLimits plain = LargestInputs(DType::kF32, DType::kBf16, 0.0F);
  EXPECT_EQ(plain.q, 0x1p48F);
  EXPECT_EQ(plain.k, 0x1p48F);
  EXPECT_EQ(plain.v, 0x1p90F);
  const InputLimits turned = LargestInputs(DType::kBf16, DType::kF16, 1.0F);
  EXPECT_EQ(turned.q, kHalf / 2);
  EXPECT_EQ(turned.k, kHalf / 2);
  EXPECT_EQ(turned.v, kHalf);
  const InputLimits scaled = LargestInputs(DType::kF16, DType::kF32, 4.0F);
  EXPECT_EQ(scaled.q, 0x1p43F);  // keys that are used unrotated leave their factor to the query
  EXPECT_EQ(scaled.k, 0x1p45F);
  EXPECT_EQ(scaled.v, kHalf);                                            // what the output can hold
  EXPECT_EQ(LargestInputs(DType::kF32, DType::kF32, 0.25F).k, 0x1p47F);  // some elements pass
}

// The element of `dtype` whose bits are `steps` from that of `value`, for value > 0.
float Step(float value, DType dtype, int32_t steps) {
  switch (dtype) {
    case DType::kBf16: return ToFloat(Bf16{static_cast<uint16_t>(ToBf16(value).bits + steps)});
    case DType::kF16: return ToFloat(F16{static_cast<uint16_t>(ToF16(value).bits + steps)});
    default: return FloatOf(BitsOf(value) + static_cast<uint32_t>(steps));
  }
}

// The largest element that is at most `limit`.
float LargestWithin(float limit, DType dtype) {
  const float capped = std::min(limit, LargestOf(dtype));
  const float nearest = Step(capped, dtype, 0);
  return nearest > capped ? Step(capped, dtype, -1) : nearest;
}

enum class Signs : uint8_t { kOfTokens, kOfElements };

// Tokens at the limits. With signs by token all products of a query and a key add up.
TokenRows ExtremeTokens(const ModelShape& model,
                        int64_t tokens,
                        const InputLimits& largest,
                        Signs signs,
                        Random* random) {
  const auto fill = [&](int64_t heads, float magnitude) {
    std::vector<double> values;
    double sign = 1.0;
    for (int64_t index = 0; index < tokens * heads * model.head_dim; ++index) {
      if (signs == Signs::kOfElements || index % (heads * model.head_dim) == 0) {
        sign = random->OneIn(2) ? -1.0 : 1.0;
      }
      values.push_back(sign * static_cast<double>(magnitude));
    }
    return values;
  };
  return {.tokens = tokens,
          .q = fill(model.num_heads, largest.q),
          .k = fill(model.num_kv_heads, largest.k),
          .v = fill(model.num_kv_heads, largest.v)};
}

bool AllFinite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

// A stage whose scores or ranks are not finite keeps nothing, or the same token twice.
void ExpectRealSelection(const LayerSelection& selection, const AttentionPolicy& policy) {
  for (const std::vector<int32_t>& tokens : selection.stages) {
    EXPECT_FALSE(tokens.empty());
    int64_t next = policy.sink_tokens;
    for (const int32_t token : tokens) {
      EXPECT_GE(token, next);
      next = token + 1;
    }
    EXPECT_LE(next, selection.mask.middle_end);
  }
}

struct Extreme {
  std::string name;
  ModelShape model;
  AttentionPolicy policy;
};

// Every way from a query to a score: true positions, unrotated keys beside queries that carry
// their factor, no rotary embedding, half a head turned, scores as large as they get, capped.
std::vector<Extreme> Extremes(DType query_dtype, DType kv_dtype) {
  ModelShape model = TestModel(2, 1, 256);
  model.query_dtype = query_dtype;
  model.kv_dtype = kv_dtype;
  model.softmax_scale = kMaxSoftmaxScale;
  ModelShape scaled = model;
  scaled.rope_tables[0].attention_scaling = 1.5F;
  ModelShape beyond = scaled;
  beyond.rope_tables[0].trained_tokens = 64;
  ModelShape most = beyond;
  most.rope_tables[0].attention_scaling = kMaxAttentionScaling;
  ModelShape least = model;
  least.rope_tables = {TestRope(128)};
  least.rope_tables[0].attention_scaling = kMinAttentionScaling;
  ModelShape bare = model;
  bare.rope_tables.clear();
  bare.layer_rope_table = {-1};
  ModelShape capped = beyond;
  capped.logit_soft_cap = kMinLogitSoftCap;
  ModelShape sinks = model;
  sinks.sink_logits = {3e38F, -3e38F};
  return {
      {"true positions", model, SmallStandard()},
      {"scaled", scaled, SmallStandard()},
      {"beyond", beyond, SmallStandard()},
      {"largest scaling", most, SmallStandard()},
      {"smallest scaling", least, SmallStandard()},
      {"no rotary embedding", bare, SmallStandard()},
      {"soft cap", capped, SmallStandard()},
      {"learned sinks", sinks, SmallStandard()},
      {"dense", scaled, SmallDense()},
      {"streaming", beyond, SmallStreaming()},
  };
}

class Magnitude : public ::testing::TestWithParam<std::tuple<DType, DType, bool>> {
 protected:
  Magnitude() : engine_(MakeTestEngine(DefaultTestBackend(), 1, int64_t{32} << 20)) {
    const auto [query_dtype, kv_dtype, kv_in_query_dtype] = GetParam();
    query_dtype_ = query_dtype;
    sent_dtype_ = kv_in_query_dtype ? query_dtype : kv_dtype;
    extremes_ = Extremes(query_dtype, kv_dtype);
    options_.kv_in_query_dtype = kv_in_query_dtype;
  }

  // The largest elements of the dtypes that are sent.
  InputLimits LargestOfModel(const ModelShape& model) const {
    const RopeSpec* rope = model.RopeOf(0);
    const InputLimits limits = LargestInputs(model.query_dtype, model.kv_dtype,
                                             rope == nullptr ? 0.0F : rope->attention_scaling);
    return {.q = LargestWithin(limits.q, query_dtype_),
            .k = LargestWithin(limits.k, sent_dtype_),
            .v = LargestWithin(limits.v, sent_dtype_)};
  }

  std::unique_ptr<Engine> engine_;
  DType query_dtype_ = DType::kF32;
  DType sent_dtype_ = DType::kF32;
  std::vector<Extreme> extremes_;
  CallOptions options_;
  Random random_;
};

TEST_P(Magnitude, AtTheLimitsEverythingIsFinite) {
  for (const Extreme& extreme : extremes_) {
    for (const Signs signs : {Signs::kOfTokens, Signs::kOfElements}) {
      SCOPED_TRACE(absl::StrCat(extreme.name, signs == Signs::kOfTokens ? ", by token" : ""));
      EngineSession session(engine_.get(), TestSpec(extreme.model, extreme.policy, 700));
      const InputLimits largest = LargestOfModel(extreme.model);
      for (const auto& [kind, rows] : std::vector<std::pair<StepKind, int64_t>>{
               {StepKind::kAppend, 500}, {StepKind::kPrefill, 70}, {StepKind::kDecode, 3}}) {
        const auto output = session.Run(
            kind, ExtremeTokens(extreme.model, rows, largest, signs, &random_), 0, options_);
        ASSERT_TRUE(output.ok()) << output.status();
        EXPECT_TRUE(AllFinite(output->out));
        EXPECT_TRUE(AllFinite(output->log_sum_exp));
        ExpectRealSelection(session.Selection(), extreme.policy);
      }
      ASSERT_TRUE(engine_->Close(session.id()).ok());
    }
  }
}

TEST_P(Magnitude, AboveTheLimitsNothingIsTaken) {
  for (const Extreme& extreme : extremes_) {
    EngineSession session(engine_.get(), TestSpec(extreme.model, extreme.policy, 700));
    const InputLimits largest = LargestOfModel(extreme.model);
    ASSERT_TRUE(
        session
            .Run(StepKind::kAppend, RandomTokens(extreme.model, 5, ValueKind::kIntegers, &random_))
            .ok());
    struct Input {
      std::string name;
      std::vector<double> TokenRows::*values;
      float above;
    };
    for (const Input& input : {Input{"q", &TokenRows::q, Step(largest.q, query_dtype_, 1)},
                               Input{"k", &TokenRows::k, Step(largest.k, sent_dtype_, 1)},
                               Input{"v", &TokenRows::v, Step(largest.v, sent_dtype_, 1)}}) {
      SCOPED_TRACE(absl::StrCat(extreme.name, ", ", input.name, " ", input.above));
      const SessionState before = StateOf(*engine_, session.id());
      TokenRows rows = RandomTokens(extreme.model, 3, ValueKind::kIntegers, &random_);
      (rows.*input.values)[300] = -static_cast<double>(input.above);
      const absl::Status status = session.Run(StepKind::kDecode, rows, 0, options_).status();
      ASSERT_TRUE(DetailsOf(status).has_value()) << status;
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(DetailsOf(status)->reason,
                std::isfinite(input.above) ? "OUT_OF_RANGE_VALUE" : "NON_FINITE");
      EXPECT_EQ(DetailsOf(status)->field, input.name);
      EXPECT_TRUE(StateOf(*engine_, session.id()) == before);
    }
    ASSERT_TRUE(engine_->Close(session.id()).ok());
  }
}

std::string MagnitudeName(const ::testing::TestParamInfo<Magnitude::ParamType>& info) {
  const auto [query_dtype, kv_dtype, kv_in_query_dtype] = info.param;
  return absl::StrCat(NameOf(query_dtype), "_", NameOf(kv_dtype),
                      kv_in_query_dtype ? "_converted" : "");
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16};
INSTANTIATE_TEST_SUITE_P(DTypes,
                         Magnitude,
                         ::testing::Combine(::testing::ValuesIn(kDTypes),
                                            ::testing::ValuesIn(kDTypes),
                                            ::testing::Bool()),
                         MagnitudeName);

}  // namespace
}  // namespace longshore
