#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/panels.cuh"
#include "engine/cuda/ptx.cuh"

// Products by four warps together, as Hopper has them (PTX's wgmma): 64 rows, of which warp w has
// 16 w to 16 w + 15 as an m16n8 product has them, from Panels in shared memory. They run beside the
// warps until these wait for them.
namespace longshore::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kHasWarpgroups = true;
#else
inline constexpr bool kHasWarpgroups = false;
#endif

// What threads have written to shared memory is to be seen by products: before a barrier.
__device__ inline void FenceForProducts() {
  if constexpr (kHasWarpgroups) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
}

// Before products whose registers were written by anything else.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most `kLeft` groups of products, the last ones, are still running.
template <int32_t kLeft>
__device__ inline void WaitProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

// The four warps take registers that others leave, or leave some: kRegisters each thread has then.
template <int32_t kRegisters>
__device__ inline void TakeRegisters() {
  if constexpr (kHasWarpgroups) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }
}
template <int32_t kRegisters>
__device__ inline void LeaveRegisters() {
  if constexpr (kHasWarpgroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }
}

// Where a matrix lies, in 128-byte swizzled panels (the bits that PTX defines, of which the lowest
// count 16 bytes). `next_panel`: bytes
// between panels of 64 elements, which matters where these are columns.
__device__ inline uint64_t MatrixAt(const void* from, uint32_t next_panel) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(from));
  constexpr uint64_t kNextEightRows = 1024 / 16;
  constexpr uint64_t kSwizzle128 = 1;
  return (address & 0x3ffffu) / 16 | uint64_t{next_panel / 16} << 16 | kNextEightRows << 32 |
         kSwizzle128 << 62;
}
// To be added for what begins `chunk` chunks further on in the rows.
template <class Rows>
__device__ constexpr uint64_t ChunksOn(int32_t chunk) {
  return static_cast<uint64_t>(chunk / 8) * (sizeof(Rows::chunks[0]) / 16) +
         static_cast<uint64_t>(chunk % 8);
}

// Which instruction: the number of columns.
template <int32_t kColumns>
struct Columns {};

#define LONGSHORE_FOUR(n) \
  "+f"(sums[n].c[0]), "+f"(sums[n].c[1]), "+f"(sums[n].c[2]), "+f"(sums[n].c[3])
// sums (or nothing, where `adds` is 0) += A B: 64 rows are B's columns.
__device__ inline void MultiplyShared(Columns<64>,
                                      Bf16,
                                      uint64_t a,
                                      uint64_t b,
                                      int32_t adds,
                                      Accumulator* sums) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, "
      "0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
      "%26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0;\n}\n"
      : LONGSHORE_FOUR(0), LONGSHORE_FOUR(1), LONGSHORE_FOUR(2), LONGSHORE_FOUR(3),
        LONGSHORE_FOUR(4), LONGSHORE_FOUR(5), LONGSHORE_FOUR(6), LONGSHORE_FOUR(7)
      : "l"(a), "l"(b), "r"(adds));
}
// sums += A B: A in registers, 64 elements of each row are B's columns.
__device__ inline void MultiplyRows(Columns<64>,
                                    Bf16,
                                    const uint32_t (&a)[4],
                                    uint64_t b,
                                    Accumulator* sums) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
      "%27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
      : LONGSHORE_FOUR(0), LONGSHORE_FOUR(1), LONGSHORE_FOUR(2), LONGSHORE_FOUR(3),
        LONGSHORE_FOUR(4), LONGSHORE_FOUR(5), LONGSHORE_FOUR(6), LONGSHORE_FOUR(7)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// sums (or nothing, where `adds` is 0) += A B: 64 rows are B's columns.
__device__ inline void MultiplyShared(Columns<64>,
                                      F16,
                                      uint64_t a,
                                      uint64_t b,
                                      int32_t adds,
                                      Accumulator* sums) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, "
      "0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
      "%27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0;\n}\n"
      : LONGSHORE_FOUR(0), LONGSHORE_FOUR(1), LONGSHORE_FOUR(2), LONGSHORE_FOUR(3),
        LONGSHORE_FOUR(4), LONGSHORE_FOUR(5), LONGSHORE_FOUR(6), LONGSHORE_FOUR(7)
      : "l"(a), "l"(b), "r"(adds));
}
// sums += A B: A in registers, 64 elements of each row are B's columns.
__device__ inline void MultiplyRows(Columns<64>,
                                    F16,
                                    const uint32_t (&a)[4],
                                    uint64_t b,
                                    Accumulator* sums) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
      "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "
      "%28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
      : LONGSHORE_FOUR(0), LONGSHORE_FOUR(1), LONGSHORE_FOUR(2), LONGSHORE_FOUR(3),
        LONGSHORE_FOUR(4), LONGSHORE_FOUR(5), LONGSHORE_FOUR(6), LONGSHORE_FOUR(7)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// sums (or nothing, where `adds` is 0) += A B: 128 rows are B's columns.
