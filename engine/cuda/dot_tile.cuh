#pragma once

#include <cstdint>

#include "engine/cuda/launch_shape.h"

namespace longshore::cuda {

// 256 threads, kRows queries and kTileKeys keys: raw scores in fp32, thread t those of key t % 64
// and every 4th row from t / 64 on. Keys and queries pass through shared memory in slices of
// dimensions, so that its size depends on neither head_dim nor type.
template <int32_t kRows>
struct DotTile {
  static constexpr int32_t kThreads = 256;
  static constexpr int32_t kSlice = 64;          // dimensions
  static constexpr int32_t kPitch = kSlice + 4;  // floats of a row: no two lanes share a bank
  static constexpr int32_t kRowStep = kThreads / kTileKeys;
  static constexpr int32_t kRowsOfThread = kRows / kRowStep;

  struct Shared {
    float keys[kTileKeys * kPitch];
    float queries[kRows * kPitch];
  };

  float sums[kRowsOfThread];

  __device__ static int32_t Key() { return static_cast<int32_t>(threadIdx.x) % kTileKeys; }
  __device__ static int32_t FirstRow() { return static_cast<int32_t>(threadIdx.x) / kTileKeys; }

  // queries [rows, depth]; key_element(key, index) for key < keys. Ends with a barrier.
  template <class KeyElement>
  __device__ void Run(const float* queries,
                      int32_t rows,
                      int32_t keys,
                      int32_t depth,
                      const KeyElement& key_element,
                      Shared* shared) {
    for (float& sum : sums) {
      sum = 0.0F;
    }
    for (int32_t slice = 0; slice < depth; slice += kSlice) {
      for (int32_t at = static_cast<int32_t>(threadIdx.x); at < kTileKeys * kSlice;
           at += kThreads) {
        const int32_t key = at / kSlice;
        const int32_t index = slice + at % kSlice;
        const bool there = key < keys && index < depth;
        shared->keys[key * kPitch + at % kSlice] = there ? key_element(key, index) : 0.0F;
      }
      for (int32_t at = static_cast<int32_t>(threadIdx.x); at < kRows * kSlice; at += kThreads) {
        const int32_t row = at / kSlice;
        const int32_t index = slice + at % kSlice;
        const bool there = row < rows && index < depth;
        shared->queries[row * kPitch + at % kSlice] =
            there ? queries[int64_t{row} * depth + index] : 0.0F;
      }
      __syncthreads();
      for (int32_t index = 0; index < kSlice; index += 4) {
        const float4 key = *reinterpret_cast<const float4*>(&shared->keys[Key() * kPitch + index]);
#pragma unroll
        for (int32_t row = 0; row < kRowsOfThread; ++row) {
          const float4 query = *reinterpret_cast<const float4*>(
              &shared->queries[(FirstRow() + row * kRowStep) * kPitch + index]);
          float sum = sums[row];
          sum = fmaf(query.x, key.x, sum);
          sum = fmaf(query.y, key.y, sum);
          sum = fmaf(query.z, key.z, sum);
          sums[row] = fmaf(query.w, key.w, sum);
        }
      }
      __syncthreads();
    }
  }
};

}  // namespace longshore::cuda
