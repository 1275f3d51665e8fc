#include "service/step_stream.h"

#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/service/test_server.h"

namespace longshore {
namespace {

using Stream = grpc::ClientReaderWriter<v1::StreamStepsRequest, v1::StreamStepsResponse>;

v1::StreamStepsRequest Tagged(uint64_t tag, v1::DecodeStepRequest decode) {
  v1::StreamStepsRequest request;
  request.set_tag(tag);
  *request.mutable_decode() = std::move(decode);
  return request;
}

v1::StreamStepsRequest Tagged(uint64_t tag, v1::PrefillRequest prefill) {
  v1::StreamStepsRequest request;
  request.set_tag(tag);
  *request.mutable_prefill() = std::move(prefill);
  return request;
}

TEST(StepStream, GivesTheBitsOfUnaryCalls) {
  TestServer server;
  v1::OpenSessionRequest open = TestOpenRequest();
  open.mutable_policy()->set_dense_below_tokens(0);
  open.set_max_tokens(4096);
  const uint64_t unary = server.Open(open);
  const uint64_t streamed = server.Open(open);

  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = server.attention().StreamSteps(&context);
  std::thread writer([&] {
    stream->Write(Tagged(0, TestStep<v1::PrefillRequest>(streamed, 0, 2000)));
    for (int64_t step = 0; step < 40; ++step) {
      auto decode = TestStep<v1::DecodeStepRequest>(streamed, 2000 + step, 1);
      decode.set_want_log_sum_exp(true);
      stream->Write(Tagged(static_cast<uint64_t>(step + 1), std::move(decode)));
    }
    stream->WritesDone();
  });
  v1::StreamStepsResponse answer;
  v1::PrefillResponse prefilled;
  ASSERT_TRUE(server.Prefill(TestStep<v1::PrefillRequest>(unary, 0, 2000), &prefilled).ok());
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_TRUE(answer.prefill().SerializeAsString() == prefilled.SerializeAsString());
  for (int64_t step = 0; step < 40; ++step) {
    auto decode = TestStep<v1::DecodeStepRequest>(unary, 2000 + step, 1);
    decode.set_want_log_sum_exp(true);
    v1::DecodeStepResponse decoded;
    ASSERT_TRUE(server.Decode(decode, &decoded).ok());
    ASSERT_TRUE(stream->Read(&answer));
    EXPECT_EQ(answer.tag(), static_cast<uint64_t>(step + 1));
    EXPECT_TRUE(answer.decode().SerializeAsString() == decoded.SerializeAsString()) << step;
  }
  writer.join();
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StepStream, AFailedStepDoesNotEndTheStream) {
  TestServer server;
  const uint64_t session = server.Open();
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = server.attention().StreamSteps(&context);
  stream->Write(Tagged(1, TestStep<v1::DecodeStepRequest>(session, 0, 1)));
  stream->Write(Tagged(2, TestStep<v1::DecodeStepRequest>(session, 9, 1)));
  v1::StreamStepsRequest nothing;
  nothing.set_tag(3);
  stream->Write(nothing);
  stream->Write(Tagged(4, TestStep<v1::DecodeStepRequest>(session, 1, 1)));
  stream->WritesDone();
  std::vector<std::string> reasons;
  v1::StreamStepsResponse answer;
  for (uint64_t tag = 1; stream->Read(&answer); ++tag) {
    EXPECT_EQ(answer.tag(), tag);
    reasons.push_back(ErrorOf(answer.status()).reason);
  }
  EXPECT_EQ(reasons, (std::vector<std::string>{"", "POSITION_GAP", "INVALID_FIELD", ""}));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StepStream, AnswersInOrderThoughDecodeOvertakesPrefill) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  const uint64_t busy = server.Open();
  const uint64_t first = server.Open();
  const uint64_t second = server.Open();
  device.Hold();
  std::thread holder([&] {
    v1::DecodeStepResponse response;
    EXPECT_TRUE(server.Decode(TestStep<v1::DecodeStepRequest>(busy, 0, 1), &response).ok());
  });
  device.AwaitHeld();
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = server.attention().StreamSteps(&context);
  stream->Write(Tagged(1, TestStep<v1::PrefillRequest>(first, 0, 64)));
  stream->Write(Tagged(2, TestStep<v1::DecodeStepRequest>(second, 0, 1)));
  stream->Write(Tagged(3, TestStep<v1::DecodeStepRequest>(first, 64, 1)));
  device.Release();
  v1::StreamStepsResponse answer;
  for (const uint64_t tag : {1U, 2U, 3U}) {
    ASSERT_TRUE(stream->Read(&answer));
    EXPECT_EQ(answer.tag(), tag);
    EXPECT_EQ(answer.status().code(), 0);
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  holder.join();
}

TEST(StepStream, ReadsAheadUpToItsBoundAndNoFurther) {
  FakeDevice device;
  Config config = TestConfig();
  config.max_steps_in_flight = 3;
  config.max_queued_calls = 3;  // a fourth step that was read would be answered QUEUE_FULL
  TestServer server(config, &device);
  const uint64_t session = server.Open();
  device.Hold();
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = server.attention().StreamSteps(&context);
  for (int64_t position = 0; position < 20; ++position) {
    stream->Write(Tagged(static_cast<uint64_t>(position),
                         TestStep<v1::DecodeStepRequest>(session, position, 1)));
  }
  stream->WritesDone();
  device.AwaitHeld();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  device.Release();
  v1::StreamStepsResponse answer;
  for (uint64_t tag = 0; tag < 20; ++tag) {
    ASSERT_TRUE(stream->Read(&answer));
    EXPECT_EQ(answer.tag(), tag);
    EXPECT_EQ(answer.status().code(), 0) << answer.status().message();
  }
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StepStream, AClientThatVanishesLeavesItsSessionUsable) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  const uint64_t session = server.Open();
  device.Hold();
  {
    grpc::ClientContext context;
    const std::unique_ptr<Stream> stream = server.attention().StreamSteps(&context);
    for (int64_t position = 0; position < 4; ++position) {
      stream->Write(Tagged(1, TestStep<v1::DecodeStepRequest>(session, position, 1)));
    }
    device.AwaitHeld();  // the first has begun and will commit
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // lets the server hear of it
  device.Release();
  // Steps that waited were dropped; the step that had begun counts, and can be fetched again.
  v1::DecodeStepResponse response;
  EXPECT_TRUE(server.Decode(TestStep<v1::DecodeStepRequest>(session, 0, 1), &response).ok());
  EXPECT_EQ(server.Describe(session).layer_tokens(0), 1);
  EXPECT_TRUE(server.Decode(TestStep<v1::DecodeStepRequest>(session, 1, 1), &response).ok());
}

}  // namespace
}  // namespace longshore
