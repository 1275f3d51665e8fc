// Steps that are refused: with which code, reason, field and numbers, and that nothing changes.

#include <cmath>
#include <limits>
#include <string>

#include <absl/strings/match.h>

#include "client/cpp/ctl/conformance.h"
#include "client/cpp/src/convert.h"
#include "engine/core/status.h"

namespace longshore::ctl {
namespace {

constexpr int64_t kHeld = 20;  // tokens of layer 0 before each refusal

absl::StatusOr<uint64_t> OpenWithTokens(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  RETURN_IF_ERROR(wire.Call(MakeStep<v1::PrefillRequest>(session, 0, StepData(kHeld, 1))).status());
  return session;
}

v1::DecodeStepRequest NextStep(uint64_t session) {
  return MakeStep<v1::DecodeStepRequest>(session, kHeld, StepData(1, 2));
}

// A step that something is done to, and the field that is to blame.
struct Spoilt {
  const char* field;
  void (*spoil)(v1::DecodeStepRequest* request);
};

absl::Status CheckRefused(Wire& wire, std::span<const Spoilt> spoilt) {
  ASSIGN_OR_RETURN(const uint64_t session, OpenWithTokens(wire));
  for (const Spoilt& one : spoilt) {
    v1::DecodeStepRequest request = NextStep(session);
    one.spoil(&request);
    RETURN_IF_ERROR(ExpectError(wire.Call(request).status(), absl::StatusCode::kInvalidArgument,
                                "INVALID_FIELD", one.field));
  }
  return ExpectTokens(wire, session, {kHeld, 0});
}

absl::Status WrongShapes(Wire& wire) {
  static constexpr Spoilt kSpoilt[] = {
      {"q.shape[1]",
       [](auto* request) {
         request->mutable_q()->set_shape(1, 2 * kHeads);
         request->mutable_q()->mutable_inline_data()->append(request->q().inline_data());
       }},
      {"k.shape[1]",
       [](auto* request) {
         request->mutable_k()->set_shape(1, 2 * kKvHeads);
         request->mutable_k()->mutable_inline_data()->append(request->k().inline_data());
       }},
      {"v.shape[2]",
       [](auto* request) {
         request->mutable_v()->set_shape(2, 2 * kHeadDim);
         request->mutable_v()->mutable_inline_data()->append(request->v().inline_data());
       }},
      {"q.shape[0]",
       [](auto* request) {
         request->mutable_q()->set_shape(0, 2);
         request->mutable_q()->mutable_inline_data()->append(request->q().inline_data());
       }},
      {"k.shape", [](auto* request) { request->mutable_k()->add_shape(1); }},
      {"v.shape[1]", [](auto* request) { request->mutable_v()->set_shape(1, -1); }},
      {"q.inline_data",
       [](auto* request) { request->mutable_q()->mutable_inline_data()->pop_back(); }},
      {"k", [](auto* request) { request->clear_k(); }},
      {"v", [](auto* request) { request->mutable_v()->clear_data(); }},
  };
  return CheckRefused(wire, kSpoilt);
}

absl::Status WrongTypes(Wire& wire) {
  static constexpr Spoilt kSpoilt[] = {
      {"q.dtype",
       [](auto* request) {
         request->mutable_q()->set_dtype(v1::DTYPE_F16);
         request->mutable_q()->mutable_inline_data()->resize(request->q().inline_data().size() / 2);
       }},
      {"v.dtype",
       [](auto* request) {
         request->mutable_v()->set_dtype(v1::DTYPE_BF16);
         request->mutable_v()->mutable_inline_data()->resize(request->v().inline_data().size() / 2);
       }},
      {"k.dtype", [](auto* request) { request->mutable_k()->set_dtype(v1::DTYPE_UNSPECIFIED); }},
      {"q.dtype",
       [](auto* request) { request->mutable_q()->set_dtype(static_cast<v1::DType>(99)); }},
  };
  return CheckRefused(wire, kSpoilt);
}

absl::Status WrongItems(Wire& wire) {
  static constexpr Spoilt kSpoilt[] = {
      {"layer", [](auto* request) { request->set_layer(kLayers); }},
      {"layer", [](auto* request) { request->set_layer(-1); }},
      {"items", [](auto* request) { request->clear_items(); }},
      {"items[0].rows", [](auto* request) { request->mutable_items(0)->set_rows(0); }},
      {"items[0].position", [](auto* request) { request->mutable_items(0)->set_position(-1); }},
  };
  return CheckRefused(wire, kSpoilt);
}

absl::Status PositionsThatDoNotFit(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, OpenWithTokens(wire));
  for (const auto& [position, code, reason] :
       {std::tuple(int64_t{0}, absl::StatusCode::kAborted, "POSITION_CONFLICT"),
        std::tuple(kHeld - 1, absl::StatusCode::kAborted, "POSITION_CONFLICT"),
        std::tuple(kHeld + 1, absl::StatusCode::kOutOfRange, "POSITION_GAP"),
        std::tuple(kMaxTokens - 1, absl::StatusCode::kOutOfRange, "POSITION_GAP")}) {
    v1::DecodeStepRequest request = NextStep(session);
    request.mutable_items(0)->set_position(position);
    const absl::Status status = wire.Call(request).status();
    RETURN_IF_ERROR(ExpectError(status, code, reason, "items[0].position"));
    if (client::ExpectedPosition(status) != kHeld) {
      return Fail(reason, " without expected_position ", kHeld, " in its metadata");
    }
  }
  return ExpectTokens(wire, session, {kHeld, 0});
}

absl::Status MoreThanMaxTokens(Wire& wire) {
  v1::OpenSessionRequest open = OpenRequest("dense");
  open.set_max_tokens(kHeld + 2);
  ASSIGN_OR_RETURN(const v1::OpenSessionResponse opened, wire.Open(open));
  const uint64_t session = opened.session_id();
  RETURN_IF_ERROR(wire.Call(MakeStep<v1::PrefillRequest>(session, 0, StepData(kHeld, 1))).status());
  RETURN_IF_ERROR(
      ExpectError(wire.Call(MakeStep<v1::AppendKVRequest>(session, kHeld, StepData(3, 2))).status(),
                  absl::StatusCode::kOutOfRange, "MAX_TOKENS"));
  RETURN_IF_ERROR(ExpectTokens(wire, session, {kHeld, 0}));
  return wire.Call(MakeStep<v1::AppendKVRequest>(session, kHeld, StepData(2, 2))).status();
}

absl::Status NonFiniteValues(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, OpenWithTokens(wire));
  constexpr int64_t kRow = 2;  // of three that is spoilt
  const auto spoil = [](std::vector<float>* values, int64_t heads, float value) {
    (*values)[static_cast<size_t>(kRow * heads * kHeadDim + 5)] = value;
  };
  for (const float value : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (const char* tensor : {"q", "k", "v"}) {
      StepData data(3, 2);
      spoil(*tensor == 'q'   ? &data.q
            : *tensor == 'k' ? &data.k
                             : &data.v,
            *tensor == 'q' ? kHeads : kKvHeads, value);
      const absl::Status status =
          wire.Call(MakeStep<v1::PrefillRequest>(session, kHeld, data)).status();
      RETURN_IF_ERROR(ExpectError(status, absl::StatusCode::kInvalidArgument, "NON_FINITE"));
      if (!absl::StrContains(status.message(), absl::StrCat(kHeld + kRow))) {
        return Fail("the message does not name position ", kHeld + kRow, ": ", status.message());
      }
    }
  }
  return ExpectTokens(wire, session, {kHeld, 0});
}

