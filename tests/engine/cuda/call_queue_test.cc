// What a call enqueues is done in its order and with its own arguments, whether it comes as a graph
// or one by one. On a GPU, or what stands for one.

#include "engine/cuda/call_queue.h"

#include <cstring>

#include <gtest/gtest.h>

namespace longshore::cuda {
namespace {

constexpr int64_t kBytes = 4096;

class CallQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no GPU";
    }
    void* data = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaHostAlloc(&data, kBytes, cudaHostAllocMapped), cudaSuccess);
    pinned_ = static_cast<std::byte*>(data);
    ASSERT_EQ(cudaMalloc(&data, kBytes), cudaSuccess);
    device_ = static_cast<std::byte*>(data);
  }
  void TearDown() override {
    cudaFree(device_);
    cudaFreeHost(pinned_);
    if (stream_ != nullptr) {
      cudaStreamDestroy(stream_);
    }
  }

  // Enqueues `count` copies of a byte each, to places of the device that follow each other; they
  // hold `first`, `first` + 1 and so on afterwards.
  void Copies(CallQueue* queue, int64_t count, int32_t first, int64_t from = 0, int64_t to = 0) {
    for (int64_t index = 0; index < count; ++index) {
      pinned_[from + index] = static_cast<std::byte>(first + index);
      ASSERT_TRUE(queue->Copy(device_ + to + index, pinned_ + from + index, 1).ok());
    }
  }
  // What the device holds, once all that is on the stream is done.
  int32_t Read(int64_t at) {
    std::byte value{};
    EXPECT_EQ(cudaMemcpyAsync(&value, device_ + at, 1, cudaMemcpyDefault, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return std::to_integer<int32_t>(value);
  }

  cudaStream_t stream_ = nullptr;
  std::byte* pinned_ = nullptr;  // [kBytes]
  std::byte* device_ = nullptr;  // [kBytes]
};

TEST_F(CallQueueTest, EveryCallOfAKindDoesItsOwn) {
  CallQueue queue(stream_, true);
  for (int32_t call = 0; call < 5; ++call) {  // remembered, made, and told what is different
    Copies(&queue, 3, 10 * call, 7 * call, 5 * call);
    ASSERT_TRUE(queue.EndCall().ok());
    for (int32_t index = 0; index < 3; ++index) {
      EXPECT_EQ(Read(5 * call + index), 10 * call + index);
    }
  }
}

TEST_F(CallQueueTest, MoreKindsThanAreKnown) {
  CallQueue queue(stream_, true);
  constexpr auto kKinds = static_cast<int32_t>(StepGraphs::kMostKinds) + 4;
  for (int32_t round = 0; round < 3; ++round) {
    for (int32_t kind = 1; kind <= kKinds; ++kind) {
      for (int32_t again = 0; again < 3; ++again) {
        Copies(&queue, kind, 50 * round + again);
        ASSERT_TRUE(queue.EndCall().ok());
        EXPECT_EQ(Read(0), 50 * round + again);
        EXPECT_EQ(Read(kind - 1), 50 * round + again + kind - 1);
      }
    }
  }
}

TEST_F(CallQueueTest, WhatGoesToTheStreamComesBehindWhatWasEnqueued) {
  CallQueue queue(stream_, true);
  constexpr int64_t kAside = 100;
  for (int32_t call = 1; call < 5; ++call) {
    Copies(&queue, 1, 10 * call);
    ASSERT_EQ(cudaMemcpyAsync(device_ + kAside, device_, 1, cudaMemcpyDefault, queue.stream()),
              cudaSuccess);
    Copies(&queue, 1, 10 * call + 1, 1);
    ASSERT_TRUE(queue.EndCall().ok());
    EXPECT_EQ(Read(kAside), 10 * call);
    EXPECT_EQ(Read(0), 10 * call + 1);
  }
}

TEST_F(CallQueueTest, ACallOfNothingIsNone) {
  CallQueue queue(stream_, true);
  EXPECT_TRUE(queue.EndCall().ok());
  EXPECT_TRUE(queue.EndCall().ok());
}

}  // namespace
}  // namespace longshore::cuda
