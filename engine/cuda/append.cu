#include "engine/core/block.h"
#include "engine/cuda/chain.cuh"
#include "engine/cuda/kernels.h"
#include "engine/cuda/rotate.cuh"

namespace longshore::cuda {
namespace {

constexpr int32_t kThreads = 256;

// Rows of one KV head of a tensor to their places in a page, `stride` bytes apart.
__device__ void WriteRows(const TensorRef& from,
                          int64_t first_row,
                          int32_t rows,
                          const AttentionShape& shape,
                          int32_t kv_head,
                          DType to_dtype,
                          int64_t stride,
                          std::byte* to) {
  const int32_t depth = shape.head_dim;
  for (auto at = static_cast<int32_t>(threadIdx.x); at < rows * depth; at += kThreads) {
    const int32_t row = at / depth;
    const int64_t element = ((first_row + row) * shape.num_kv_heads + kv_head) * depth + at % depth;
    StoreAny(to_dtype, LoadAny(from.dtype, from.data, element), to + row * stride, at % depth);
  }
}

// The same without a conversion, 16 bytes at a time: head_dim is a multiple of 16.
__device__ void CopyRows(const TensorRef& from,
                         int64_t first_row,
                         int32_t rows,
                         const AttentionShape& shape,
                         int32_t kv_head,
                         int32_t head_bytes,
                         int64_t stride,
                         std::byte* to) {
  const int32_t words = head_bytes / 16;
  const auto* bytes = static_cast<const std::byte*>(from.data) + int64_t{kv_head} * head_bytes;
  for (auto at = static_cast<int32_t>(threadIdx.x); at < rows * words; at += kThreads) {
    const int32_t row = at / words;
    const int64_t offset = (first_row + row) * shape.num_kv_heads * head_bytes;
    reinterpret_cast<uint4*>(to + row * stride)[at % words] =
        reinterpret_cast<const uint4*>(bytes + offset)[at % words];
  }
}

// Maximum and minimum of the 64 keys of a page that is full now, of one KV head: a thread a
// dimension.
template <class Element>
__device__ void WriteSummary(SummaryKind kind,
                             const AttentionShape& shape,
                             const AppendItem& item,
                             int64_t first,
                             int32_t kv_head) {
  const KvView& kv = item.kv;
  const std::byte* keys = kv.Keys(first) + int64_t{kv_head} * kv.head_bytes;
  auto* summary =
      reinterpret_cast<Element*>(kv.Summary(kind, first) + int64_t{2} * kv_head * kv.head_bytes);
  for (auto dim = static_cast<int32_t>(threadIdx.x); dim < shape.head_dim; dim += kThreads) {
    float largest = -INFINITY;
    float smallest = INFINITY;
#pragma unroll 8
    for (int32_t token = 0; token < kBlockTokens; ++token) {
      const auto* row = reinterpret_cast<const Element*>(keys + int64_t{token} * kv.token_bytes);
      const float value = kind == SummaryKind::kUnrotated
                              ? ToFloat(row[dim])
                              : TurnedElement(row, dim, item.rope, first + token);
      largest = fmaxf(largest, value);
      smallest = fminf(smallest, value);
    }
    // Keys are elements of kv_dtype, so their bounds are too: nothing is rounded here.
    summary[dim] = ElementOf<Element>(largest);
    summary[shape.head_dim + dim] = ElementOf<Element>(smallest);
  }
}

// One part of a page (x), one KV head (y).
template <class Element>
__global__ void __launch_bounds__(kThreads)
    AppendRows(const __grid_constant__ AppendLaunch launch) {
  const PagePart part = launch.Part(blockIdx.x);
  const AppendItem& item = launch.Item(part.item);
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const KvView& kv = item.kv;
  const int64_t first_row = item.first_row + (part.token - item.position);
  const auto write = [&](const TensorRef& from, std::byte* to) {
    if (from.dtype == kv.dtype) {
      CopyRows(from, first_row, part.rows, launch.shape, kv_head, kv.head_bytes, kv.token_bytes,
               to);
    } else {
      WriteRows(from, first_row, part.rows, launch.shape, kv_head, kv.dtype, kv.token_bytes, to);
    }
  };
  WaitForEarlier();
  LetLaterStart();
  write(launch.k, kv.Keys(part.token) + int64_t{kv_head} * kv.head_bytes);
  write(launch.v, kv.Values(part.token) + int64_t{kv_head} * kv.head_bytes);
  const int64_t end = part.token + part.rows;
  if (end % kBlockTokens != 0) {
    return;  // the page is not full yet
  }
  __syncthreads();  // the rows are there
  if (item.summaries.unrotated) {
    WriteSummary<Element>(SummaryKind::kUnrotated, launch.shape, item, end - kBlockTokens, kv_head);
  }
  if (end <= item.summaries.rotated_below) {
    WriteSummary<Element>(SummaryKind::kRotated, launch.shape, item, end - kBlockTokens, kv_head);
  }
}

}  // namespace

void LaunchAppend(const AppendLaunch& launch, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(launch.num_parts),
                  static_cast<uint32_t>(launch.shape.num_kv_heads));
  WithElement(launch.shape.kv_dtype, [&](auto element) {
    LaunchChained(AppendRows<decltype(element)>, {grid, kThreads}, launch, stream);
  });
}

}  // namespace longshore::cuda
