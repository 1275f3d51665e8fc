#include "tests/cuda_emulator/emulator.h"

#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace emulator {
namespace {

namespace context = boost::context;

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kMostThreads = 1024;
constexpr size_t kMostBarriers = 16;
constexpr uint32_t kSharedBegin = 1024;  // an address of 0 would hide mistakes
constexpr std::byte kPoison{0xff};       // floats of it are no numbers

// Stacks of all threads, used again by each block.
class Stacks {
 public:
  context::stack_context allocate() {
    if (!free_.empty()) {
      const context::stack_context stack = free_.back();
      free_.pop_back();
      return stack;
    }
    return context::fixedsize_stack(kStackBytes).allocate();
  }
  void deallocate(context::stack_context& stack) { free_.push_back(stack); }

 private:
  std::vector<context::stack_context> free_;
};
Stacks stacks;
struct StackAllocator {
  context::stack_context allocate() { return stacks.allocate(); }
  void deallocate(context::stack_context& stack) { stacks.deallocate(stack); }
};

struct Copy {
  uint32_t to;
  const void* from;
};

struct Warp {
  const char* what = nullptr;  // that lanes have come for
  int32_t arrived = 0;
  int32_t running = 0;
  uint64_t meetings = 0;
  WarpBytes given[2];
};

struct Barrier {
  int32_t arrived = 0;
  int32_t count = 0;
  int32_t sum = 0;
  int32_t result[2] = {};
  uint64_t meetings = 0;
};

struct Thread {
  uint32_t index = 0;
  context::fiber fiber;
  Warp* warp = nullptr;
  const uint64_t* waits_for = nullptr;  // to pass `meeting`
  uint64_t meeting = 0;
  std::function<bool()> ready;           // where it waits for something else
  std::deque<std::vector<Copy>> copies;  // the last group is still open
  bool done = false;
};

struct Block {
  const char* name = "";
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Barrier barriers[kMostBarriers];
  int32_t running = 0;
  std::vector<std::byte> shared;
};
Block block;
Thread* current = nullptr;
context::fiber scheduler;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "kernel %s, block (%u, %u, %u), thread %u: %s\n", block.name, blockIdx.x,
               blockIdx.y, blockIdx.z, current->index, what);
  std::abort();
}

void WaitUntilPast(const uint64_t* meetings, uint64_t meeting) {
  current->waits_for = meetings;
  current->meeting = meeting;
  scheduler = std::move(scheduler).resume();
}

bool IsReady(const Thread& thread) {
  return !thread.done && (thread.waits_for == nullptr || *thread.waits_for > thread.meeting) &&
         (thread.ready == nullptr || thread.ready());
}

void EndMeeting(Warp* warp) {
  warp->arrived = 0;
  warp->what = nullptr;
  ++warp->meetings;
}

void EndMeeting(Barrier* barrier) {
  barrier->result[barrier->meetings % 2] = barrier->sum;
  barrier->arrived = 0;
  barrier->sum = 0;
  ++barrier->meetings;
}

// Those who wait do not wait for threads that have returned.
void Leave(Thread* thread) {
  thread->done = true;
  --block.running;
  Warp* warp = thread->warp;
  --warp->running;
  if (warp->arrived > 0 && warp->arrived == warp->running) {
    EndMeeting(warp);
  }
  Barrier& all = block.barriers[0];
  if (all.arrived > 0 && all.arrived == block.running) {
    EndMeeting(&all);
  }
}

void MakeThreads(const Grid& grid, const std::function<void()>& body) {
  const size_t count = size_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  if (count == 0 || count > kMostThreads || grid.threads.y != 1 || grid.threads.z != 1) {
    std::fprintf(stderr, "kernel %s: blocks of (%u, %u, %u) threads\n", block.name, grid.threads.x,
                 grid.threads.y, grid.threads.z);
    std::abort();
  }
  block.threads.clear();
  block.threads.resize(count);
  block.warps.assign((count + 31) / 32, Warp());
  std::fill(std::begin(block.barriers), std::end(block.barriers), Barrier());
  block.running = static_cast<int32_t>(count);
  for (size_t index = 0; index < count; ++index) {
    Thread& thread = block.threads[index];
    thread.index = static_cast<uint32_t>(index);
    thread.warp = &block.warps[index / 32];
    ++thread.warp->running;
    thread.copies.emplace_back();
    thread.fiber = context::fiber(std::allocator_arg, StackAllocator(),
                                  [&body, &thread](context::fiber&& back) {
                                    scheduler = std::move(back);
                                    body();
                                    Leave(&thread);
                                    return std::move(scheduler);
                                  });
  }
}

