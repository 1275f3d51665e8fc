#include "engine/cpu/thread_team.h"

#include <atomic>
#include <new>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cpu/scratch.h"

namespace longshore::cpu {
namespace {

TEST(ThreadTeam, RunsEveryIndexOnce) {
  for (const int32_t threads : {1, 4}) {
    ThreadTeam team(threads);
    EXPECT_EQ(team.threads(), threads);
    std::vector<std::atomic<int32_t>> runs(1000);
    team.ParallelFor(1000, [&](int64_t index, int32_t thread) {
      EXPECT_LT(thread, threads);
      ++runs[static_cast<size_t>(index)];
    });
    for (const auto& count : runs) {
      EXPECT_EQ(count, 1);
    }
  }
}

// Whoever's stack it was: a loop whose every index throws, and one where a single one does, which
// is a worker's more often than not.
TEST(ThreadTeam, WhatABodyThrowsReachesTheCaller) {
  for (const int32_t threads : {1, 4}) {
    ThreadTeam team(threads);
    for (int32_t round = 0; round < 50; ++round) {
      EXPECT_THROW(team.ParallelFor(64, [](int64_t, int32_t) { throw std::bad_alloc(); }),
                   std::bad_alloc);
      EXPECT_THROW(team.ParallelFor(64,
                                    [&](int64_t index, int32_t) {
                                      if (index == round) {
                                        throw std::bad_alloc();
                                      }
                                    }),
                   std::bad_alloc);
      std::atomic<int64_t> sum = 0;
      team.ParallelFor(64, [&](int64_t index, int32_t) { sum += index; });
      EXPECT_EQ(sum, 63 * 64 / 2) << "the team is of no use any more";
    }
  }
}

TEST(Scratch, MemoryThatIsNotThereIsBadAlloc) {
  Scratch scratch;
  float* small = scratch.Floats(16);
  small[15] = 1.0F;
  EXPECT_THROW(scratch.Floats(int64_t{1} << 55), std::bad_alloc);
  scratch.Reset();
  scratch.Floats(16)[15] = 2.0F;
  scratch.Floats(100)[99] = 3.0F;  // the slot that found no memory
}

}  // namespace
}  // namespace longshore::cpu
