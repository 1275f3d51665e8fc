#include "engine/core/block.h"
#include "engine/cuda/kernels.h"
#include "engine/cuda/launch.cuh"
#include "engine/cuda/rotate.cuh"

namespace longshore::cuda {
namespace {

constexpr int32_t kThreads = 256;
// One half writes keys while the other one writes values: either may come from host memory, far
// away.
constexpr int32_t kHalf = kThreads / 2;

// Rows of one KV head of a tensor, and their places in a page.
struct HeadRows {
  const TensorRef* from;
  int64_t first_row;
  int32_t rows;
  int32_t kv_head;
  const KvView* kv;
  std::byte* to;  // of the first
};

// Thread `thread` of kHalf writes its share.
__device__ void WriteRows(const HeadRows& head, const AttentionShape& shape, int32_t thread) {
  const int32_t depth = shape.head_dim;
  for (int32_t at = thread; at < head.rows * depth; at += kHalf) {
    const int64_t row = at / depth;
    const int64_t from =
        ((head.first_row + row) * shape.num_kv_heads + head.kv_head) * depth + at % depth;
    StoreAny(head.kv->dtype, LoadAny(head.from->dtype, head.from->data, from),
             head.to + row * head.kv->token_bytes, at % depth);
  }
}

// The same without a conversion, 16 bytes at a time: head_dim is a multiple of 16.
__device__ void CopyRows(const HeadRows& head, const AttentionShape& shape, int32_t thread) {
  const int32_t head_bytes = head.kv->head_bytes;
  const int32_t words = head_bytes / 16;
  const auto* bytes =
      static_cast<const std::byte*>(head.from->data) + int64_t{head.kv_head} * head_bytes;
  for (int32_t at = thread; at < head.rows * words; at += kHalf) {
    const int64_t row = at / words;
    const int64_t offset = (head.first_row + row) * shape.num_kv_heads * head_bytes;
    reinterpret_cast<uint4*>(head.to + row * head.kv->token_bytes)[at % words] =
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

// A thread block's share of what waits in host memory, a warp of words at a time. Warps that have
// no keys and values to write while a call is small come first.
__device__ void BringShare(const Waiting& waiting) {
  constexpr uint32_t kWarps = kThreads / 32;
  const auto* from = reinterpret_cast<const uint4*>(waiting.from);
  auto* to = reinterpret_cast<uint4*>(waiting.to);
  const auto words = static_cast<uint32_t>(waiting.bytes / 16);
  const uint32_t blocks = gridDim.x * gridDim.y;
  const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
  const uint32_t warp = (threadIdx.x / 32 + kWarps - 1) % kWarps;
  for (uint32_t at = (warp * blocks + block) * 32 + threadIdx.x % 32; at < words;
       at += blocks * kThreads) {
    to[at] = from[at];
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
  WaitForEarlier();
  LetLaterStart();
  BringShare(launch.queries);
  const auto thread = static_cast<int32_t>(threadIdx.x) % kHalf;
  const bool values = threadIdx.x >= kHalf;
  const HeadRows head{.from = values ? &launch.v : &launch.k,
                      .first_row = item.first_row + (part.token - item.position),
                      .rows = part.rows,
                      .kv_head = kv_head,
                      .kv = &kv,
                      .to = (values ? kv.Values(part.token) : kv.Keys(part.token)) +
                            int64_t{kv_head} * kv.head_bytes};
  if (head.from->dtype == kv.dtype) {
    CopyRows(head, launch.shape, thread);
  } else {
    WriteRows(head, launch.shape, thread);
  }
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

void LaunchAppend(const AppendLaunch& launch, CallQueue* queue) {
  const dim3 grid(static_cast<uint32_t>(launch.num_parts),
                  static_cast<uint32_t>(launch.shape.num_kv_heads));
  WithElement(launch.shape.kv_dtype, [&](auto element) {
    LaunchChained<AppendRows<decltype(element)>>({grid, kThreads}, queue, launch);
  });
}

}  // namespace longshore::cuda
