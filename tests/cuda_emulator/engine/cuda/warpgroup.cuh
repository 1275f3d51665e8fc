#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/panels.cuh"
#include "engine/cuda/ptx.cuh"
#include "tests/cuda_emulator/cuda_words.h"

// What engine/cuda/warpgroup.cuh declares, for emulated kernels: found before it. Products of four
// warps are done at once, by each warp for its 16 rows.
namespace longshore::cuda {

#ifdef EMULATED_WARPGROUPS
inline constexpr bool kHasWarpgroups = true;
#else
inline constexpr bool kHasWarpgroups = false;
#endif

inline void FenceForProducts() {}
inline void BeginProducts() {}
inline void CommitProducts() {}
template <int32_t kLeft>
void WaitProducts() {}

template <int32_t kRegisters>
void TakeRegisters() {}
template <int32_t kRegisters>
void LeaveRegisters() {}

// As the hardware has it.
inline uint64_t MatrixAt(const void* from, uint32_t next_panel) {
  return emulator::SharedAddress(from) / 16 | uint64_t{next_panel / 16} << 16;
}
template <class Rows>
constexpr uint64_t ChunksOn(int32_t chunk) {
  return static_cast<uint64_t>(chunk / 8) * (sizeof(Rows::chunks[0]) / 16) +
         static_cast<uint64_t>(chunk % 8);
}

template <int32_t kColumns>
struct Columns {};

// The matrix that MatrixAt() means.
template <class Element>
struct EmulatedMatrix {
  uint32_t begin;
  uint32_t next_panel;

  explicit EmulatedMatrix(uint64_t at)
      : begin(static_cast<uint32_t>(at & 0xffff) * 16),
        next_panel(static_cast<uint32_t>(at >> 16 & 0xffff) * 16) {}

  // Element `index` of row `row`: chunks of 16 bytes are swapped by the address's next three bits.
  float At(int32_t row, int32_t index) const {
    const uint32_t address = begin + static_cast<uint32_t>(index / 64) * next_panel +
                             static_cast<uint32_t>(row) * 128 +
                             static_cast<uint32_t>(index % 64) * 2;
    Element element;
    std::memcpy(&element, emulator::SharedAt(address ^ (address >> 7 & 7) << 4, sizeof(element)),
                sizeof(element));
    return ToFloat(element);
  }
};

// sums += A B for the lane's elements, from a(row of two, k) and b(column, k).
template <int32_t kColumns, class Left, class Right>
void AddProducts(const Left& a, const Right& b, Accumulator* sums) {
  const int32_t j = emulator::Lane() % 4;
  float rows[2][16];
  for (int32_t k = 0; k < 16; ++k) {
    rows[0][k] = a(0, k);
    rows[1][k] = a(1, k);
  }
  for (int32_t tile = 0; tile < kColumns / 8; ++tile) {
    for (int32_t of = 0; of < 2; ++of) {
      float low = sums[tile].c[of];
      float high = sums[tile].c[of + 2];
      for (int32_t k = 0; k < 16; ++k) {
        const float right = b(8 * tile + 2 * j + of, k);
        low += rows[0][k] * right;
        high += rows[1][k] * right;
      }
      sums[tile].c[of] = low;
      sums[tile].c[of + 2] = high;
    }
  }
}

template <int32_t kColumns, class Element>
void MultiplyShared(Columns<kColumns>,
                    Element,
                    uint64_t a,
                    uint64_t b,
                    int32_t adds,
                    Accumulator* sums) {
  __syncwarp();
  const EmulatedMatrix<Element> left(a);
  const EmulatedMatrix<Element> right(b);
  if (adds == 0) {
    std::fill_n(sums, kColumns / 8, Accumulator());
  }
  const auto warp = static_cast<int32_t>(threadIdx.x) / 32 % 4;
  const int32_t row = 16 * warp + emulator::Lane() / 4;
  AddProducts<kColumns>([&](int32_t half, int32_t k) { return left.At(row + 8 * half, k); },
                        [&](int32_t column, int32_t k) { return right.At(column, k); }, sums);
}

template <int32_t kColumns, class Element>
void MultiplyFirst(Columns<kColumns> columns,
                   Element of,
                   uint64_t a,
                   uint64_t b,
                   Accumulator* sums) {
  MultiplyShared(columns, of, a, b, 0, sums);
}

template <int32_t kColumns, class Element>
void MultiplyRows(Columns<kColumns>,
                  Element,
                  const uint32_t (&a)[4],
                  uint64_t b,
                  Accumulator* sums) {
  struct Words {
    uint32_t a[4];
  };
  Words words;
  std::memcpy(words.a, a, sizeof(a));
  const auto all = emulator::Everyone("MultiplyRows", 0xffffffffu, words);
  const EmulatedMatrix<Element> right(b);
  const auto i = static_cast<size_t>(emulator::Lane() / 4);
  const auto left = [&](int32_t half, int32_t k) {
    const Words& of = all[4 * i + static_cast<size_t>(k % 8 / 2)];
    const float2 pair = UnpackPair<Element>(of.a[half + k / 8 * 2]);
    return k % 2 == 0 ? pair.x : pair.y;
  };
  AddProducts<kColumns>(
      left, [&](int32_t column, int32_t k) { return right.At(k, column); }, sums);
}

}  // namespace longshore::cuda
