#include "engine/cuda/device_arena.h"

#include <cuda_runtime_api.h>

#include "engine/core/math.h"
#include "engine/cuda/cuda_status.h"

namespace longshore::cuda {
namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

DeviceArena::~DeviceArena() {
  for (const Piece& piece : pieces_) {
    cudaFree(piece.data);  // an error here has shown before
  }
}

absl::StatusOr<std::byte*> DeviceArena::Take(int64_t bytes) {
  bytes = RoundUp(Max(bytes, 1), kAlignment);
  for (Piece& piece : pieces_) {
    if (bytes <= piece.bytes - piece.used) {
      std::byte* taken = piece.data + piece.used;
      piece.used += bytes;
      return taken;
    }
  }
  Piece piece{.bytes = Max(bytes, piece_bytes_), .used = bytes};
  void* data = nullptr;
  RETURN_IF_ERROR(AllocationStatus(cudaMalloc(&data, static_cast<size_t>(piece.bytes)), piece.bytes,
                                   "device memory"));
  piece.data = static_cast<std::byte*>(data);
  pieces_.push_back(piece);
  return piece.data;
}

void DeviceArena::Reset() {
  for (Piece& piece : pieces_) {
    piece.used = 0;
  }
}

}  // namespace longshore::cuda