absl::Status ValuesTooLarge(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, OpenWithTokens(wire));
  StepData data(1, 2);
  data.k[7] = 1e30F;
  RETURN_IF_ERROR(
      ExpectError(wire.Call(MakeStep<v1::DecodeStepRequest>(session, kHeld, data)).status(),
                  absl::StatusCode::kInvalidArgument, "OUT_OF_RANGE_VALUE"));
  return ExpectTokens(wire, session, {kHeld, 0});
}

// After many refusals, the next step gives the bits that it gives without them.
absl::Status ErrorsChangeNothing(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t untouched, OpenWithTokens(wire));
  ASSIGN_OR_RETURN(const v1::DecodeStepResponse expected, wire.Call(NextStep(untouched)));
  ASSIGN_OR_RETURN(const uint64_t session, OpenWithTokens(wire));
  ASSIGN_OR_RETURN(const v1::SessionInfo before, wire.Describe(session));
  v1::DecodeStepRequest gap = NextStep(session);
  gap.mutable_items(0)->set_position(kHeld + 7);
  v1::DecodeStepRequest shape = NextStep(session);
  shape.mutable_v()->add_shape(1);
  StepData broken(70, 3);
  broken.v.back() = std::nanf("");
  if (wire.Call(gap).ok() || wire.Call(shape).ok() || wire.Truncate(session, kHeld + 1).ok() ||
      wire.Call(MakeStep<v1::PrefillRequest>(session, kHeld, broken)).ok()) {
    return Fail("something wrong was taken");
  }
  ASSIGN_OR_RETURN(const v1::SessionInfo after, wire.Describe(session));
  if (after.page_bytes_used() != before.page_bytes_used() ||
      after.page_bytes_reserved() != before.page_bytes_reserved()) {
    return Fail("refused calls took pages: ", before.page_bytes_used(), " bytes before, ",
                after.page_bytes_used(), " after");
  }
  ASSIGN_OR_RETURN(const v1::DecodeStepResponse got, wire.Call(NextStep(session)));
  return got.out().inline_data() == expected.out().inline_data()
             ? absl::OkStatus()
             : Fail("the step after refused ones gives other bits");
}

