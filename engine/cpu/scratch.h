#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace longshore::cpu {

/// Working memory of one thread that outlives the loops that use it, so that a step allocates only
/// when it is larger than every step before. What was taken stays valid until Reset(). Throws
/// std::bad_alloc, as the containers beside it do.
class Scratch {
 public:
  void Reset() { next_ = 0; }

  /// `count` floats, 64-byte aligned, uninitialised.
  float* Floats(int64_t count) { return static_cast<float*>(Bytes(count * 4)); }
  int32_t* Ints(int64_t count) { return static_cast<int32_t*>(Bytes(count * 4)); }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  struct Slot {
    std::unique_ptr<void, Free> memory;
    int64_t bytes = 0;
  };

  // The n-th take since Reset() uses the n-th slot; steps take in the same order, so slots fit
  // soon.
  void* Bytes(int64_t bytes) {
    if (next_ == slots_.size()) {
      slots_.emplace_back();
    }
    Slot& slot = slots_[next_++];
    if (slot.bytes < bytes) {
      slot.bytes = 0;
      slot.memory.reset();  // first, so that both are never there at once
      const int64_t rounded = (bytes + 63) / 64 * 64;
      slot.memory.reset(std::aligned_alloc(64, static_cast<size_t>(rounded)));
      if (slot.memory == nullptr) {
        throw std::bad_alloc();
      }
      slot.bytes = rounded;
    }
    return slot.memory.get();
  }

  std::vector<Slot> slots_;
  size_t next_ = 0;
};

}  // namespace longshore::cpu
