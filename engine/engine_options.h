#pragma once

#include <cstdint>

#include "engine/core/block.h"

namespace longshore {

/// Limits that an engine is made with.
struct EngineOptions {
  /// Tokens of a layer, and rows of a call, fit int32 with a block to spare: so do ends of blocks.
  static constexpr int64_t kMaxTokens = (int64_t{1} << 31) - kBlockTokens;

  int64_t pool_bytes = int64_t{4} << 30;  ///< host memory for pages; at most PagePool::kMaxBytes
  int32_t max_sessions = 256;
  int64_t max_tokens_per_session = int64_t{16} << 20;  ///< at most kMaxTokens
  int32_t max_items_per_call = 256;
  int64_t max_rows_per_prefill = 32768;  ///< sum over a call's items; also for AppendKV; at most
                                         ///< kMaxTokens
  int32_t max_rows_per_decode_item = 64;
  /// What all open sessions may hold outside the pool: rotary tables, page ids, masks.
  int64_t max_table_bytes = int64_t{1} << 30;
  /// Scores that one pruning stage of a query block may need: [num_heads, scored rows, candidates]
  /// f32. Refused when the session is opened, not when it has grown.
  int64_t max_score_bytes = int64_t{1} << 30;
  /// Of so many query blocks that leave tokens out, one is kept to be measured; see
  /// AdvanceRecall(). 0: none.
  int32_t recall_sample_every = 0;
  /// What measuring a block of many rows may cost before some rows are left out, in products of an
  /// element of a query and one of a key: about a tenth of a second on two cores.
  int64_t recall_max_block_products = int64_t{1} << 29;
  /// Ids count up from here. A service picks a random one, so that ids of an earlier process are
  /// not found instead of naming somebody else's session.
  uint64_t first_session_id = 1;
};

}  // namespace longshore
