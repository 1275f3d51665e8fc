#include "engine/cpu/block_attention.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "engine/core/half.h"

namespace longshore::cpu {
namespace {

// A mean of values is no larger than the largest of them, and sums in fp32 of a million equal
// values are off by more than fp16 rounds away.
TEST(BlockAttention, WhatRoundingAddsToAMeanDoesNotOverflow) {
  constexpr int32_t kDepth = 64;
  std::vector<F16> out(kDepth);
  AttendArgs args;
  args.shape = {.num_heads = 1, .num_kv_heads = 1, .head_dim = kDepth, .kv_dtype = DType::kF16};
  args.out = {.data = out.data(), .dtype = DType::kF16, .rank = 3, .shape = {1, 1, kDepth}};
  AttendBlock attend;
  attend.block.rows = 1;
  std::array<float, 1> max = {0.0F};
  std::array<float, 1> sum = {1000.0F};
  std::vector<float> acc(kDepth, 65504.0F * 1000.5F);
  acc[1] = -acc[0];
  acc[2] = 65504.0F * 999.0F;
  BlockAttention(args, attend).Finish(0, {.max = max.data(), .sum = sum.data(), .acc = acc.data()});
  EXPECT_EQ(ToFloat(out[0]), 65504.0F);
  EXPECT_EQ(ToFloat(out[1]), -65504.0F);
  EXPECT_EQ(ToFloat(out[2]), ToFloat(ToF16(65504.0F * 0.999F)));
}

}  // namespace
}  // namespace longshore::cpu
