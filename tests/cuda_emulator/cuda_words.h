#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tests/cuda_emulator/emulator.h"

// CUDA C++ for a C++ compiler: what kernels of ours name. It is put before each translated .cu file
// (translate.py), so it includes nothing of ours else.

#undef __device__
#undef __global__
#undef __shared__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#undef __forceinline__
#undef __syncthreads
#undef cudaLaunchKernelEx
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)
#define __forceinline__ inline

inline void __syncthreads() { emulator::MeetBlock(0, 0, 0); }
inline int __syncthreads_count(int value) { return emulator::MeetBlock(0, 0, value != 0 ? 1 : 0); }
inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  emulator::MeetWarp("__syncwarp", mask, nullptr, 0, nullptr);
}
inline void __threadfence() {}

template <class T>
T __shfl_sync(uint32_t mask, T value, int32_t lane) {
  return emulator::Everyone("__shfl_sync", mask, value)[static_cast<size_t>(lane % 32)];
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int32_t lanes) {
  return emulator::Everyone("__shfl_xor_sync", mask,
                            value)[static_cast<size_t>((emulator::Lane() ^ lanes) % 32)];
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, uint32_t lanes) {
  const auto all = emulator::Everyone("__shfl_up_sync", mask, value);
  const int32_t from = emulator::Lane() - static_cast<int32_t>(lanes);
  return from < 0 ? value : all[static_cast<size_t>(from)];
}
inline uint32_t __ballot_sync(uint32_t mask, int value) {
  const auto all = emulator::Everyone("__ballot_sync", mask, value);
  uint32_t out = 0;
  for (size_t lane = 0; lane < 32; ++lane) {
    out |= (all[lane] != 0 ? 1U : 0U) << lane;
  }
  return out;
}
inline int __any_sync(uint32_t mask, int value) { return __ballot_sync(mask, value) != 0 ? 1 : 0; }
inline int __all_sync(uint32_t mask, int value) {
  return __ballot_sync(mask, value) == 0xffffffffu ? 1 : 0;
}
template <class T>
T __reduce_max_sync(uint32_t mask, T value) {
  return emulator::Fold<T>("__reduce_max_sync", mask, value,
                           [](T a, T b) { return a > b ? a : b; });
}
template <class T>
T __reduce_min_sync(uint32_t mask, T value) {
  return emulator::Fold<T>("__reduce_min_sync", mask, value,
                           [](T a, T b) { return a < b ? a : b; });
}
// One thread runs at a time.
template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  *at = before + value;
  return before;
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  *at = before > value ? before : value;
  return before;
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  const T before = *at;
  *at = before < value ? before : value;
  return before;
}

template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
template <class T>
void __stcg(T* at, const T& value) {
  *at = value;
}

inline uint32_t __float_as_uint(float value) {
  uint32_t out;
  std::memcpy(&out, &value, sizeof(out));
  return out;
}
inline int32_t __float_as_int(float value) { return static_cast<int32_t>(__float_as_uint(value)); }
inline float __uint_as_float(uint32_t value) {
  float out;
  std::memcpy(&out, &value, sizeof(out));
  return out;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdividef(float a, float b) { return a / b; }
inline int __clz(int value) {
  return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value));
}
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t out = 0;
  for (uint32_t index = 0; index < 4; ++index) {
    const uint32_t from = selector >> (4 * index) & 7;
    out |= static_cast<uint32_t>(bytes >> (8 * from) & 0xff) << (8 * index);
  }
  return out;
}
inline size_t __cvta_generic_to_shared(const void* at) { return emulator::SharedAddress(at); }

using std::fmaf;
using std::fmaxf;
using std::fminf;
template <class T>
T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
T max(T a, T b) {
  return a > b ? a : b;
}

template <class... Parameters, size_t... kIndices>
void EmulatedCall(void (*kernel)(Parameters...),
                  void** arguments,
                  std::index_sequence<kIndices...>) {
  kernel(*static_cast<std::remove_const_t<Parameters>*>(arguments[kIndices])...);
}
template <class... Parameters, class... Arguments>
cudaError_t EmulatedLaunch(const cudaLaunchConfig_t* config,
                           void (*kernel)(Parameters...),
                           const Arguments&... arguments) {
  const emulator::KernelEntry& entry = emulator::Loaded(reinterpret_cast<const void*>(kernel));
  emulator::Run(entry.name, {config->gridDim, config->blockDim, config->dynamicSmemBytes},
                [&] { kernel(arguments...); });
  return cudaSuccess;
}
#define cudaLaunchKernelEx EmulatedLaunch
/// `name` holds the kernel's.
template <class... Parameters>
cudaError_t EmulatedGetAttributes(const char* name,
                                  cudaFuncAttributes*,
                                  void (*kernel)(Parameters...)) {
  emulator::Load(reinterpret_cast<const void*>(kernel),
                 {name, {sizeof(Parameters)...}, [kernel](void** arguments) {
                    EmulatedCall(kernel, arguments, std::index_sequence_for<Parameters...>());
                  }});
  return cudaSuccess;
}
#define cudaFuncGetAttributes(...) EmulatedGetAttributes(__PRETTY_FUNCTION__, __VA_ARGS__)
#define cudaFuncSetAttribute EmulatedSetAttribute
template <class Kernel>
cudaError_t EmulatedSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
