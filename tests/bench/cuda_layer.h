#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "engine/core/half.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/policy.h"
#include "engine/rope_table.h"

// One layer of 8B shapes on a GPU, for benchmarks of the backend's verbs.
namespace longshore::bench {

inline constexpr int32_t kHeads = 32;
inline constexpr int32_t kKvHeads = 8;
inline constexpr int32_t kHeadDim = 128;
inline constexpr int64_t kTokenBytes = int64_t{kKvHeads} * kHeadDim * 2;
inline constexpr int64_t kPageBytes = 2 * 64 * kTokenBytes;
inline constexpr int64_t kTrainedTokens = 131072;

inline void Check(bool ok, const std::string& what) {
  if (!ok) {
    std::fprintf(stderr, "benchmark: %s\n", what.c_str());
    std::exit(1);  // NOLINT(concurrency-mt-unsafe): nothing else runs that minds
  }
}
inline void Check(const absl::Status& status) { Check(status.ok(), status.ToString()); }
inline void Check(cudaError_t error) { Check(error == cudaSuccess, cudaGetErrorString(error)); }

template <class T>
T Take(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

// Gaussian bf16 numbers, of which copies fill the memory.
inline void Fill(std::byte* device, int64_t bytes) {
  static const std::vector<Bf16> values = [] {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<Bf16> made(int64_t{16} << 20);
    std::generate(made.begin(), made.end(), [&] { return ToBf16(normal(random)); });
    return made;
  }();
  const auto piece = static_cast<int64_t>(values.size() * sizeof(Bf16));
  for (int64_t at = 0; at < bytes; at += piece) {
    Check(cudaMemcpy(device + at, values.data(), static_cast<size_t>(std::min(piece, bytes - at)),
                     cudaMemcpyHostToDevice));
  }
}

inline AttentionShape ShapeOfLayer() {
  return {.num_heads = kHeads,
          .num_kv_heads = kKvHeads,
          .head_dim = kHeadDim,
          .kv_dtype = DType::kBf16,
          .softmax_scale = 0.08838835F};
}

inline RopeTable MakeRope(int64_t tokens, Backend* backend) {
  RopeSpec spec;
  for (int32_t pair = 0; pair < kHeadDim / 2; ++pair) {
    spec.inv_freq.push_back(std::pow(500000.0, -pair / 64.0));
  }
  spec.trained_tokens = kTrainedTokens;
  return Take(RopeTable::Create(spec, tokens + 4096, backend));
}

// Rows of `heads` heads in the backend's memory.
inline TensorRef RowsOf(const Buffer& buffer, int64_t rows, int32_t heads) {
  return {.data = buffer.data(),
          .dtype = DType::kBf16,
          .space = MemorySpace::kDevice,
          .rank = 3,
          .shape = {rows, heads, kHeadDim, 0}};
}

// How many chunks of a block's middle a stage keeps.
inline int32_t KeptChunks(const LayerPolicy& layers, const Regions& regions, int32_t stage) {
  int64_t tokens = regions.MiddleTokens();
  int64_t kept = 0;
  for (int32_t at = 0; at <= stage; ++at) {
    const PruningStage& of = layers.stages[static_cast<size_t>(at)];
    kept = std::min<int64_t>(of.KeepChunks(), tokens / of.chunk_tokens);
    tokens = kept * of.chunk_tokens;
  }
  return static_cast<int32_t>(kept);
}

// One layer of one session with `tokens` tokens.
struct Layer {
  Buffer pages;
  Buffer summaries;
  Buffer page_ids;
  KvView kv;
};

inline Layer MakeLayer(int64_t tokens, Backend* backend) {
  Layer layer;
  const int64_t pages = tokens / 64 + 1;
  layer.pages = Take(backend->Allocate(MemorySpace::kDevice, pages * kPageBytes));
  layer.summaries = Take(backend->Allocate(MemorySpace::kDevice, pages * kPageBytes / 64));
  layer.page_ids = Take(backend->Allocate(MemorySpace::kDevice, pages * 4));
  Check(cudaDeviceSynchronize());
  Fill(layer.pages.data(), layer.pages.bytes());
  Fill(layer.summaries.data(), layer.summaries.bytes());
  std::vector<int32_t> ids(static_cast<size_t>(pages));
  for (size_t page = 0; page < ids.size(); ++page) {
    ids[page] = static_cast<int32_t>(static_cast<int64_t>(page) * (kPageBytes / 4096));
  }
  Check(cudaMemcpy(layer.page_ids.data(), ids.data(), ids.size() * 4, cudaMemcpyHostToDevice));
  layer.kv.pages = layer.pages.data();
  layer.kv.summaries[0] = layer.summaries.data();
  layer.kv.summaries[1] = layer.summaries.data();
  layer.kv.page_ids = reinterpret_cast<const int32_t*>(layer.page_ids.data());
  layer.kv.value_offset = kPageBytes / 2;
  layer.kv.token_bytes = static_cast<int32_t>(kTokenBytes);
  layer.kv.head_bytes = kHeadDim * 2;
  layer.kv.dtype = DType::kBf16;
  return layer;
}

}  // namespace longshore::bench
