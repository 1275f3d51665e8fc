#include "service/attention_service.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/service/step_way.h"

namespace longshore {
namespace {

// Sends a request either way.
class AttentionService : public ::testing::TestWithParam<Way> {
 protected:
  template <typename Response, typename Request>
  WireError SendAs(const Request& request, Response* response) {
    Response ignored;
    return SendStep(server_, GetParam(), request, response == nullptr ? &ignored : response);
  }
  WireError Send(const v1::PrefillRequest& request, v1::PrefillResponse* response = nullptr) {
    return SendAs(request, response);
  }
  WireError Send(const v1::DecodeStepRequest& request, v1::DecodeStepResponse* response = nullptr) {
    return SendAs(request, response);
  }
  WireError Send(const v1::AppendKVRequest& request, v1::AppendKVResponse* response = nullptr) {
    return SendAs(request, response);
  }

  TestServer server_;
};

INSTANTIATE_TEST_SUITE_P(Ways,
                         AttentionService,
                         ::testing::Values(Way::kUnary, Way::kStream),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(AttentionService, PrefillThenDecode) {
  const uint64_t session = server_.Open();
  v1::PrefillRequest prefill = TestStep<v1::PrefillRequest>(session, 0, 100);
  prefill.set_want_log_sum_exp(true);
  v1::PrefillResponse prefilled;
  ASSERT_EQ(Send(prefill, &prefilled).code, grpc::StatusCode::OK);
  EXPECT_EQ(prefilled.layer_tokens(0), 100);
  EXPECT_EQ(prefilled.out().shape(0), 100);
  EXPECT_EQ(prefilled.out().inline_data().size(), 100U * kTestHeads * kTestHeadDim * 4);
  EXPECT_EQ(prefilled.log_sum_exp().inline_data().size(), 100U * kTestHeads * 4);

  v1::DecodeStepResponse decoded;
  ASSERT_EQ(Send(TestStep<v1::DecodeStepRequest>(session, 100, 1), &decoded).code,
            grpc::StatusCode::OK);
  EXPECT_EQ(decoded.layer_tokens(0), 101);
  EXPECT_FALSE(decoded.has_log_sum_exp());
  EXPECT_EQ(server_.Describe(session).layer_tokens(0), 101);
  EXPECT_EQ(server_.Describe(session).layer_tokens(1), 0);
}

TEST_P(AttentionService, TheFirstRowAttendsToItsOwnValue) {
  const uint64_t session = server_.Open();
  const v1::DecodeStepRequest request = TestStep<v1::DecodeStepRequest>(session, 0, 1);
  v1::DecodeStepResponse response;
  ASSERT_EQ(Send(request, &response).code, grpc::StatusCode::OK);
  const size_t head_bytes = kTestHeadDim * 4;
  for (size_t head = 0; head < kTestHeads; ++head) {
    EXPECT_EQ(response.out().inline_data().substr(head * head_bytes, head_bytes),
              request.v().inline_data().substr(head / 2 * head_bytes, head_bytes));
  }
}

TEST_P(AttentionService, AReplayGivesTheSameBitsAndAppendsNothing) {
  const uint64_t session = server_.Open();
  v1::PrefillResponse prefilled;
  v1::PrefillResponse prefilled_again;
  const auto prefill = TestStep<v1::PrefillRequest>(session, 0, 70);
  ASSERT_EQ(Send(prefill, &prefilled).code, grpc::StatusCode::OK);
  ASSERT_EQ(Send(prefill, &prefilled_again).code, grpc::StatusCode::OK);
  EXPECT_EQ(prefilled_again.SerializeAsString(), prefilled.SerializeAsString());

  v1::DecodeStepResponse decoded;
  v1::DecodeStepResponse decoded_again;
  const auto decode = TestStep<v1::DecodeStepRequest>(session, 70, 2);
  ASSERT_EQ(Send(decode, &decoded).code, grpc::StatusCode::OK);
  ASSERT_EQ(Send(decode, &decoded_again).code, grpc::StatusCode::OK);
  EXPECT_EQ(decoded_again.SerializeAsString(), decoded.SerializeAsString());
  EXPECT_EQ(server_.Describe(session).layer_tokens(0), 72);
}

TEST_P(AttentionService, OverlapAndGapSayWhichPositionIsExpected) {
  const uint64_t session = server_.Open();
  ASSERT_EQ(Send(TestStep<v1::PrefillRequest>(session, 0, 10)).code, grpc::StatusCode::OK);

  WireError error = Send(TestStep<v1::DecodeStepRequest>(session, 9, 1));
  EXPECT_EQ(error.code, grpc::StatusCode::ABORTED);
  EXPECT_EQ(error.reason, "POSITION_CONFLICT");
  EXPECT_EQ(error.field, "items[0].position");
  EXPECT_EQ(error.metadata["expected_position"], "10");

  error = Send(TestStep<v1::DecodeStepRequest>(session, 11, 1));
  EXPECT_EQ(error.code, grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(error.reason, "POSITION_GAP");
  EXPECT_EQ(error.metadata["expected_position"], "10");

  // The position of the last call, with another append id, other rows or another kind.
  auto repeat = TestStep<v1::PrefillRequest>(session, 0, 10);
  repeat.mutable_items(0)->set_append_id(5);
  EXPECT_EQ(Send(repeat).reason, "POSITION_CONFLICT");
  EXPECT_EQ(Send(TestStep<v1::PrefillRequest>(session, 0, 9)).reason, "POSITION_CONFLICT");
  EXPECT_EQ(Send(TestStep<v1::DecodeStepRequest>(session, 0, 10)).reason, "POSITION_CONFLICT");

  EXPECT_EQ(Send(TestStep<v1::DecodeStepRequest>(session, 10, 1)).code, grpc::StatusCode::OK);
}

TEST_P(AttentionService, AppendKvKeepsWithoutAttending) {
  const uint64_t session = server_.Open();
  v1::AppendKVRequest append;
  *append.add_items() = TestItem(session, 0, 5);
  *append.mutable_k() = TestTensor(5, kTestKvHeads, 1);
  *append.mutable_v() = TestTensor(5, kTestKvHeads, 2);
  v1::AppendKVResponse response;
  ASSERT_EQ(Send(append, &response).code, grpc::StatusCode::OK);
  EXPECT_EQ(response.layer_tokens(0), 5);
  EXPECT_EQ(Send(append, &response).code, grpc::StatusCode::OK) << "a replay";
  EXPECT_EQ(Send(TestStep<v1::DecodeStepRequest>(session, 5, 1)).code, grpc::StatusCode::OK);
}

TEST_P(AttentionService, ABatchGivesTheBitsOfSingleCalls) {
  std::vector<v1::DecodeStepRequest> single;
  v1::DecodeStepRequest batch;
  std::string expected;
  for (int32_t item = 0; item < 8; ++item) {
    const int32_t tokens = 1 + 13 * item;
    const uint64_t alone = server_.Open();
    const uint64_t together = server_.Open();
    for (const uint64_t session : {alone, together}) {
      ASSERT_EQ(Send(TestStep<v1::PrefillRequest>(session, 0, tokens)).code, grpc::StatusCode::OK);
    }
    const int32_t rows = 1 + item % 3;
    const auto request = TestStep<v1::DecodeStepRequest>(alone, tokens, rows);
    v1::DecodeStepResponse response;
    ASSERT_EQ(Send(request, &response).code, grpc::StatusCode::OK);
    expected += response.out().inline_data();

    *batch.add_items() = TestItem(together, tokens, rows);
    for (const auto& [from, to] :
         {std::pair(&request.q(), batch.mutable_q()), std::pair(&request.k(), batch.mutable_k()),
          std::pair(&request.v(), batch.mutable_v())}) {
      const int64_t before = to->shape_size() == 0 ? 0 : to->shape(0);
      const std::string data = to->inline_data() + from->inline_data();
      *to = *from;
      to->set_shape(0, before + rows);
      to->set_inline_data(data);
    }
  }
  v1::DecodeStepResponse response;
  const WireError error = Send(batch, &response);
  ASSERT_EQ(error.code, grpc::StatusCode::OK) << error.message;
  EXPECT_EQ(response.layer_tokens_size(), 8);
  EXPECT_TRUE(response.out().inline_data() == expected);
}

TEST_P(AttentionService, AWrongItemLeavesEverySessionAsItWas) {
  const uint64_t session = server_.Open();
  v1::DecodeStepRequest request = TestStep<v1::DecodeStepRequest>(session, 0, 2);
  *request.mutable_items(0) = TestItem(session, 0, 1);
  *request.add_items() = TestItem(session + 100, 0, 1);
  const WireError error = Send(request);
  EXPECT_EQ(error.code, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(error.reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(error.field, "items[1].session_id");
  EXPECT_EQ(server_.Describe(session).layer_tokens(0), 0);
  EXPECT_EQ(server_.Describe(session).page_bytes_used(), 0);
}

TEST_P(AttentionService, EveryTensorIsCheckedAgainstTheModel) {
  struct Case {
    std::string field;
    std::function<void(v1::PrefillRequest*)> spoil;
  };
  const auto as_f16 = [](v1::Tensor* tensor) {
    tensor->set_dtype(v1::DTYPE_F16);
    tensor->mutable_inline_data()->resize(tensor->inline_data().size() / 2);
  };
  const auto with_head_dim_32 = [](v1::Tensor* tensor) {
    tensor->set_shape(2, 32);
    tensor->mutable_inline_data()->resize(tensor->inline_data().size() / 2);
  };
  const std::vector<Case> cases = {
      {"q.shape[1]", [](auto* request) { *request->mutable_q() = TestTensor(3, 5, 1); }},
      {"k.shape[1]", [](auto* request) { *request->mutable_k() = TestTensor(3, 4, 1); }},
      {"v.shape[1]", [](auto* request) { *request->mutable_v() = TestTensor(3, 1, 1); }},
      {"q.shape[0]", [](auto* request) { *request->mutable_q() = TestTensor(2, kTestHeads, 1); }},
      {"k.shape[0]", [](auto* request) { *request->mutable_k() = TestTensor(4, kTestKvHeads, 1); }},
      {"v.shape[0]", [](auto* request) { *request->mutable_v() = TestTensor(1, kTestKvHeads, 1); }},
      {"q.shape[2]", [&](auto* request) { with_head_dim_32(request->mutable_q()); }},
      {"k.shape[2]", [&](auto* request) { with_head_dim_32(request->mutable_k()); }},
      {"v.shape[2]", [&](auto* request) { with_head_dim_32(request->mutable_v()); }},
      {"q.dtype", [&](auto* request) { as_f16(request->mutable_q()); }},
      {"k.dtype",
       [&](auto* request) {
         as_f16(request->mutable_k());
         as_f16(request->mutable_v());
       }},
      {"v.dtype", [&](auto* request) { as_f16(request->mutable_v()); }},
      {"q.inline_data", [](auto* request) { request->mutable_q()->set_inline_data("short"); }},
      {"k.inline_data", [](auto* request) { request->mutable_k()->set_inline_data("short"); }},
      {"v.inline_data", [](auto* request) { request->mutable_v()->set_inline_data("short"); }},
      {"layer", [](auto* request) { request->set_layer(kTestLayers); }},
      {"layer", [](auto* request) { request->set_layer(-1); }},
  };
  const uint64_t session = server_.Open();
  for (const Case& spoiled : cases) {
    auto request = TestStep<v1::PrefillRequest>(session, 0, 3);
    spoiled.spoil(&request);
    const WireError error = Send(request);
    EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT) << error.message;
    EXPECT_EQ(error.reason, "INVALID_FIELD") << error.message;
    EXPECT_EQ(error.domain, "longshore");
    EXPECT_EQ(error.field, spoiled.field) << error.message;
    EXPECT_EQ(error.message.substr(0, spoiled.field.size()), spoiled.field);
    EXPECT_FALSE(error.retry);
  }
  EXPECT_EQ(server_.Describe(session).layer_tokens(0), 0);
  EXPECT_EQ(Send(TestStep<v1::PrefillRequest>(session, 0, 3)).code, grpc::StatusCode::OK);
}

TEST_P(AttentionService, ARegionIsUnimplemented) {
  const uint64_t session = server_.Open();
  auto request = TestStep<v1::DecodeStepRequest>(session, 0, 1);
  request.mutable_k()->mutable_region()->set_region_id(1);
  const WireError error = Send(request);
  EXPECT_EQ(error.code, grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(error.reason, "NOT_IMPLEMENTED");
  EXPECT_EQ(error.field, "k.region");
}

TEST_P(AttentionService, ValuesThatCannotBeServedAreRefusedAndChangeNothing) {
  const uint64_t session = server_.Open();
  ASSERT_EQ(Send(TestStep<v1::PrefillRequest>(session, 0, 3)).code, grpc::StatusCode::OK);
  for (const auto tensor_of : {&v1::PrefillRequest::mutable_q, &v1::PrefillRequest::mutable_k,
                               &v1::PrefillRequest::mutable_v}) {
    for (const float value : {std::numeric_limits<float>::infinity(), 3e38F}) {
      auto request = TestStep<v1::PrefillRequest>(session, 3, 4);
      std::memcpy((request.*tensor_of)()->mutable_inline_data()->data() + 1024, &value, 4);
      const WireError error = Send(request);
      EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT) << error.message;
      EXPECT_EQ(error.reason, std::isfinite(value) ? "OUT_OF_RANGE_VALUE" : "NON_FINITE");
      EXPECT_EQ(server_.Describe(session).layer_tokens(0), 3);
    }
  }
  EXPECT_EQ(Send(TestStep<v1::PrefillRequest>(session, 3, 4)).code, grpc::StatusCode::OK);
}

TEST_P(AttentionService, MaxTokensIsTheEndOfASession) {
  v1::OpenSessionRequest open = TestOpenRequest();
  open.set_max_tokens(10);
  const uint64_t session = server_.Open(open);
  const WireError error = Send(TestStep<v1::PrefillRequest>(session, 0, 11));
  EXPECT_EQ(error.code, grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(error.reason, "MAX_TOKENS");
  EXPECT_EQ(error.field, "items[0].rows");
}

TEST_P(AttentionService, AnOvercommittedSessionMeetsAFullPool) {
  Config config = TestConfig();
  config.engine.pool_bytes = int64_t{8} << 20;  // 128 pages of 64 KiB
  TestServer server(config);
  v1::OpenSessionRequest open = TestOpenRequest();
  open.set_max_tokens(1 << 20);
  open.set_overcommit(true);
  const uint64_t session = server.Open(open);
  int64_t position = 0;
  v1::PrefillResponse response;
  grpc::Status status;
  while ((status = server.Prefill(TestStep<v1::PrefillRequest>(session, position, 1024), &response))
             .ok()) {
    position += 1024;
    ASSERT_LE(position, 128 * 64);
  }
  const WireError error = ErrorOf(status);
  EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(error.reason, "POOL_FULL");
  EXPECT_TRUE(error.retry);
  EXPECT_EQ(server.Describe(session).layer_tokens(0), position);
}

}  // namespace
}  // namespace longshore
