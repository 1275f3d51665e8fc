// The limits that GetServerInfo tells are kept.

#include <algorithm>
#include <string>

#include "client/cpp/ctl/conformance.h"
#include "engine/core/status.h"

namespace longshore::ctl {
namespace {

// Cases that would send more are left out: what they cost is not worth it.
constexpr int64_t kLargestMessage = int64_t{256} << 20;

const client::Limits& LimitsOf(const Wire& wire) { return wire.info().limits; }

absl::Status LimitsAreTold(Wire& wire) {
  const client::Limits& limits = LimitsOf(wire);
  const std::pair<const char*, int64_t> told[] = {
      {"max_message_bytes", limits.max_message_bytes},
      {"max_rows_per_prefill", limits.max_rows_per_prefill},
      {"max_rows_per_decode_item", limits.max_rows_per_decode_item},
      {"max_items_per_call", limits.max_items_per_call},
      {"max_sessions", limits.max_sessions},
      {"max_tokens_per_session", limits.max_tokens_per_session},
      {"max_queued_calls", limits.max_queued_calls},
      {"pool_bytes", limits.pool_bytes},
      {"max_steps_in_flight", limits.max_steps_in_flight}};
  for (const auto& [name, value] : told) {
    if (value <= 0) {
      return Fail("limits.", name, " is ", value);
    }
  }
  return absl::OkStatus();
}

absl::Status PresetsOpen(Wire& wire) {
  if (wire.info().presets.empty()) {
    return Fail("GetServerInfo tells no presets");
  }
  for (const std::string& preset : wire.info().presets) {
    ASSIGN_OR_RETURN(const uint64_t session, wire.Open(preset));
    RETURN_IF_ERROR(wire.Call(MakeStep<v1::PrefillRequest>(session, 0, StepData(2, 1))).status());
    RETURN_IF_ERROR(wire.Close(session));
  }
  return absl::OkStatus();
}

absl::Status RowsOfADecodeItem(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  const StepData data(LimitsOf(wire).max_rows_per_decode_item + 1, 1);
  RETURN_IF_ERROR(ExpectError(wire.Call(MakeStep<v1::DecodeStepRequest>(session, 0, data)).status(),
                              absl::StatusCode::kInvalidArgument, "INVALID_FIELD",
                              "items[0].rows"));
  return ExpectTokens(wire, session, {0, 0});
}

absl::Status RowsOfAPrefill(Wire& wire) {
  const int64_t rows = LimitsOf(wire).max_rows_per_prefill + 1;
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  // What the items say is looked at before the tensors, so these may be small.
  v1::PrefillRequest request = MakeStep<v1::PrefillRequest>(session, 0, StepData(1, 1));
  if (rows > INT32_MAX) {
    return Skip("more rows than an item can have are allowed");
  }
  request.mutable_items(0)->set_rows(static_cast<int32_t>(rows));
  RETURN_IF_ERROR(ExpectError(wire.Call(request).status(), absl::StatusCode::kInvalidArgument,
                              "INVALID_FIELD", "items[0].rows"));
  return ExpectTokens(wire, session, {0, 0});
}

absl::Status ItemsOfACall(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  v1::DecodeStepRequest request = MakeStep<v1::DecodeStepRequest>(session, 0, StepData(1, 1));
  for (int32_t item = 0; item < LimitsOf(wire).max_items_per_call; ++item) {
    *request.add_items() = request.items(0);
  }
  return ExpectError(wire.Call(request).status(), absl::StatusCode::kInvalidArgument,
                     "INVALID_FIELD", "items");
}

absl::Status TokensOfASession(Wire& wire) {
  v1::OpenSessionRequest request = OpenRequest("dense");
  request.set_overcommit(true);
  request.set_max_tokens(LimitsOf(wire).max_tokens_per_session + 1);
  return ExpectError(wire.Open(request).status(), absl::StatusCode::kInvalidArgument,
                     "INVALID_FIELD", "max_tokens");
}

absl::Status LengthOfALease(Wire& wire) {
  const double longest = absl::ToDoubleSeconds(LimitsOf(wire).max_lease);
  if (longest == 0) {
    return Skip("this daemon tells no max_lease_seconds");
  }
  for (const double seconds : {longest + 1, -1.0}) {
    v1::OpenSessionRequest request = OpenRequest("dense");
    request.set_lease_seconds(seconds);
    RETURN_IF_ERROR(ExpectError(wire.Open(request).status(), absl::StatusCode::kInvalidArgument,
                                "INVALID_FIELD", "lease_seconds"));
  }
  return absl::OkStatus();
}

absl::Status BytesOfAMessage(Wire& wire) {
  const int64_t limit = LimitsOf(wire).max_message_bytes;
  if (limit > kLargestMessage) {
    return Skip(absl::StrCat("max_message_bytes is ", limit));
  }
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  v1::DecodeStepRequest request = MakeStep<v1::DecodeStepRequest>(session, 0, StepData(1, 1));
  request.mutable_q()->mutable_inline_data()->resize(static_cast<size_t>(limit) + 1);
  const absl::Status status = wire.Call(request).status();
  if (status.code() != absl::StatusCode::kResourceExhausted) {
    return Fail("a message above max_message_bytes answers ", status.ToString());
  }
  return ExpectTokens(wire, session, {0, 0});
}

absl::Status BytesOfThePool(Wire& wire) {
  // One session that alone would need more pages than there are.
  v1::OpenSessionRequest request = OpenRequest("dense");
  const int64_t token_bytes = int64_t{kLayers} * 2 * kKvHeads * kHeadDim * 4;
  const int64_t tokens = LimitsOf(wire).pool_bytes / token_bytes + 64;
  if (tokens > LimitsOf(wire).max_tokens_per_session) {
    return Skip("max_tokens_per_session is reached before the pool is full");
  }
  request.set_max_tokens(tokens);
  const absl::Status status = wire.Open(request).status();
  if (client::ReasonOf(status) == "INVALID_FIELD") {
    return Skip("another limit is reached before the pool is full");
  }
  RETURN_IF_ERROR(ExpectError(status, absl::StatusCode::kResourceExhausted, "POOL_FULL"));
  return client::DetailsOf(status).retry_delay.has_value()
             ? absl::OkStatus()
             : Fail("POOL_FULL comes without a RetryInfo");
}

}  // namespace

std::span<const ConformanceCase> LimitCases() {
  static constexpr ConformanceCase kCases[] = {
      {"GetServerInfo tells every limit", LimitsAreTold},
      {"every preset that is told opens", PresetsOpen},
      {"limit: max_rows_per_decode_item", RowsOfADecodeItem},
      {"limit: max_rows_per_prefill", RowsOfAPrefill},
      {"limit: max_items_per_call", ItemsOfACall},
      {"limit: max_tokens_per_session", TokensOfASession},
      {"limit: max_lease_seconds", LengthOfALease},
      {"limit: max_message_bytes", BytesOfAMessage},
      {"limit: pool_bytes", BytesOfThePool},
  };
  return kCases;
}

}  // namespace longshore::ctl
