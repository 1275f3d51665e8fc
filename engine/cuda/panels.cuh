#pragma once

#include <cstdint>

#include "engine/cuda/ptx.cuh"

namespace longshore::cuda {

// kRows rows of kDepth 16-bit elements in shared memory, cut into panels of 64 elements: 128 bytes
// of a row, whose 16-byte chunks are swapped by the row so that eight rows' same chunk lie on
// different banks.
template <int32_t kRows, int32_t kDepth>
struct Panels {
  // Aligned as the hardware's own swizzle wants it.
  alignas(1024) uint4 chunks[kDepth / 64][kRows][8];

  // Chunk `chunk` of a row.
  __device__ uint4* At(int32_t row, int32_t chunk) {
    return &chunks[chunk / 8][row][(chunk ^ row) & 7];
  }
};

// Where a lane reads its part of fragments, as Multiply() takes them, of 16 rows and 16 elements:
//
//   kLeft             the rows are those of A
//   kRight            the rows are columns of B: words 0 and 1 are b0 and b1 of the first eight, 2
//                     and 3 of the others
//   kRightTransposed  the rows are the k of B, words likewise of 16 elements
enum class Side : uint8_t { kLeft, kRight, kRightTransposed };

// Chunks are even numbers. The swapping of chunks is a bitwise difference of addresses, so one
// register stands for all fragments of the same rows.
template <class Rows, Side kSide>
class Fragments {
 public:
  // From row `row`, a multiple of eight, on.
  __device__ Fragments(Rows* rows, int32_t row) {
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t of_side = kSide == Side::kRight ? lane % 8 + lane / 16 * 8 : lane % 16;
    const int32_t chunk = kSide == Side::kRight ? lane / 8 % 2 : lane / 16;
    address_ = static_cast<uint32_t>(__cvta_generic_to_shared(rows->At(row + of_side, chunk)));
  }

  // `rows` further on, a multiple of eight.
  __device__ uint4 Load(int32_t rows, int32_t chunk) const {
    constexpr uint32_t kPanelBytes = sizeof(Rows::chunks[0]);
    const uint32_t from = (address_ ^ static_cast<uint32_t>(chunk % 8 * 16)) +
                          static_cast<uint32_t>(chunk / 8) * kPanelBytes +
                          static_cast<uint32_t>(rows) * 128;
    return LoadMatrices<kSide == Side::kRightTransposed>(from);
  }

 private:
  uint32_t address_;
};

}  // namespace longshore::cuda
