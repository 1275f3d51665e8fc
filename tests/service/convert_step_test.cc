#include "service/convert_step.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/core/error.h"

namespace longshore {
namespace {

constexpr int64_t kRows = 3;
constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 64;

void Fill(v1::Tensor* tensor, int64_t heads) {
  tensor->set_dtype(v1::DTYPE_F32);
  for (const int64_t extent : {kRows, heads, kHeadDim}) {
    tensor->add_shape(extent);
  }
  tensor->set_inline_data(std::string(static_cast<size_t>(kRows * heads * kHeadDim * 4), '\1'));
}

v1::PrefillRequest Request() {
  v1::PrefillRequest request;
  v1::StepItem* item = request.add_items();
  item->set_session_id(1);
  item->set_rows(1);
  item = request.add_items();
  item->set_session_id(2);
  item->set_rows(2);
  Fill(request.mutable_q(), kHeads);
  Fill(request.mutable_k(), kKvHeads);
  Fill(request.mutable_v(), kKvHeads);
  return request;
}

v1::Tensor* TensorOf(const std::string& name, v1::PrefillRequest* request) {
  return name == "q"   ? request->mutable_q()
         : name == "k" ? request->mutable_k()
                       : request->mutable_v();
}

absl::Status Check(const v1::PrefillRequest& request) {
  v1::PrefillResponse answer;
  return CheckStep(MessageOf(request, &answer), EngineOptions()).status();
}

std::string FieldOf(const absl::Status& status) {
  const std::optional<ErrorDetails> details = DetailsOf(status);
  return details.has_value() ? details->field : "no details";
}

TEST(ConvertStep, TensorsPointIntoTheRequest) {
  const v1::PrefillRequest request = Request();
  v1::PrefillResponse answer;
  const absl::StatusOr<CheckedStep> step = CheckStep(MessageOf(request, &answer), EngineOptions());
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->call.q.data, request.q().inline_data().data());
  EXPECT_EQ(step->call.q.shape, (std::array<int64_t, 4>{kRows, kHeads, kHeadDim, 0}));
  EXPECT_EQ(step->call.items.size(), 2U);
  EXPECT_TRUE(step->aligned_copies.empty());
}

TEST(ConvertStep, OutputsAreInTheAnswer) {
  v1::PrefillRequest request = Request();
  request.set_want_log_sum_exp(true);
  v1::PrefillResponse answer;
  const StepMessage message = MessageOf(request, &answer);
  absl::StatusOr<CheckedStep> step = CheckStep(message, EngineOptions());
  ASSERT_TRUE(step.ok()) << step.status();
  ModelShape model;
  model.num_heads = kHeads;
  model.head_dim = kHeadDim;
  BindOutputs(model, message, &*step);
  EXPECT_EQ(step->call.out.data, answer.out().inline_data().data());
  EXPECT_EQ(answer.out().inline_data().size(), static_cast<size_t>(kRows * kHeads * kHeadDim * 4));
  EXPECT_EQ(answer.out().shape_size(), 3);
  EXPECT_EQ(step->call.log_sum_exp.data, answer.log_sum_exp().inline_data().data());
  EXPECT_EQ(answer.log_sum_exp().inline_data().size(), static_cast<size_t>(kRows * kHeads * 4));
}

TEST(ConvertStep, EveryWrongTensorFieldIsNamed) {
  struct Case {
    std::string field;
    std::function<void(v1::Tensor*)> spoil;
  };
  const std::vector<Case> cases = {
      {".dtype", [](v1::Tensor* tensor) { tensor->clear_dtype(); }},
      {".dtype", [](v1::Tensor* tensor) { tensor->set_dtype(static_cast<v1::DType>(44)); }},
      {".inline_data", [](v1::Tensor* tensor) { tensor->set_dtype(v1::DTYPE_BF16); }},
      {".shape", [](v1::Tensor* tensor) { tensor->clear_shape(); }},
      {".shape", [](v1::Tensor* tensor) { tensor->add_shape(1); }},
      {".shape[0]", [](v1::Tensor* tensor) { tensor->set_shape(0, 2); }},
      {".shape[1]", [](v1::Tensor* tensor) { tensor->set_shape(1, 0); }},
      {".shape[2]", [](v1::Tensor* tensor) { tensor->set_shape(2, -64); }},
      {".shape",
       [](v1::Tensor* tensor) { tensor->set_shape(2, std::numeric_limits<int64_t>::max()); }},
      {".inline_data", [](v1::Tensor* tensor) { tensor->set_shape(2, 65); }},
      {".inline_data", [](v1::Tensor* tensor) { tensor->mutable_inline_data()->pop_back(); }},
      {".inline_data", [](v1::Tensor* tensor) { tensor->mutable_inline_data()->push_back('x'); }},
      {".inline_data", [](v1::Tensor* tensor) { tensor->mutable_inline_data()->clear(); }},
      {"", [](v1::Tensor* tensor) { tensor->clear_data(); }},
  };
  for (const std::string name : {"q", "k", "v"}) {
    for (const Case& spoiled : cases) {
      v1::PrefillRequest request = Request();
      spoiled.spoil(TensorOf(name, &request));
      const absl::Status status = Check(request);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_EQ(FieldOf(status), name + spoiled.field) << status;
    }
  }
}

TEST(ConvertStep, AnAbsentTensorIsNamed) {
  v1::PrefillRequest request = Request();
  request.clear_q();
  EXPECT_EQ(FieldOf(Check(request)), "q");
  request = Request();
  request.clear_k();
  EXPECT_EQ(FieldOf(Check(request)), "k");
  request = Request();
  request.clear_v();
  EXPECT_EQ(FieldOf(Check(request)), "v");
}

TEST(ConvertStep, ARegionIsUnimplemented) {
  for (const std::string name : {"q", "k", "v"}) {
    v1::PrefillRequest request = Request();
    TensorOf(name, &request)->mutable_region()->set_region_id(7);
    const absl::Status status = Check(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_EQ(FieldOf(status), name + ".region");
  }
}

TEST(ConvertStep, KeysAndValuesHaveOneType) {
  v1::PrefillRequest request = Request();
  v1::Tensor* v = request.mutable_v();
  v->set_dtype(v1::DTYPE_F16);
  v->mutable_inline_data()->resize(v->inline_data().size() / 2);
  EXPECT_EQ(Check(request).message(), "v.dtype f16 is not k.dtype f32");
}

TEST(ConvertStep, EveryWrongItemIsNamed) {
  struct Case {
    std::string field;
    std::function<void(v1::PrefillRequest*)> spoil;
  };
  const std::vector<Case> cases = {
      {"items", [](auto* request) { request->clear_items(); }},
      {"items[1].rows", [](auto* request) { request->mutable_items(1)->set_rows(0); }},
      {"items[1].rows", [](auto* request) { request->mutable_items(1)->set_rows(-1); }},
      {"items[0].position", [](auto* request) { request->mutable_items(0)->set_position(-1); }},
      {"items[1].session_id", [](auto* request) { request->mutable_items(1)->set_session_id(1); }},
      {"items[0].rows", [](auto* request) { request->mutable_items(0)->set_rows(1 << 30); }},
      {"items",
       [](auto* request) {
         request->mutable_items(0)->set_rows(20000);
         request->mutable_items(1)->set_rows(20000);
       }},
      {"q.shape[0]", [](auto* request) { request->mutable_items(0)->set_rows(2); }},
  };
  for (const Case& spoiled : cases) {
    v1::PrefillRequest request = Request();
    spoiled.spoil(&request);
    const absl::Status status = Check(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(FieldOf(status), spoiled.field) << status;
  }
}

TEST(ConvertStep, BytesThatAreNotAlignedAreCopied) {
  alignas(16) std::array<std::byte, 32> bytes = {};
  bytes[3] = std::byte{9};
  std::vector<std::vector<std::byte>> copies;
  EXPECT_EQ(AlignedBytes(std::span(bytes), 4, &copies), bytes.data());
  const std::byte* aligned = AlignedBytes(std::span(bytes).subspan(3, 8), 4, &copies);
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(aligned, copies[0].data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned) % 4, 0U);
  EXPECT_EQ(aligned[0], std::byte{9});
}

}  // namespace
}  // namespace longshore
