#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/status.h"

namespace longshore::cuda {

/// Hides how the device memory that a call works in is reused by the next: what is taken is good
/// for the work that is queued until Reset(), and the queue's order keeps later work out of it.
///
/// Grows by pieces that it keeps, so that a call like an earlier one allocates nothing.
class DeviceArena {
 public:
  /// Pieces are `piece_bytes` at least.
  explicit DeviceArena(int64_t piece_bytes) : piece_bytes_(piece_bytes) {}
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  /// `bytes` bytes, aligned to 256, with anything in them. ResourceExhausted names the bytes.
  absl::StatusOr<std::byte*> Take(int64_t bytes);
  /// What was taken may be taken again.
  void Reset();

 private:
  struct Piece {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    int64_t used = 0;
  };

  int64_t piece_bytes_;
  std::vector<Piece> pieces_;
};

}  // namespace longshore::cuda
