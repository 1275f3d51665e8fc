// What comes out is attention: against fp64, and exactly where numbers can be exact.

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "client/cpp/ctl/conformance.h"
#include "client/cpp/ctl/reference_attention.h"
#include "client/cpp/src/convert.h"
#include "engine/core/status.h"

namespace longshore::ctl {
namespace {

// fp32 sums of a few hundred terms of size 1, in any order.
constexpr double kTolerance = 2e-5;

absl::Status ExpectNear(const std::string& what,
                        const std::vector<float>& got,
                        const std::vector<double>& expected) {
  if (got.size() != expected.size()) {
    return Fail(what, " has ", got.size(), " elements instead of ", expected.size());
  }
  for (size_t element = 0; element < got.size(); ++element) {
    if (!(std::abs(got[element] - expected[element]) <=
          kTolerance * std::max(1.0, std::abs(expected[element])))) {
      return Fail(what, " element ", element, " is ", got[element], ", fp64 attention gives ",
                  expected[element]);
    }
  }
  return absl::OkStatus();
}

// A prompt and some single tokens under `preset`, all shorter than what any preset prunes.
absl::Status CheckAgainstFp64(Wire& wire, const client::ModelShape& model, const char* preset) {
  v1::OpenSessionRequest open = OpenRequest(preset);
  *open.mutable_model() = client::ToWire(model);
  ASSIGN_OR_RETURN(const v1::OpenSessionResponse opened, wire.Open(open));
  const uint64_t session = opened.session_id();
  ReferenceAttention reference(model);
  const StepData prompt(130, 1);
  v1::PrefillRequest prefill = MakeStep<v1::PrefillRequest>(session, 0, prompt);
  prefill.set_want_log_sum_exp(true);
  ASSIGN_OR_RETURN(const v1::PrefillResponse prefilled, wire.Call(prefill));
  reference.Append(prompt.k, prompt.v);
  ReferenceAttention::Result expected = reference.Attend(0, prompt.q);
  RETURN_IF_ERROR(ExpectNear("prefill: out", FloatsOf(prefilled.out()), expected.out));
  RETURN_IF_ERROR(
      ExpectNear("prefill: log_sum_exp", FloatsOf(prefilled.log_sum_exp()), expected.log_sum_exp));
  for (int64_t position = prompt.rows; position < prompt.rows + 20; ++position) {
    const StepData next(1, static_cast<uint32_t>(position));
    v1::DecodeStepRequest decode = MakeStep<v1::DecodeStepRequest>(session, position, next);
    decode.set_want_log_sum_exp(true);
    ASSIGN_OR_RETURN(const v1::DecodeStepResponse decoded, wire.Call(decode));
    reference.Append(next.k, next.v);
    expected = reference.Attend(position, next.q);
    RETURN_IF_ERROR(ExpectNear("decode: out", FloatsOf(decoded.out()), expected.out));
    RETURN_IF_ERROR(
        ExpectNear("decode: log_sum_exp", FloatsOf(decoded.log_sum_exp()), expected.log_sum_exp));
  }
  return absl::OkStatus();
}

absl::Status DenseIsAttention(Wire& wire) {
  return CheckAgainstFp64(wire, ConformanceModel(), "dense");
}

absl::Status ShortContextsAreWhole(Wire& wire) {
  return CheckAgainstFp64(wire, ConformanceModel(), "standard");
}

absl::Status OddModelsAreAttention(Wire& wire) {
  client::ModelShape model = ConformanceModel();
  model.rope_tables.front().pairing = client::RopePairing::kInterleaved;
  model.rope_tables.front().inv_freq.resize(kHeadDim / 4);  // partial: the rest passes through
  model.rope_tables.front().attention_scaling = 1.25F;
  model.softmax_scale = 0.2F;
  model.logit_soft_cap = 5.0F;
  return CheckAgainstFp64(wire, model, "dense");
}

// A session without rotary embedding and with a scale of 1, so that scores of integers are exact.
absl::StatusOr<uint64_t> OpenExact(Wire& wire) {
  v1::OpenSessionRequest open = OpenRequest("dense");
  open.mutable_model()->clear_rope_tables();
  open.mutable_model()->mutable_layer_rope_table()->Resize(kLayers, -1);
  open.mutable_model()->set_softmax_scale(1.0F);
  ASSIGN_OR_RETURN(const v1::OpenSessionResponse opened, wire.Open(open));
  return opened.session_id();
}

// Small integers, the same for the same seed.
std::vector<float> Integers(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  std::generate(values.begin(), values.end(),
                [&] { return static_cast<float>(static_cast<int>(random() % 9) - 4); });
  return values;
}

// All keys are equal, so every token weighs the same: out is the mean of the values, which is exact
// where their number is a power of two.
absl::Status EqualKeysGiveTheExactMean(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, OpenExact(wire));
  StepData data(64, 1);
  data.q = Integers(data.q.size(), 1);
  std::fill(data.k.begin(), data.k.end(), 2.0F);
  data.v = Integers(data.v.size(), 2);
  ASSIGN_OR_RETURN(const v1::PrefillResponse answer,
                   wire.Call(MakeStep<v1::PrefillRequest>(session, 0, data)));
  const std::vector<float> out = FloatsOf(answer.out());
  for (size_t row : {0, 1, 3, 7, 15, 31, 63}) {
    for (size_t head = 0; head < kHeads; ++head) {
      const size_t kv_head = head * kKvHeads / kHeads;
      for (size_t element = 0; element < kHeadDim; ++element) {
        float sum = 0;
        for (size_t token = 0; token <= row; ++token) {
          sum += data.v[(token * kKvHeads + kv_head) * kHeadDim + element];
        }
        const float mean = sum / static_cast<float>(row + 1);
        const float got = out[(row * kHeads + head) * kHeadDim + element];
        if (got != mean) {
          return Fail("row ", row, " head ", head, " element ", element, " is ", got,
                      ", the mean of its values is ", mean);
        }
      }
    }
  }
  return absl::OkStatus();
}

// Token t's key is 16 at element t and 0 elsewhere, and each query asks for one token with 16: its
// score is 256 and every other one's 0, whose weights vanish in fp32. So out is that token's value.
absl::Status FarScoresGiveTheExactValue(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, OpenExact(wire));
  StepData data(kHeadDim, 1);
  std::fill(data.q.begin(), data.q.end(), 0.0F);
  std::fill(data.k.begin(), data.k.end(), 0.0F);
  data.v = Integers(data.v.size(), 3);
  const auto asked_for = [](size_t row, size_t head) { return (row * 7 + head * 5) % (row + 1); };
  for (size_t row = 0; row < kHeadDim; ++row) {
    for (size_t head = 0; head < kKvHeads; ++head) {
      data.k[(row * kKvHeads + head) * kHeadDim + row] = 16.0F;
    }
    for (size_t head = 0; head < kHeads; ++head) {
      data.q[(row * kHeads + head) * kHeadDim + asked_for(row, head)] = 16.0F;
    }
  }
  ASSIGN_OR_RETURN(const v1::PrefillResponse answer,
                   wire.Call(MakeStep<v1::PrefillRequest>(session, 0, data)));
  const std::vector<float> out = FloatsOf(answer.out());
  for (size_t row = 0; row < kHeadDim; ++row) {
    for (size_t head = 0; head < kHeads; ++head) {
      const size_t token = asked_for(row, head);
      const size_t value = (token * kKvHeads + head * kKvHeads / kHeads) * kHeadDim;
      const size_t at = (row * kHeads + head) * kHeadDim;
      if (!std::equal(out.begin() + static_cast<std::ptrdiff_t>(at),
                      out.begin() + static_cast<std::ptrdiff_t>(at + kHeadDim),
                      data.v.begin() + static_cast<std::ptrdiff_t>(value))) {
        return Fail("row ", row, " head ", head, " is not the value of token ", token);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::span<const ConformanceCase> ValueCases() {
  static constexpr ConformanceCase kCases[] = {
      {"integers: equal keys give the exact mean of the values", EqualKeysGiveTheExactMean},
      {"integers: far scores give the exact value", FarScoresGiveTheExactValue},
      {"dense is attention, as fp64 computes it", DenseIsAttention},
      {"a short context is attended whole by standard", ShortContextsAreWhole},
      {"interleaved and partial rotary, scaling, scale, soft-cap", OddModelsAreAttention},
  };
  return kCases;
}

}  // namespace longshore::ctl
