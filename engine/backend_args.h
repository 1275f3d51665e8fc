#pragma once

#include <cstdint>
#include <span>

#include "engine/algo/regions.h"
#include "engine/algo/rope.h"
#include "engine/core/rope_pairing.h"
#include "engine/core/tensor_ref.h"
#include "engine/kv/kv_view.h"
#include "engine/magnitude.h"
#include "engine/policy.h"

// What verbs are told. A TensorRef says itself where its elements are. Every other pointer here, in
// RopeRows and KvView too, is to memory of MemorySpace::kDevice (MemorySpace::kHostMapped where
// pages are): the host does not read it. Spans are the caller's arrays, in the host's memory, and
// last as long as the call of the verb.

namespace longshore {

/// A rotary table as kernels see it; see RopeTable. pairs 0: no rotary embedding.
struct RopeRows {
  const float* fine_cos = nullptr;    ///< [64, pairs]
  const float* fine_sin = nullptr;    ///< [64, pairs]
  const float* coarse_cos = nullptr;  ///< [ceil(max_ids / 64), pairs]
  const float* coarse_sin = nullptr;  ///< [ceil(max_ids / 64), pairs]
  int32_t pairs = 0;
  RopePairing pairing = RopePairing::kHalf;
  float attention_scaling = 1.0F;
  int64_t trained_tokens = 0;
};

/// Sizes and score rules that all items of a call share.
struct AttentionShape {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  DType kv_dtype = DType::kF32;
  float softmax_scale = 1.0F;
  float logit_soft_cap = 0.0F;  ///< 0: none

  HD int32_t GroupSize() const { return num_heads / num_kv_heads; }
};

/// Which key summaries the rows of a layer need, now or later.
struct SummaryPlan {
  bool unrotated = false;     ///< of keys as they are stored
  int64_t rotated_below = 0;  ///< of rotated keys, for chunks that end at or below this position
};

/// New rows of one session, or rows that are there already and come again.
struct AppendItem {
  KvView kv;
  int64_t position = 0;   ///< of the first row
  int32_t first_row = 0;  ///< in the packed tensors
  int32_t rows = 0;
  bool replay = false;  ///< its k and v are in their pages; of the call's tensors q alone counts
  RopeRows rope;
  SummaryPlan summaries;  ///< of the chunks that fill
};

/// Writes keys and values to their pages, converted to kv_dtype, and the summaries of chunks that
/// fill; but first looks for elements whose magnitude is not within the limits.
struct AppendArgs {
  AttentionShape shape;
  InputLimits limits;
  std::span<const AppendItem> items;
  TensorRef q;  ///< [rows, num_heads, head_dim], only looked at; data may be null
  TensorRef k;  ///< [rows, num_kv_heads, head_dim]
  TensorRef v;  ///< [rows, num_kv_heads, head_dim]
};

/// One query block: rows of one session that share a selection.
struct QueryBlock {
  KvView kv;
  RopeRows rope;
  int64_t first_position = 0;
  int32_t first_row = 0;  ///< in the packed tensors
  int32_t rows = 0;
  Regions regions;
};

/// One stage of one query block.
struct PruneBlock {
  QueryBlock block;
  RopeRule rule;
  const int32_t* parents = nullptr;  ///< [num_parents] first tokens of the previous stage's kept
                                     ///< chunks, ascending; null: the chunks of the middle region
  int32_t num_parents = 0;
  int32_t parent_chunk_tokens = 0;
  int32_t* selected = nullptr;  ///< [num_selected] out: first tokens of the kept chunks, ascending
  int32_t num_selected = 0;     ///< min(keep, candidates), known ahead

  /// Chunks to choose from, for a stage of chunks of `chunk_tokens`.
  HD int32_t NumCandidates(int32_t chunk_tokens) const {
    return parents == nullptr ? static_cast<int32_t>(block.regions.MiddleTokens() / chunk_tokens)
                              : num_parents * (parent_chunk_tokens / chunk_tokens);
  }
  /// First token of candidate `index`, ascending in index.
  HD int32_t Candidate(int32_t index, int32_t chunk_tokens) const {
    if (parents == nullptr) {
      return static_cast<int32_t>(block.regions.sink_end) + index * chunk_tokens;
    }
    const int32_t children = parent_chunk_tokens / chunk_tokens;
    return parents[index / children] + (index % children) * chunk_tokens;
  }
};

/// Scores the candidates of one stage and keeps the best (design section 4).
///
/// Per block: s[r, h, c] for every scored row r, head h and candidate c by `stage.selector`, scaled
/// and soft-capped; a rank for each candidate by `ranking`; the num_selected best in ascending
/// order. Equal ranks keep the lower token.
struct PruneArgs {
  AttentionShape shape;
  PruningStage stage;
  Ranking ranking = Ranking::kProbability;
  float probability_power = 1.0F;
  int32_t query_stride = 1;
  std::span<const PruneBlock> blocks;
  TensorRef q;  ///< [rows, num_heads, head_dim]
};

/// The attention of one query block over sink, selected chunks and window. Of a dense block all
/// tokens are its window.
struct AttendBlock {
  QueryBlock block;
  RopeRule rule;  ///< where its key ids depend on the query, the block is one row
  /// A row at p attends to tokens above p - this alone, of which none is before the window region;
  /// 0: no such bound.
  int64_t sliding_window_tokens = 0;
  const int32_t* selected = nullptr;  ///< [num_selected] first tokens, ascending
  int32_t num_selected = 0;
  int32_t selected_chunk_tokens = 0;
};

/// out[r, h] = sum_t exp(s_t) v_t / sum_t exp(s_t), s_t = cap(scale * q.k_t), t over the row's
/// tokens. A mean of values, so where rounding carries it past the largest number of out's dtype,
/// that number is meant.
struct AttendArgs {
  AttentionShape shape;
  std::span<const AttendBlock> blocks;
  TensorRef q;            ///< [rows, num_heads, head_dim]
  TensorRef out;          ///< [rows, num_heads, head_dim]
  TensorRef log_sum_exp;  ///< [rows, num_heads] natural log of the denominator; data may be null
  const float* sink_logits = nullptr;  ///< [num_heads] extra logit of the denominator; null: none
};

/// Moves what the last steps missed into the key banks. Nothing to do where there are no banks.
struct AdmitArgs {};

}  // namespace longshore
