// Steps that are taken: lengths, shapes, replays, batches, pieces.

#include <string>

#include "client/cpp/ctl/conformance.h"
#include "engine/core/status.h"

namespace longshore::ctl {
namespace {

absl::Status LayersHaveTheirOwnLengths(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  ASSIGN_OR_RETURN(const v1::AppendKVResponse appended,
                   wire.Call(MakeStep<v1::AppendKVRequest>(session, 0, StepData(7, 1), 1)));
  if (appended.layer_tokens_size() != 1 || appended.layer_tokens(0) != 7) {
    return Fail("7 rows appended, and layer_tokens says otherwise");
  }
  RETURN_IF_ERROR(wire.Call(MakeStep<v1::PrefillRequest>(session, 0, StepData(3, 2))).status());
  RETURN_IF_ERROR(wire.Call(MakeStep<v1::DecodeStepRequest>(session, 3, StepData(1, 3))).status());
  return ExpectTokens(wire, session, {4, 7});
}

absl::Status OutputsHaveTheirShapes(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  v1::PrefillRequest prefill = MakeStep<v1::PrefillRequest>(session, 0, StepData(5, 1));
  ASSIGN_OR_RETURN(const v1::PrefillResponse plain, wire.Call(prefill));
  const v1::Tensor& out = plain.out();
  if (out.dtype() != v1::DTYPE_F32 || out.shape_size() != 3 || out.shape(0) != 5 ||
      out.shape(1) != kHeads || out.shape(2) != kHeadDim ||
      out.inline_data().size() != size_t{5} * kHeads * kHeadDim * sizeof(float)) {
    return Fail("out of 5 rows is ", out.ShortDebugString().substr(0, 100));
  }
  if (plain.has_log_sum_exp()) {
    return Fail("log_sum_exp comes without being asked for");
  }
  v1::DecodeStepRequest decode = MakeStep<v1::DecodeStepRequest>(session, 5, StepData(2, 2));
  decode.set_want_log_sum_exp(true);
  ASSIGN_OR_RETURN(const v1::DecodeStepResponse asked, wire.Call(decode));
  const v1::Tensor& lse = asked.log_sum_exp();
  return lse.dtype() == v1::DTYPE_F32 && lse.shape_size() == 2 && lse.shape(0) == 2 &&
                 lse.shape(1) == kHeads
             ? absl::OkStatus()
             : Fail("log_sum_exp of 2 rows is ", lse.ShortDebugString().substr(0, 100));
}

// Sends `request` twice: the second is a replay.
template <typename Request>
absl::Status CheckReplay(Wire& wire, uint64_t session, const Request& request, int64_t tokens) {
  const auto once = wire.Call(request);
  RETURN_IF_ERROR(once.status());
  const auto again = wire.Call(request);
  RETURN_IF_ERROR(again.status());
  if (once->SerializeAsString() != again->SerializeAsString()) {
    return Fail("a replay answers other bits");
  }
  return ExpectTokens(wire, session, {tokens, 0});
}

absl::Status ReplaysGiveTheSameBits(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open("standard"));
  RETURN_IF_ERROR(
      CheckReplay(wire, session, MakeStep<v1::PrefillRequest>(session, 0, StepData(70, 1)), 70));
  RETURN_IF_ERROR(
      CheckReplay(wire, session, MakeStep<v1::AppendKVRequest>(session, 70, StepData(3, 2)), 73));
  v1::DecodeStepRequest decode = MakeStep<v1::DecodeStepRequest>(session, 73, StepData(1, 3));
  decode.set_want_log_sum_exp(true);
  return CheckReplay(wire, session, decode, 74);
}

absl::Status NoReplayWithoutTheSameId(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  v1::DecodeStepRequest step = MakeStep<v1::DecodeStepRequest>(session, 0, StepData(1, 1));
  RETURN_IF_ERROR(wire.Call(step).status());
  const auto refused = [&] {
    return ExpectError(wire.Call(step).status(), absl::StatusCode::kAborted, "POSITION_CONFLICT",
                       "items[0].position");
  };
  step.mutable_items(0)->set_append_id(step.items(0).append_id() + 1);
  RETURN_IF_ERROR(refused());
  step.mutable_items(0)->set_append_id(0);
  RETURN_IF_ERROR(refused());
  step.mutable_items(0)->set_position(1);
  RETURN_IF_ERROR(wire.Call(step).status());  // id 0: taken, and never to be repeated
  RETURN_IF_ERROR(refused());
  return ExpectTokens(wire, session, {2, 0});
}

absl::Status ReplayOfAnotherMethodIsAConflict(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  const v1::PrefillRequest prefill = MakeStep<v1::PrefillRequest>(session, 0, StepData(1, 1));
  RETURN_IF_ERROR(wire.Call(prefill).status());
  v1::DecodeStepRequest decode = MakeStep<v1::DecodeStepRequest>(session, 0, StepData(1, 1));
  decode.mutable_items(0)->set_append_id(prefill.items(0).append_id());
  return ExpectError(wire.Call(decode).status(), absl::StatusCode::kAborted, "POSITION_CONFLICT",
                     "items[0].position");
}

// Two sessions in one decode step; the rows of the second one at `position`.
v1::DecodeStepRequest Batch(uint64_t first, uint64_t second, int64_t position) {
  const StepData both(2, 9);
  v1::DecodeStepRequest request = MakeStep<v1::DecodeStepRequest>(first, 0, both);
  request.mutable_items(0)->set_rows(1);
  *request.add_items() = request.items(0);
  request.mutable_items(1)->set_session_id(second);
  request.mutable_items(1)->set_position(position);
  return request;
}

absl::Status BatchGivesTheBitsOfSingleCalls(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t first, wire.Open());
  ASSIGN_OR_RETURN(const uint64_t second, wire.Open());
  ASSIGN_OR_RETURN(const v1::DecodeStepResponse batch, wire.Call(Batch(first, second, 0)));
  std::string singles;
  const StepData both(2, 9);
  for (size_t row = 0; row < 2; ++row) {
    ASSIGN_OR_RETURN(const uint64_t alone, wire.Open());
    StepData one(1, 1);
    const auto part = [row](const std::vector<float>& values) {
      const auto half = static_cast<std::ptrdiff_t>(values.size() / 2);
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row) * half;
      return std::vector<float>(begin, begin + half);
    };
    one.q = part(both.q);
    one.k = part(both.k);
    one.v = part(both.v);
    ASSIGN_OR_RETURN(const v1::DecodeStepResponse answer,
                     wire.Call(MakeStep<v1::DecodeStepRequest>(alone, 0, one)));
    singles += answer.out().inline_data();
  }
  return batch.out().inline_data() == singles ? absl::OkStatus()
                                              : Fail("a batch gives other bits than its items");
}

