#include "engine/core/block.h"
#include "engine/cuda/kernels.h"
#include "engine/cuda/rotate.cuh"

namespace longshore::cuda {
namespace {

constexpr int32_t kThreads = 256;

// One part of a page, keys (blockIdx.y 0) or values (1).
__global__ void __launch_bounds__(kThreads) WriteRows(const __grid_constant__ AppendLaunch launch) {
  const PagePart part = launch.parts[blockIdx.x];
  const AppendItem& item = launch.items[part.item];
  const TensorRef& from = blockIdx.y == 0 ? launch.k : launch.v;
  const KvView& kv = item.kv;
  std::byte* to = blockIdx.y == 0 ? kv.Keys(part.token) : kv.Values(part.token);
  const int64_t row_elements = int64_t{launch.shape.num_kv_heads} * launch.shape.head_dim;
  const int64_t first = (item.first_row + (part.token - item.position)) * row_elements;
  const int64_t elements = part.rows * row_elements;
  if (from.dtype == kv.dtype) {
    // head_dim is a multiple of 16, so that rows are whole 16-byte words.
    const int64_t size = kv.token_bytes / row_elements;
    const auto* words =
        reinterpret_cast<const uint4*>(static_cast<const std::byte*>(from.data) + first * size);
    for (int64_t word = threadIdx.x; word < elements * size / 16; word += kThreads) {
      reinterpret_cast<uint4*>(to)[word] = words[word];
    }
    return;
  }
  for (int64_t element = threadIdx.x; element < elements; element += kThreads) {
    StoreAny(kv.dtype, LoadAny(from.dtype, from.data, first + element), to, element);
  }
}

// Maximum and minimum of the 64 keys of a page that is full now: one KV head, one kind of summary,
// a thread a dimension.
template <class Element>
__global__ void WriteSummaries(const __grid_constant__ AppendLaunch launch) {
  const PagePart part = launch.parts[blockIdx.x];
  const AppendItem& item = launch.items[part.item];
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const auto kind = static_cast<SummaryKind>(blockIdx.z);
  const int64_t end = part.token + part.rows;
  const bool wanted = kind == SummaryKind::kUnrotated ? item.summaries.unrotated
                                                      : end <= item.summaries.rotated_below;
  const auto dim = static_cast<int32_t>(threadIdx.x);
  if (end % kBlockTokens != 0 || !wanted || dim >= launch.shape.head_dim) {
    return;
  }
  const KvView& kv = item.kv;
  const int64_t first = end - kBlockTokens;
  const std::byte* keys = kv.Keys(first) + int64_t{kv_head} * kv.head_bytes;
  float largest = -INFINITY;
  float smallest = INFINITY;
  for (int32_t token = 0; token < kBlockTokens; ++token) {
    const auto* row = reinterpret_cast<const Element*>(keys + int64_t{token} * kv.token_bytes);
    const float value = kind == SummaryKind::kUnrotated
                            ? ToFloat(row[dim])
                            : TurnedElement(row, dim, item.rope, first + token);
    largest = fmaxf(largest, value);
    smallest = fminf(smallest, value);
  }
  // Keys are elements of kv_dtype, so their bounds are too: nothing is rounded here.
  auto* summary =
      reinterpret_cast<Element*>(kv.Summary(kind, first) + int64_t{2} * kv_head * kv.head_bytes);
  summary[dim] = ElementOf<Element>(largest);
  summary[launch.shape.head_dim + dim] = ElementOf<Element>(smallest);
}

}  // namespace

void LaunchAppend(const AppendLaunch& launch, cudaStream_t stream) {
  const auto parts = static_cast<uint32_t>(launch.num_parts);
  WriteRows<<<dim3(parts, 2), kThreads, 0, stream>>>(launch);
  const auto kv_heads = static_cast<uint32_t>(launch.shape.num_kv_heads);
  WithElement(launch.shape.kv_dtype, [&](auto element) {
    WriteSummaries<decltype(element)>
        <<<dim3(parts, kv_heads, kNumSummaryKinds), static_cast<uint32_t>(launch.shape.head_dim), 0,
           stream>>>(launch);
  });
}

}  // namespace longshore::cuda
