#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "engine/core/half.h"
#include "tests/cuda_emulator/cuda_words.h"

// What engine/cuda/ptx.cuh declares, for emulated kernels: found before it.
namespace longshore::cuda {

inline void WaitForEarlier() {}
inline void LetLaterStart() {}
template <int32_t kThreads>
void NamedBarrier(int32_t index) {
  emulator::MeetBlock(1 + index, kThreads, 0);
}

struct PhaseBarrier {
  uint64_t state;
};
struct EmulatedPhases {
  uint16_t arrivals;
  uint16_t left;
  uint32_t phase;
};
inline void InitPhases(PhaseBarrier* barrier, int32_t arrivals) {
  const auto count = static_cast<uint16_t>(arrivals);
  const EmulatedPhases phases{count, count, 0};
  std::memcpy(barrier, &phases, sizeof(phases));
}
inline void TellDone(PhaseBarrier* barrier) {
  EmulatedPhases phases;
  std::memcpy(&phases, barrier, sizeof(phases));
  if (--phases.left == 0) {
    phases.left = phases.arrivals;
    ++phases.phase;
  }
  std::memcpy(barrier, &phases, sizeof(phases));
}
inline void AwaitPhase(PhaseBarrier* barrier, int32_t phase) {
  emulator::WaitUntil([barrier, phase] {
    EmulatedPhases phases;
    std::memcpy(&phases, barrier, sizeof(phases));
    return ((phases.phase ^ static_cast<uint32_t>(phase)) & 1) != 0;
  });
}

inline void CopyAsync(uint32_t to, const void* from) { emulator::SendCopy(to, from); }
inline void CopyAsync(void* to, const void* from) { CopyAsync(emulator::SharedAddress(to), from); }
inline void CommitAsync() { emulator::CommitCopies(); }
template <int32_t kLeft>
void WaitAsync() {
  emulator::WaitForCopies(kLeft);
}

inline float Exp2(float x) {
  const float power = std::exp2(x);
  return power < 0x1p-126F ? 0.0F : power;
}

template <class Element>
uint32_t PackPair(float low, float high) {
  if constexpr (std::is_same_v<Element, Bf16>) {
    return uint32_t{ToBf16(high).bits} << 16 | ToBf16(low).bits;
  } else {
    return uint32_t{ToF16(high).bits} << 16 | ToF16(low).bits;
  }
}
template <class Element>
float2 UnpackPair(uint32_t pair) {
  return {ToFloat(Element{static_cast<uint16_t>(pair)}),
          ToFloat(Element{static_cast<uint16_t>(pair >> 16)})};
}

struct Accumulator {
  float c[4] = {0.0F, 0.0F, 0.0F, 0.0F};
};

struct MultiplyWords {
  uint32_t a[4];
  uint32_t b[2];
  float c[4];
};

// The product of what all lanes gave, into their c.
template <class Element>
void MultiplyWarp(emulator::WarpBytes& warp) {
  float a[16][16];
  float b[8][16];
  MultiplyWords words[32];
  for (int32_t lane = 0; lane < 32; ++lane) {
    MultiplyWords& of = words[lane];
    std::memcpy(&of, warp[static_cast<size_t>(lane)].bytes, sizeof(of));
    const int32_t i = lane / 4;
    const int32_t k = lane % 4 * 2;
    for (int32_t part = 0; part < 4; ++part) {
      const float2 pair = UnpackPair<Element>(of.a[part]);
      a[i + part % 2 * 8][k + part / 2 * 8] = pair.x;
      a[i + part % 2 * 8][k + part / 2 * 8 + 1] = pair.y;
    }
    for (int32_t part = 0; part < 2; ++part) {
      const float2 pair = UnpackPair<Element>(of.b[part]);
      b[i][k + part * 8] = pair.x;
      b[i][k + part * 8 + 1] = pair.y;
    }
  }
  for (int32_t lane = 0; lane < 32; ++lane) {
    for (int32_t part = 0; part < 4; ++part) {
      const float* row = a[lane / 4 + part / 2 * 8];
      const float* column = b[lane % 4 * 2 + part % 2];
      float sum = words[lane].c[part];
      for (int32_t k = 0; k < 16; ++k) {
        sum += row[k] * column[k];
      }
      words[lane].c[part] = sum;
    }
    std::memcpy(warp[static_cast<size_t>(lane)].bytes, &words[lane], sizeof(words[lane]));
  }
}

template <class Element>
void Multiply(uint32_t a0,
              uint32_t a1,
              uint32_t a2,
              uint32_t a3,
              uint32_t b0,
              uint32_t b1,
              Accumulator* sum) {
  MultiplyWords words{{a0, a1, a2, a3}, {b0, b1}, {}};
  std::memcpy(words.c, sum->c, sizeof(words.c));
  const auto& all =
      emulator::MeetWarp("Multiply", 0xffffffffu, &words, sizeof(words), MultiplyWarp<Element>);
  std::memcpy(&words, all[static_cast<size_t>(emulator::Lane())].bytes, sizeof(words));
  std::memcpy(sum->c, words.c, sizeof(words.c));
}

// Elements 2j and 2j + 1 of column i of the 8x8 matrix whose row r begins at rows[r].
inline uint32_t OfTransposed(const uint16_t* const (&rows)[8], int32_t lane) {
  const int32_t j = lane % 4;
  return uint32_t{rows[2 * j + 1][lane / 4]} << 16 | rows[2 * j][lane / 4];
}

inline uint32_t Transpose(uint32_t pair) {
  const auto all = emulator::Everyone("Transpose", 0xffffffffu, pair);
  const uint16_t* rows[8];
  uint16_t matrix[8][8];
  for (size_t lane = 0; lane < 32; ++lane) {
    std::memcpy(&matrix[lane / 4][lane % 4 * 2], &all[lane], sizeof(pair));
    rows[lane / 4] = matrix[lane / 4];
  }
  return OfTransposed(rows, emulator::Lane());
}

template <bool kTransposed>
uint4 LoadMatrices(uint32_t row) {
  const auto all = emulator::Everyone("LoadMatrices", 0xffffffffu, row);
  const int32_t lane = emulator::Lane();
  uint32_t words[4];
  for (size_t matrix = 0; matrix < 4; ++matrix) {
    const uint16_t* rows[8];
    for (size_t of = 0; of < 8; ++of) {
      rows[of] = reinterpret_cast<const uint16_t*>(emulator::SharedAt(all[8 * matrix + of], 16));
    }
    if constexpr (kTransposed) {
      words[matrix] = OfTransposed(rows, lane);
    } else {
      std::memcpy(&words[matrix], rows[lane / 4] + lane % 4 * 2, sizeof(uint32_t));
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

}  // namespace longshore::cuda