absl::Status BatchAppliesWholeOrNotAtAll(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t first, wire.Open());
  ASSIGN_OR_RETURN(const uint64_t second, wire.Open());
  RETURN_IF_ERROR(ExpectError(wire.Call(Batch(first, second, 5)).status(),
                              absl::StatusCode::kOutOfRange, "POSITION_GAP", "items[1].position"));
  RETURN_IF_ERROR(ExpectTokens(wire, first, {0, 0}));
  RETURN_IF_ERROR(ExpectError(wire.Call(Batch(first, first, 0)).status(),
                              absl::StatusCode::kInvalidArgument, "INVALID_FIELD",
                              "items[1].session_id"));
  return ExpectTokens(wire, first, {0, 0});
}

absl::Status PiecesOf64GiveTheSameBits(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t whole, wire.Open("standard"));
  ASSIGN_OR_RETURN(const uint64_t cut, wire.Open("standard"));
  const StepData all(192, 1);
  ASSIGN_OR_RETURN(const v1::PrefillResponse expected,
                   wire.Call(MakeStep<v1::PrefillRequest>(whole, 0, all)));
  std::string pieces;
  for (int64_t begin = 0; begin < 192; begin += 64) {
    StepData piece(64, 1);
    const auto part = [begin](const std::vector<float>& values, int64_t heads) {
      const auto first = values.begin() + begin * heads * kHeadDim;
      return std::vector<float>(first, first + 64 * heads * kHeadDim);
    };
    piece.q = part(all.q, kHeads);
    piece.k = part(all.k, kKvHeads);
    piece.v = part(all.v, kKvHeads);
    ASSIGN_OR_RETURN(const v1::PrefillResponse answer,
                     wire.Call(MakeStep<v1::PrefillRequest>(cut, begin, piece)));
    pieces += answer.out().inline_data();
  }
  return expected.out().inline_data() == pieces
             ? absl::OkStatus()
             : Fail("a prompt cut at multiples of 64 gives other bits than a whole one");
}

}  // namespace

std::span<const ConformanceCase> StepCases() {
  static constexpr ConformanceCase kCases[] = {
      {"layers have their own lengths", LayersHaveTheirOwnLengths},
      {"outputs have their shapes; log_sum_exp when asked for", OutputsHaveTheirShapes},
      {"a replay gives the same bits and appends nothing", ReplaysGiveTheSameBits},
      {"without the same append_id it is a conflict", NoReplayWithoutTheSameId},
      {"another method is no replay", ReplayOfAnotherMethodIsAConflict},
      {"a batch gives the bits of its items", BatchGivesTheBitsOfSingleCalls},
      {"a batch applies whole or not at all", BatchAppliesWholeOrNotAtAll},
      {"a prompt cut at multiples of 64 gives the same bits", PiecesOf64GiveTheSameBits},
  };
  return kCases;
}

}  // namespace longshore::ctl
