// StreamSteps: the same calls on one connection.

#include <algorithm>
#include <string>

#include "client/cpp/ctl/conformance.h"
#include "client/cpp/src/status.h"
#include "engine/core/status.h"

namespace longshore::ctl {
namespace {

using Answers = std::vector<v1::StreamStepsResponse>;

// Sends all requests, a few ahead of their answers, and returns the answers.
absl::StatusOr<Answers> Stream(Wire& wire, const std::vector<v1::StreamStepsRequest>& requests) {
  const size_t ahead = static_cast<size_t>(std::max(1, wire.info().limits.max_steps_in_flight));
  grpc::ClientContext context;
  context.set_deadline(client::ToDeadline(absl::Now() + absl::Seconds(30)));
  const auto stream = wire.connection().attention()->StreamSteps(&context);
  Answers answers;
  v1::StreamStepsResponse answer;
  for (size_t sent = 0; sent < requests.size(); ++sent) {
    stream->Write(requests[sent]);
    if (sent + 1 - answers.size() >= ahead && stream->Read(&answer)) {
      answers.push_back(answer);
    }
  }
  stream->WritesDone();
  while (stream->Read(&answer)) {
    answers.push_back(answer);
  }
  RETURN_IF_ERROR(wire.connection().ToStatus(stream->Finish()));
  if (answers.size() != requests.size()) {
    return Fail(requests.size(), " steps were sent and ", answers.size(), " answered");
  }
  for (size_t index = 0; index < answers.size(); ++index) {
    if (answers[index].tag() != requests[index].tag()) {
      return Fail("answer ", index, " has tag ", answers[index].tag(), " instead of ",
                  requests[index].tag());
    }
  }
  return answers;
}

v1::StreamStepsRequest Envelope(uint64_t tag, const v1::AppendKVRequest& step) {
  v1::StreamStepsRequest request;
  request.set_tag(tag);
  *request.mutable_append_kv() = step;
  return request;
}
v1::StreamStepsRequest Envelope(uint64_t tag, const v1::PrefillRequest& step) {
  v1::StreamStepsRequest request;
  request.set_tag(tag);
  *request.mutable_prefill() = step;
  return request;
}
v1::StreamStepsRequest Envelope(uint64_t tag, const v1::DecodeStepRequest& step) {
  v1::StreamStepsRequest request;
  request.set_tag(tag);
  *request.mutable_decode() = step;
  return request;
}

absl::Status StreamEqualsUnary(Wire& wire) {
  constexpr int64_t kSteps = 30;
  ASSIGN_OR_RETURN(const uint64_t by_call, wire.Open("standard"));
  ASSIGN_OR_RETURN(const uint64_t by_stream, wire.Open("standard"));
  const StepData prompt(100, 1);
  std::vector<v1::StreamStepsRequest> requests = {
      Envelope(7, MakeStep<v1::PrefillRequest>(by_stream, 0, prompt)),
      Envelope(7, MakeStep<v1::AppendKVRequest>(by_stream, 0, prompt, 1))};
  ASSIGN_OR_RETURN(const v1::PrefillResponse prefilled,
                   wire.Call(MakeStep<v1::PrefillRequest>(by_call, 0, prompt)));
  std::vector<std::string> expected = {prefilled.out().inline_data(), ""};
  for (int64_t step = 0; step < kSteps; ++step) {
    const StepData data(1, static_cast<uint32_t>(step + 2));
    const int64_t position = prompt.rows + step;
    requests.push_back(Envelope(static_cast<uint64_t>(step) << 40,
                                MakeStep<v1::DecodeStepRequest>(by_stream, position, data)));
    ASSIGN_OR_RETURN(const v1::DecodeStepResponse decoded,
                     wire.Call(MakeStep<v1::DecodeStepRequest>(by_call, position, data)));
    expected.push_back(decoded.out().inline_data());
  }
  ASSIGN_OR_RETURN(const Answers answers, Stream(wire, requests));
  for (size_t index = 0; index < answers.size(); ++index) {
    const v1::StreamStepsResponse& answer = answers[index];
    RETURN_IF_ERROR(client::StatusFromRpc(answer.status()));
    const std::string& out = answer.has_prefill() ? answer.prefill().out().inline_data()
                                                  : answer.decode().out().inline_data();
    if (out != expected[index]) {
      return Fail("step ", index, " of a stream gives other bits than the call");
    }
  }
  return ExpectTokens(wire, by_stream, {prompt.rows + kSteps, prompt.rows});
}

absl::Status ErrorsAreInBand(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  const StepData data(2, 1);
  v1::AppendKVRequest nowhere = MakeStep<v1::AppendKVRequest>(session, 0, data);
  nowhere.set_layer(kLayers);
  v1::StreamStepsRequest nothing;
  nothing.set_tag(4);
  ASSIGN_OR_RETURN(const Answers answers,
                   Stream(wire, {Envelope(1, MakeStep<v1::AppendKVRequest>(session, 5, data)),
                                 Envelope(2, MakeStep<v1::AppendKVRequest>(session, 0, data)),
                                 Envelope(3, nowhere), nothing,
                                 Envelope(5, MakeStep<v1::DecodeStepRequest>(session, 2, data))}));
  const absl::Status gap = client::StatusFromRpc(answers[0].status());
  RETURN_IF_ERROR(
      ExpectError(gap, absl::StatusCode::kOutOfRange, "POSITION_GAP", "items[0].position"));
  if (client::ExpectedPosition(gap) != 0) {
    return Fail("a gap in a stream tells no expected_position");
  }
  RETURN_IF_ERROR(client::StatusFromRpc(answers[1].status()));
  RETURN_IF_ERROR(ExpectError(client::StatusFromRpc(answers[2].status()),
                              absl::StatusCode::kInvalidArgument, "INVALID_FIELD", "layer"));
  RETURN_IF_ERROR(ExpectError(client::StatusFromRpc(answers[3].status()),
                              absl::StatusCode::kInvalidArgument, "INVALID_FIELD"));
  RETURN_IF_ERROR(client::StatusFromRpc(answers[4].status()));
  return ExpectTokens(wire, session, {4, 0});
}

absl::Status ReplayAcrossConnections(Wire& wire) {
  ASSIGN_OR_RETURN(const uint64_t session, wire.Open());
  const v1::DecodeStepRequest step = MakeStep<v1::DecodeStepRequest>(session, 0, StepData(1, 1));
  ASSIGN_OR_RETURN(const Answers streamed, Stream(wire, {Envelope(1, step)}));
  RETURN_IF_ERROR(client::StatusFromRpc(streamed[0].status()));
  ASSIGN_OR_RETURN(const v1::DecodeStepResponse called, wire.Call(step));
  if (streamed[0].decode().out().inline_data() != called.out().inline_data()) {
    return Fail("a step of a stream, replayed as a call, gives other bits");
  }
  return ExpectTokens(wire, session, {1, 0});
}

}  // namespace

std::span<const ConformanceCase> StreamCases() {
  static constexpr ConformanceCase kCases[] = {
      {"a stream gives the bits of calls, in order", StreamEqualsUnary},
      {"a refused step does not end a stream", ErrorsAreInBand},
      {"a step of a stream can be replayed as a call", ReplayAcrossConnections},
  };
  return kCases;
}

}  // namespace longshore::ctl
