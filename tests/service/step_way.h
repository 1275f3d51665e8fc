#pragma once

#include <string>

#include "tests/service/test_server.h"

namespace longshore {

/// How one step is sent: as a call of its own, or on a stream. Everything must read the same.
enum class Way { kUnary, kStream };

inline const char* NameOf(Way way) { return way == Way::kUnary ? "Unary" : "Stream"; }

/// One step on a stream of its own; checks what holds for every answer.
inline v1::StreamStepsResponse SendOnStream(TestServer& server, v1::StreamStepsRequest request) {
  grpc::ClientContext context;
  const auto stream = server.attention().StreamSteps(&context);
  request.set_tag(77);
  EXPECT_TRUE(stream->Write(request));
  v1::StreamStepsResponse answer;
  EXPECT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.tag(), 77U);
  EXPECT_EQ(answer.status().code() == 0, answer.answer_case() != 0) << "one of both";
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  return answer;
}

/// Sends a step either way; the answer of a refused one stays empty.
inline WireError SendStep(TestServer& server,
                          Way way,
                          const v1::PrefillRequest& request,
                          v1::PrefillResponse* response) {
  if (way == Way::kUnary) {
    return ErrorOf(server.Prefill(request, response));
  }
  v1::StreamStepsRequest step;
  *step.mutable_prefill() = request;
  const v1::StreamStepsResponse answer = SendOnStream(server, step);
  *response = answer.prefill();
  return ErrorOf(answer.status());
}

inline WireError SendStep(TestServer& server,
                          Way way,
                          const v1::DecodeStepRequest& request,
                          v1::DecodeStepResponse* response) {
  if (way == Way::kUnary) {
    return ErrorOf(server.Decode(request, response));
  }
  v1::StreamStepsRequest step;
  *step.mutable_decode() = request;
  const v1::StreamStepsResponse answer = SendOnStream(server, step);
  *response = answer.decode();
  return ErrorOf(answer.status());
}

inline WireError SendStep(TestServer& server,
                          Way way,
                          const v1::AppendKVRequest& request,
                          v1::AppendKVResponse* response) {
  if (way == Way::kUnary) {
    return ErrorOf(server.Append(request, response));
  }
  v1::StreamStepsRequest step;
  *step.mutable_append_kv() = request;
  const v1::StreamStepsResponse answer = SendOnStream(server, step);
  *response = answer.append_kv();
  return ErrorOf(answer.status());
}

}  // namespace longshore