__device__ inline void MultiplyShared(Columns<128>,
                                      Bf16,
                                      uint64_t a,
                                      uint64_t b,
                                      int32_t adds,
                                      Accumulator* sums) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, "
      "0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
      "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
      "%62, %63}, %64, %65, p, 1, 1, 0, 0;\n}\n"
      : LONGSHORE_FOUR(0), LONGSHORE_FOUR(1), LONGSHORE_FOUR(2), LONGSHORE_FOUR(3),
        LONGSHORE_FOUR(4), LONGSHORE_FOUR(5), LONGSHORE_FOUR(6), LONGSHORE_FOUR(7),
        LONGSHORE_FOUR(8), LONGSHORE_FOUR(9), LONGSHORE_FOUR(10), LONGSHORE_FOUR(11),
        LONGSHORE_FOUR(12), LONGSHORE_FOUR(13), LONGSHORE_FOUR(14), LONGSHORE_FOUR(15)
      : "l"(a), "l"(b), "r"(adds));
}
// sums += A B: A in registers, 128 elements of each row are B's columns.
__device__ inline void MultiplyRows(Columns<128>,
                                    Bf16,
                                    const uint32_t (&a)[4],
                                    uint64_t b,
                                    Accumulator* sums) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
      "%27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, "
      "%45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, "
      "%63}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
      : LONGSHORE_FOUR(0), LONGSHORE_FOUR(1), LONGSHORE_FOUR(2), LONGSHORE_FOUR(3),
        LONGSHORE_FOUR(4), LONGSHORE_FOUR(5), LONGSHORE_FOUR(6), LONGSHORE_FOUR(7),
        LONGSHORE_FOUR(8), LONGSHORE_FOUR(9), LONGSHORE_FOUR(10), LONGSHORE_FOUR(11),
        LONGSHORE_FOUR(12), LONGSHORE_FOUR(13), LONGSHORE_FOUR(14), LONGSHORE_FOUR(15)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// sums (or nothing, where `adds` is 0) += A B: 128 rows are B's columns.
__device__ inline void MultiplyShared(Columns<128>,
                                      F16,
                                      uint64_t a,
                                      uint64_t b,
                                      int32_t adds,
                                      Accumulator* sums) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, "
      "0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
      "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
      "%62, %63}, %64, %65, p, 1, 1, 0, 0;\n}\n"
      : LONGSHORE_FOUR(0), LONGSHORE_FOUR(1), LONGSHORE_FOUR(2), LONGSHORE_FOUR(3),
        LONGSHORE_FOUR(4), LONGSHORE_FOUR(5), LONGSHORE_FOUR(6), LONGSHORE_FOUR(7),
        LONGSHORE_FOUR(8), LONGSHORE_FOUR(9), LONGSHORE_FOUR(10), LONGSHORE_FOUR(11),
        LONGSHORE_FOUR(12), LONGSHORE_FOUR(13), LONGSHORE_FOUR(14), LONGSHORE_FOUR(15)
      : "l"(a), "l"(b), "r"(adds));
}
// sums += A B: A in registers, 128 elements of each row are B's columns.
__device__ inline void MultiplyRows(Columns<128>,
                                    F16,
                                    const uint32_t (&a)[4],
                                    uint64_t b,
                                    Accumulator* sums) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
      "%27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, "
      "%45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, "
      "%63}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
      : LONGSHORE_FOUR(0), LONGSHORE_FOUR(1), LONGSHORE_FOUR(2), LONGSHORE_FOUR(3),
        LONGSHORE_FOUR(4), LONGSHORE_FOUR(5), LONGSHORE_FOUR(6), LONGSHORE_FOUR(7),
        LONGSHORE_FOUR(8), LONGSHORE_FOUR(9), LONGSHORE_FOUR(10), LONGSHORE_FOUR(11),
        LONGSHORE_FOUR(12), LONGSHORE_FOUR(13), LONGSHORE_FOUR(14), LONGSHORE_FOUR(15)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#define LONGSHORE_NEW(n) \
  "=f"(sums[n].c[0]), "=f"(sums[n].c[1]), "=f"(sums[n].c[2]), "=f"(sums[n].c[3])
// sums = A B, as MultiplyShared(): whatever they were is not needed any more.
__device__ inline void MultiplyFirst(Columns<64>, Bf16, uint64_t a, uint64_t b, Accumulator* sums) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 0, "
      "0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, "
      "%7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, "
      "%25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0;\n}\n"
      : LONGSHORE_NEW(0), LONGSHORE_NEW(1), LONGSHORE_NEW(2), LONGSHORE_NEW(3), LONGSHORE_NEW(4),
        LONGSHORE_NEW(5), LONGSHORE_NEW(6), LONGSHORE_NEW(7)
      : "l"(a), "l"(b));
}
__device__ inline void MultiplyFirst(Columns<64>, F16, uint64_t a, uint64_t b, Accumulator* sums) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 0, "
      "0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
      "%26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0;\n}\n"
      : LONGSHORE_NEW(0), LONGSHORE_NEW(1), LONGSHORE_NEW(2), LONGSHORE_NEW(3), LONGSHORE_NEW(4),
        LONGSHORE_NEW(5), LONGSHORE_NEW(6), LONGSHORE_NEW(7)
      : "l"(a), "l"(b));
}
#undef LONGSHORE_NEW
#undef LONGSHORE_FOUR

}  // namespace longshore::cuda
