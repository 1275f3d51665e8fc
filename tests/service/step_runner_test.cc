#include "service/step_runner.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/service/test_server.h"

namespace longshore {
namespace {

// A message says how many rows there are, the session how wide they are: 34 GB of output here, for
// tensors of a few bytes.
TEST(StepRunner, ACallThatDoesNotFitItsModelIsRefusedBeforeItsOutputIsMade) {
  v1::OpenSessionRequest open = TestOpenRequest("dense");
  open.mutable_model()->set_num_heads(1024);
  open.mutable_model()->set_num_kv_heads(64);
  open.mutable_model()->set_head_dim(256);
  open.mutable_model()->set_num_layers(1);
  open.set_overcommit(true);
  open.set_max_tokens(32768);
  TestServer server;
  const uint64_t session = server.Open(open);
  v1::PrefillRequest request;
  *request.add_items() = TestItem(session, 0, 32768);
  for (v1::Tensor* tensor : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
    tensor->set_dtype(v1::DTYPE_F32);
    for (const int64_t extent : {32768, 1, 1}) {
      tensor->add_shape(extent);
    }
    tensor->set_inline_data(std::string(size_t{32768} * 4, '\0'));
  }
  v1::PrefillResponse response;
  const WireError error = ErrorOf(server.Prefill(request, &response));
  EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(error.field, "k.shape[1]");
  EXPECT_EQ(error.message, "k.shape[1] 1 is not num_kv_heads 64");
  EXPECT_EQ(server.Describe(session).layer_tokens(0), 0) << "the daemon is still there";
}

}  // namespace
}  // namespace longshore
