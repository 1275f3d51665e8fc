#include <cstring>
#include <vector>

#include "engine/core/block.h"
#include "engine/cpu/check_inputs.h"
#include "engine/cpu/cpu_backend.h"
#include "engine/cpu/rows.h"

namespace longshore::cpu {
namespace {

// Tokens [token, end) of one page of an item, to be written.
struct PagePart {
  const AppendItem* item;
  int64_t token;
  int64_t end;
};

std::vector<PagePart> SplitAtPages(std::span<const AppendItem> items) {
  std::vector<PagePart> parts;
  for (const AppendItem& item : items) {
    const int64_t end = item.replay ? item.position : item.position + item.rows;
    ForEachPagePart(item.position, end, [&](int64_t token, int64_t part_end) {
      parts.push_back({&item, token, part_end});
    });
  }
  return parts;
}

void WriteRows(const TensorRef& tensor,
               const PagePart& part,
               const KvView& kv,
               std::byte* to,
               Scratch* scratch) {
  const int64_t rows = part.end - part.token;
  const std::byte* from = tensor.Row(part.item->first_row + (part.token - part.item->position));
  if (tensor.dtype == kv.dtype) {
    std::memcpy(to, from, static_cast<size_t>(rows * kv.token_bytes));
    return;
  }
  const int64_t elements = rows * tensor.shape[1] * tensor.shape[2];
  float* wide = scratch->Floats(elements);
  LoadRows({.first = from, .stride_bytes = 0, .dtype = tensor.dtype}, 1,
           static_cast<int32_t>(elements), wide);
  StoreRows(wide, elements, kv.dtype, to);
}

// Maximum and minimum of the 64 keys of the page that ends at `end`, for every KV head.
void WriteSummary(SummaryKind kind,
                  const AttentionShape& shape,
                  const PagePart& part,
                  Scratch* scratch) {
  const KvView& kv = part.item->kv;
  const RopeRows& rope = part.item->rope;
  const int32_t depth = shape.head_dim;
  const KeyPiece page{.token = part.end - kBlockTokens, .rank = 0, .keys = kBlockTokens};
  float* keys = scratch->Floats(int64_t{kBlockTokens} * depth);
  float* bounds = scratch->Floats(int64_t{2} * depth);
  float* cos = scratch->Floats(int64_t{kBlockTokens} * rope.pairs);
  float* sin = scratch->Floats(int64_t{kBlockTokens} * rope.pairs);
  if (kind == SummaryKind::kRotated) {
    LoadAngles(rope, page.token, kBlockTokens, cos, sin);
  }
  for (int32_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    const RowSource source = KeyRows(kv, page, kv_head);
    if (kind == SummaryKind::kRotated) {
      LoadRotatedRows(
          source, kBlockTokens, depth,
          {.angles = {.cos = cos, .sin = sin}, .pairs = rope.pairs, .pairing = rope.pairing},
          kv.dtype, keys);
    } else {
      LoadRows(source, kBlockTokens, depth, keys);
    }
    MinMaxRows(keys, kBlockTokens, depth, bounds, bounds + depth);
    // Keys are elements of kv_dtype, so their bounds are too: nothing is rounded here.
    StoreRows(bounds, int64_t{2} * depth, kv.dtype,
              kv.Summary(kind, page.token) + int64_t{2} * kv_head * kv.head_bytes);
  }
}

}  // namespace

absl::Status CpuBackend::Append(const AppendArgs& args) {
  // Everything is looked at before anything is written.
  std::vector<absl::Status> checks(args.items.size());
  team_.ParallelFor(std::ssize(args.items), [&](int64_t index, int32_t /*thread*/) {
    checks[static_cast<size_t>(index)] = CheckInputs(args, args.items[static_cast<size_t>(index)]);
  });
  for (const absl::Status& check : checks) {
    RETURN_IF_ERROR(check);
  }
  const std::vector<PagePart> parts = SplitAtPages(args.items);
  team_.ParallelFor(static_cast<int64_t>(parts.size()), [&](int64_t index, int32_t thread) {
    const PagePart& part = parts[static_cast<size_t>(index)];
    const AppendItem& item = *part.item;
    Scratch& scratch = scratch_[static_cast<size_t>(thread)];
    scratch.Reset();
    WriteRows(args.k, part, item.kv, item.kv.Keys(part.token), &scratch);
    WriteRows(args.v, part, item.kv, item.kv.Values(part.token), &scratch);
    if (part.end % kBlockTokens != 0) {
      return;  // the chunk is not full yet
    }
    if (item.summaries.unrotated) {
      WriteSummary(SummaryKind::kUnrotated, args.shape, part, &scratch);
    }
    if (part.end <= item.summaries.rotated_below) {
      WriteSummary(SummaryKind::kRotated, args.shape, part, &scratch);
    }
  });
  return absl::OkStatus();
}

}  // namespace longshore::cpu
