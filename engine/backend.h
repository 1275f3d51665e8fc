#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "engine/backend_args.h"
#include "engine/core/status.h"

namespace longshore {

class Backend;

/// Bytes in one memory space, freed through the backend that made them. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend* backend, MemorySpace space, std::byte* data, int64_t bytes)
      : backend_(backend),
        space_(space),
        data_(data),
        bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { Swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  MemorySpace space() const { return space_; }

 private:
  void Swap(Buffer& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(space_, other.space_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  Backend* backend_ = nullptr;
  MemorySpace space_ = MemorySpace::kHost;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// What a backend runs on.
struct DeviceInfo {
  std::string backend;       ///< "cpu", "cuda"
  std::string device;        ///< for people
  int32_t threads = 0;       ///< that compute, on a CPU
  int64_t device_bytes = 0;  ///< memory of the device; 0 on a CPU
};

/// A point in a backend's queue.
struct Fence {
  uint64_t sequence = 0;
};

/// One device, seen as one in-order queue, and the only virtual interface of the engine.
///
/// Verbs enqueue and return; what they read and write must stay as it is until a Mark() after them
/// has been waited for. The spans of their arguments are only there until they return. A failure of
/// queued work shows in Wait() at the latest. Not thread-safe: one thread owns it.
///
/// Nobody but the backend touches memory of MemorySpace::kDevice: it may not be the host's.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const DeviceInfo& info() const = 0;

  /// `bytes` bytes, zeroed, aligned to 64 bytes at least. ResourceExhausted names the bytes.
  virtual absl::StatusOr<Buffer> Allocate(MemorySpace space, int64_t bytes) = 0;
  /// In queue order, between any two spaces, and any two places in them.
  virtual absl::Status Copy(void* to, const void* from, int64_t bytes) = 0;

  /// InvalidArgument NON_FINITE or OUT_OF_RANGE_VALUE with the position if an element of q, k or v
  /// is not within args.limits; the rows are then not to be counted as part of the session. So it
  /// looks at all of them before it returns, and before anything is written.
  virtual absl::Status Append(const AppendArgs& args) = 0;
  virtual absl::Status Prune(const PruneArgs& args) = 0;
  virtual absl::Status Attend(const AttendArgs& args) = 0;
  virtual absl::Status Admit(const AdmitArgs& args) = 0;

  virtual absl::StatusOr<Fence> Mark() = 0;
  virtual absl::Status Wait(Fence fence) = 0;
  /// Waits for all that is queued.
  absl::Status WaitForAll() {
    ASSIGN_OR_RETURN(const Fence fence, Mark());
    return Wait(fence);
  }

 private:
  friend class Buffer;
  /// What is queued may still use the memory: it is given to nobody else before that is done.
  virtual void Free(MemorySpace space, std::byte* data, int64_t bytes) = 0;
};

inline Buffer::~Buffer() {
  if (data_ != nullptr) {
    backend_->Free(space_, data_, bytes_);
  }
}

}  // namespace longshore