// Threads take turns, in another order each time.
void RunThreads(std::mt19937* random) {
  std::vector<size_t> order(block.threads.size());
  for (size_t index = 0; index < order.size(); ++index) {
    order[index] = index;
  }
  std::shuffle(order.begin(), order.end(), *random);
  const size_t rotation_seed = (*random)();
  for (size_t turn = 0; block.running > 0; ++turn) {
    bool any = false;
    const size_t begin = (rotation_seed + turn * 7919) % order.size();
    for (size_t index = 0; index < order.size(); ++index) {
      Thread& thread = block.threads[order[(begin + index) % order.size()]];
      if (!IsReady(thread)) {
        continue;
      }
      any = true;
      thread.waits_for = nullptr;
      thread.ready = nullptr;
      current = &thread;
      threadIdx.x = thread.index;
      thread.fiber = std::move(thread.fiber).resume();
    }
    if (!any) {
      Fail("threads wait for others that do not come");
    }
  }
}

}  // namespace

void Run(const char* name, const Grid& grid, const std::function<void()>& thread) {
  static std::mt19937 random(20261201);
  block.name = name;
  blockDim = grid.threads;
  gridDim = grid.blocks;
  for (uint32_t z = 0; z < grid.blocks.z; ++z) {
    for (uint32_t y = 0; y < grid.blocks.y; ++y) {
      for (uint32_t x = 0; x < grid.blocks.x; ++x) {
        // Aligned as a GPU's shared memory is: 1024 bytes.
        block.shared.assign(grid.shared_bytes + 1024, kPoison);
        blockIdx = {x, y, z};
        MakeThreads(grid, thread);
        RunThreads(&random);
      }
    }
  }
}

std::byte* SharedMemory() {
  const auto address = reinterpret_cast<uintptr_t>(block.shared.data());
  return block.shared.data() + (1024 - address % 1024) % 1024;
}

uint32_t SharedAddress(const void* at) {
  const ptrdiff_t offset = static_cast<const std::byte*>(at) - SharedMemory();
  if (offset < 0 || offset > static_cast<ptrdiff_t>(block.shared.size())) {
    Fail("an address that is not in dynamic shared memory");
  }
  return kSharedBegin + static_cast<uint32_t>(offset);
}

std::byte* SharedAt(uint32_t address, size_t bytes) {
  if (address < kSharedBegin || address - kSharedBegin + bytes > block.shared.size() - 1024) {
    Fail("an access behind dynamic shared memory");
  }
  if (address % bytes != 0) {
    Fail("an access to shared memory that is not aligned");
  }
  return SharedMemory() + (address - kSharedBegin);
}

WarpBytes& MeetWarp(const char* what,
                    uint32_t mask,
                    const void* from,
                    size_t bytes,
                    const std::function<void(WarpBytes&)>& combine) {
  Warp& warp = *current->warp;
  if (mask != 0xffffffffu) {
    Fail("a part of a warp is asked for: the emulator knows whole ones");
  }
  if (warp.what != nullptr && std::strcmp(warp.what, what) != 0) {
    std::fprintf(stderr, "%s and %s\n", warp.what, what);
    Fail("lanes of a warp meet for different things");
  }
  warp.what = what;
  WarpBytes& given = warp.given[warp.meetings % 2];
  if (bytes > 0) {
    std::memcpy(given[static_cast<size_t>(Lane())].bytes, from, bytes);
  }
  const uint64_t meeting = warp.meetings;
  if (++warp.arrived == warp.running) {
    if (combine != nullptr) {
      combine(given);
    }
    EndMeeting(&warp);
  } else {
    WaitUntilPast(&warp.meetings, meeting);
  }
  return given;
}

int32_t MeetBlock(int32_t index, int32_t count, int32_t value) {
  Barrier& barrier = block.barriers[index];
  barrier.sum += value;
  const uint64_t meeting = barrier.meetings;
  if (++barrier.arrived == (count == 0 ? block.running : count)) {
    EndMeeting(&barrier);
  } else {
    WaitUntilPast(&barrier.meetings, meeting);
  }
  return barrier.result[meeting % 2];
}

void WaitUntil(const std::function<bool()>& ready) {
  if (!ready()) {
    current->ready = ready;
    scheduler = std::move(scheduler).resume();
  }
}

void SendCopy(uint32_t to, const void* from) {
  SharedAt(to, 16);
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    Fail("a copy from an address that is no multiple of 16");
  }
  static std::mt19937 random(20261202);
  if (random() % 2 == 0) {  // some arrive at once
    std::memcpy(SharedAt(to, 16), from, 16);
  } else {
    current->copies.back().push_back({to, from});
  }
}

void CommitCopies() { current->copies.emplace_back(); }

void WaitForCopies(size_t groups_left) {
  while (current->copies.size() > groups_left + 1) {
    for (const Copy& copy : current->copies.front()) {
      std::memcpy(SharedAt(copy.to, 16), copy.from, 16);
    }
    current->copies.pop_front();
  }
}

namespace {
std::map<const void*, KernelEntry>& Entries() {
  static std::map<const void*, KernelEntry> entries;
  return entries;
}
}  // namespace

void Load(const void* kernel, KernelEntry entry) {
  Entries().insert_or_assign(kernel, std::move(entry));
}

const KernelEntry& Loaded(const void* kernel) {
  const auto found = Entries().find(kernel);
  if (found == Entries().end()) {
    std::fprintf(stderr, "a kernel that was not loaded when the backend was made\n");
    std::abort();
  }
  return found->second;
}

}  // namespace emulator
