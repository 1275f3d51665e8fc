// When one graph serves two calls, and what it must be told: pure functions, no GPU.

#include "engine/cuda/operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longshore::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Addresses that are told apart, no more.
std::byte places[8];

Operation Kernel(size_t which, uint32_t blocks, std::vector<std::byte> argument) {
  Operation operation;
  operation.kernel = &places[which];
  operation.shape = {.grid = dim3(blocks, 2), .threads = 256, .shared_bytes = 1024};
  operation.argument = std::move(argument);
  return operation;
}

Operation Copy(size_t from, size_t to, int64_t bytes) {
  Operation operation;
  operation.from = &places[from];
  operation.to = &places[to];
  operation.bytes = bytes;
  return operation;
}

constexpr std::byte kOne{1};
constexpr std::byte kTwo{2};

std::vector<Operation> Call() {
  return {Copy(0, 1, 64), Kernel(2, 8, {kOne, kOne}), Kernel(3, 8, {kOne, kTwo})};
}

TEST(AreOfOneKind, WhateverArgumentsGridsAndCopiesAre) {
  const std::vector<Operation> other = {Copy(4, 5, 32), Kernel(2, 9, {kTwo, kOne}),
                                        Kernel(3, 1, {kOne, kOne})};
  EXPECT_TRUE(AreOfOneKind(Call(), other));
  EXPECT_TRUE(AreOfOneKind(Call(), Call()));
}

TEST(AreOfOneKind, NotWithOtherOperations) {
  std::vector<Operation> shorter = Call();
  shorter.pop_back();
  EXPECT_FALSE(AreOfOneKind(Call(), shorter));
  EXPECT_FALSE(AreOfOneKind(shorter, Call()));

  std::vector<Operation> other = Call();
  std::swap(other[1], other[2]);
  EXPECT_FALSE(AreOfOneKind(Call(), other)) << "another order";
  other = Call();
  other[0] = Kernel(2, 8, {});
  EXPECT_FALSE(AreOfOneKind(Call(), other)) << "a kernel for a copy";
  other = Call();
  other[1].shape.threads = 128;
  EXPECT_FALSE(AreOfOneKind(Call(), other)) << "threads";
  other = Call();
  other[2].shape.shared_bytes = 0;
  EXPECT_FALSE(AreOfOneKind(Call(), other)) << "shared memory";
}

TEST(Differences, AreThoseOfArgumentsGridsAndCopies) {
  EXPECT_THAT(Differences(Call(), Call()), IsEmpty());
  std::vector<Operation> other = Call();
  other[1].argument[1] = kTwo;
  EXPECT_THAT(Differences(Call(), other), ElementsAre(1));
  other[2].shape.grid.y = 3;
  EXPECT_THAT(Differences(Call(), other), ElementsAre(1, 2));
  for (const Operation& copy : {Copy(4, 1, 64), Copy(0, 4, 64), Copy(0, 1, 32)}) {
    other = Call();
    other[0] = copy;
    EXPECT_THAT(Differences(Call(), other), ElementsAre(0));
  }
}

}  // namespace
}  // namespace longshore::cuda
