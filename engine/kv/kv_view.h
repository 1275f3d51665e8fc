#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/core/block.h"
#include "engine/core/dtype.h"
#include "engine/core/hd.h"

namespace longshore {

/// Keys that a summary was taken of: as stored, or turned to their true positions.
enum class SummaryKind : uint8_t { kUnrotated, kRotated };
inline constexpr int32_t kNumSummaryKinds = 2;

/// Answers "where is the key of token t?" for one layer of one session. Trivially copyable.
///
/// A page holds 64 tokens of one layer, K then V, each [64 tokens][num_kv_heads][head_dim] of
/// dtype. Page ids count granules of 4 KiB from the arena's base, so nothing here is an address of
/// another process. The summary of a page is [num_kv_heads][2][head_dim] of dtype, elementwise
/// maximum then minimum, and lies at 1/64 of the page's offset in an arena of its own.
struct KvView {
  static constexpr int32_t kGranuleBytes = 4096;

  std::byte* pages = nullptr;                   ///< arena base
  std::byte* summaries[kNumSummaryKinds] = {};  ///< arena bases, by SummaryKind
  const int32_t* page_ids = nullptr;            ///< [blocks of 64 tokens], in device memory
  int64_t value_offset = 0;  ///< bytes from a page's first key to its first value
  int32_t token_bytes = 0;   ///< num_kv_heads * head_dim * sizeof(dtype)
  int32_t head_bytes = 0;    ///< head_dim * sizeof(dtype)
  DType dtype = DType::kF32;

  HD std::byte* Page(int64_t token) const {
    return pages + static_cast<int64_t>(page_ids[token >> 6]) * kGranuleBytes;
  }
  /// [num_kv_heads, head_dim]; tokens of the same page follow at token_bytes.
  HD std::byte* Keys(int64_t token) const { return Page(token) + (token & 63) * token_bytes; }
  HD std::byte* Values(int64_t token) const { return Keys(token) + value_offset; }
  /// [num_kv_heads, 2, head_dim] of the 64-token chunk that `token` is in: maximum, minimum.
  HD std::byte* Summary(SummaryKind kind, int64_t token) const {
    return summaries[static_cast<int32_t>(kind)] +
           static_cast<int64_t>(page_ids[token >> 6]) * (kGranuleBytes / 64);
  }
};

}  // namespace longshore
