#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/core/half.h"

// The instructions that CUDA C++ has no words for, but those of four warps together
// (warpgroup.cuh). tests/cuda_emulator has them in C++, to run kernels without a GPU.
namespace longshore::cuda {

// Until all that earlier kernels of the stream wrote is there. Every thread of a chained kernel
// calls this before it touches memory that a kernel writes or reads.
__device__ inline void WaitForEarlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start, where it is chained. Called after WaitForEarlier() alone, so that what
// runs at once are two kernels that follow each other, never three.
__device__ inline void LetLaterStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// All kThreads threads, of whole warps, that come to the same index of 0 to 14.
template <int32_t kThreads>
__device__ inline void NamedBarrier(int32_t index) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + index), "n"(kThreads) : "memory");
}

// A place in shared memory where some threads tell others that they are done, over and over: each
// `arrivals` times TellDone() begin the next phase.
struct PhaseBarrier {
  uint64_t state;
};
// By one thread, before a barrier of the block's.
__device__ inline void InitPhases(PhaseBarrier* barrier, int32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(barrier))),
               "r"(arrivals)
               : "memory");
}
__device__ inline void TellDone(PhaseBarrier* barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(barrier)))
               : "memory");
}
// Until phase number `phase` is over; it must be the current one or the one before.
__device__ inline void AwaitPhase(PhaseBarrier* barrier, int32_t phase) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  uint32_t over = 0;
  while (over == 0) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, "
        "p;\n}"
        : "=r"(over)
        : "r"(address), "r"(phase & 1)
        : "memory");
#else
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, "
        "p;\n}"
        : "=r"(over)
        : "r"(address), "r"(phase & 1)
        : "memory");
#endif
  }
}

// 16 bytes to an address of shared memory, past the registers. Done when a WaitAsync() says so, for
// the thread that asked; for the others of its warp, a __syncwarp() later.
__device__ inline void CopyAsync(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void CopyAsync(void* to, const void* from) {
  CopyAsync(static_cast<uint32_t>(__cvta_generic_to_shared(to)), from);
}
__device__ inline void CommitAsync() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `kLeft` groups of copies, the last ones, are still on their way.
template <int32_t kLeft>
__device__ inline void WaitAsync() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// 2^x by the instruction alone: results too small for a normal number are zero.
__device__ inline float Exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// Two elements of a word: `low` in the lower half.
template <class Element>
__device__ inline uint32_t PackPair(float low, float high) {
  uint32_t out;
  if constexpr (std::is_same_v<Element, Bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  }
  return out;
}

template <class Element>
__device__ inline float2 UnpackPair(uint32_t pair) {
  if constexpr (std::is_same_v<Element, Bf16>) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  } else {
    float2 out;
    asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(out.x), "=f"(out.y)
        : "r"(pair));
    return out;
  }
}

// Warp-wide products of 16-bit elements with fp32 sums, as PTX's mma.m16n8k16 lays them out. With
// i = lane / 4 and j = lane % 4 a lane holds
//
//   A [16, 16]  a0 (row i, k 2j..), a1 (row i + 8, k 2j..), a2 (row i, k 2j + 8..), a3 (i + 8, ...)
//   B [16, 8]   b0 (k 2j.., column i), b1 (k 2j + 8.., column i)
//   C [16, 8]   c0, c1 (row i, columns 2j, 2j + 1), c2, c3 (row i + 8)
//
// A sum over k does not mind in which order its terms come, as long as A and B agree: that is what
// lets lanes load 16 bytes of a row at once instead of its fragments one by one.
struct Accumulator {
  float c[4] = {0.0F, 0.0F, 0.0F, 0.0F};
};

// sum += A B.
template <class Element>
__device__ inline void Multiply(uint32_t a0,
                                uint32_t a1,
                                uint32_t a2,
                                uint32_t a3,
                                uint32_t b0,
                                uint32_t b1,
                                Accumulator* sum) {
  float* c = sum->c;
  if constexpr (std::is_same_v<Element, Bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// The 8x8 matrix of 16-bit elements whose row i, columns 2j and 2j + 1 each lane holds, transposed.
__device__ inline uint32_t Transpose(uint32_t pair) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// Four 8x8 matrices of 16-bit elements in shared memory, of which lane l names row l % 8 of matrix
// l / 8: of each the elements that Transpose() takes, or gives where kTransposed.
template <bool kTransposed>
__device__ inline uint4 LoadMatrices(uint32_t row) {
  uint4 words;
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(row)
                 : "memory");
  }
  return words;
}

}  // namespace longshore::cuda