absl::Status WrongOpenings(Wire& wire) {
  struct Opening {
    const char* field;
    void (*spoil)(v1::OpenSessionRequest* request);
  };
  static constexpr Opening kSpoilt[] = {
      {"model", [](auto* request) { request->clear_model(); }},
      {"policy", [](auto* request) { request->clear_policy(); }},
      {"policy.preset", [](auto* request) { request->mutable_policy()->set_preset("best"); }},
      {"model.num_kv_heads", [](auto* request) { request->mutable_model()->set_num_kv_heads(3); }},
      {"model.head_dim", [](auto* request) { request->mutable_model()->set_head_dim(65); }},
      {"model.kv_dtype",
       [](auto* request) { request->mutable_model()->set_kv_dtype(v1::DTYPE_UNSPECIFIED); }},
      {"model.rope_tables[0].trained_tokens",
       [](auto* request) {
         request->mutable_model()->mutable_rope_tables(0)->set_trained_tokens(0);
       }},
      {"max_tokens", [](auto* request) { request->set_max_tokens(0); }},
      {"name", [](auto* request) { request->set_name(std::string(65, 'x')); }},
  };
  for (const Opening& one : kSpoilt) {
    v1::OpenSessionRequest request = OpenRequest("dense");
    one.spoil(&request);
    RETURN_IF_ERROR(ExpectError(wire.Open(request).status(), absl::StatusCode::kInvalidArgument,
                                "INVALID_FIELD", one.field));
  }
  return absl::OkStatus();
}

}  // namespace

std::span<const ConformanceCase> RefusalCases() {
  static constexpr ConformanceCase kCases[] = {
      {"wrong shapes are named by field", WrongShapes},
      {"wrong element types are named by field", WrongTypes},
      {"wrong layers, items and rows are named by field", WrongItems},
      {"a conflict and a gap tell the expected position", PositionsThatDoNotFit},
      {"rows past max_tokens are MAX_TOKENS", MoreThanMaxTokens},
      {"a NaN or an infinity is refused with its position", NonFiniteValues},
      {"a value that could overflow is refused", ValuesTooLarge},
      {"errors change nothing", ErrorsChangeNothing},
      {"a wrong model, policy or size is named by field", WrongOpenings},
  };
  return kCases;
}

}  // namespace longshore::ctl
