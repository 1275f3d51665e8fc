#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "engine/backend_args.h"
#include "engine/cuda/call_queue.h"
#include "engine/cuda/launch_shape.h"

// What the host enqueues: kernels of decode on a call's queue, which may replay them, others on its
// stream. Every pointer is to device memory; errors show in cudaGetLastError().
namespace longshore::cuda {

/// Bytes that wait in host memory for a kernel to bring them to the device.
struct Waiting {
  const std::byte* from = nullptr;  ///< in memory that the device reads
  std::byte* to = nullptr;          ///< on the device
  int64_t bytes = 0;                ///< a multiple of 16; 0: nothing waits
};

/// New tokens [token, token + rows) of one page.
struct PagePart {
  int32_t item = 0;
  int32_t rows = 0;
  int64_t token = 0;
};

/// Descriptions that travel with a launch of the kernels for decode: that spares the copies before
/// it. More lie in memory.
inline constexpr int32_t kFewBlocks = 8;

struct AppendLaunch {
  AttentionShape shape;
  const AppendItem* items = nullptr;  ///< [items]; null: few_items
  const PagePart* parts = nullptr;    ///< [num_parts]; null: few_parts
  AppendItem few_items[kFewBlocks] = {};
  PagePart few_parts[kFewBlocks] = {};
  int32_t num_parts = 0;
  TensorRef k;      ///< [rows, num_kv_heads, head_dim]; read once, so it may be in host memory
  TensorRef v;      ///< the same
  Waiting queries;  ///< [rows, num_heads, head_dim], for the launches that follow

  HD const PagePart& Part(uint32_t index) const {
    return parts != nullptr ? parts[index] : few_parts[index];
  }
  HD const AppendItem& Item(int32_t index) const {
    return items != nullptr ? items[index] : few_items[index];
  }
};
/// Keys and values to their pages, converted to kv_dtype; then the summaries of pages that fill.
/// And the call's queries to the device.
void LaunchAppend(const AppendLaunch& launch, CallQueue* queue);

struct PruneLaunch {
  AttentionShape shape;
  PruningStage stage;
  Ranking ranking = Ranking::kProbability;
  float probability_power = 1.0F;
  int32_t query_stride = 1;
  TensorRef q;                           ///< [rows, num_heads, head_dim]
  const PruneBlock* blocks = nullptr;    ///< [num_blocks]; null: few_blocks
  const StageLayout* layouts = nullptr;  ///< [num_blocks]; null: few_layouts
  PruneBlock few_blocks[kFewBlocks] = {};
  StageLayout few_layouts[kFewBlocks] = {};
  float* workspace = nullptr;  ///< what the layouts' offsets count from
  int32_t num_blocks = 0;
  int32_t most_scored = 0;      ///< over the blocks
  int32_t most_candidates = 0;  ///< over the blocks
  int32_t most_shares = 0;      ///< over the blocks; 0: they are not scored by LaunchDecodeScore
  bool turns = false;           ///< keys are not used as they are stored
  int32_t shared_bytes = 0;     ///< that a thread block may have
  const PrefillTile* tiles = nullptr;  ///< [num_tiles], of LaunchPrefillScore
  int32_t num_tiles = 0;

  HD const PruneBlock& Block(uint32_t index) const {
    return blocks != nullptr ? blocks[index] : few_blocks[index];
  }
  HD const StageLayout& Layout(uint32_t index) const {
    return layouts != nullptr ? layouts[index] : few_layouts[index];
  }
};
/// Queries of the scored rows, turned, rounded to kv_dtype, times what unrotated keys lack; for
/// `bounds` their positive parts, then their negative parts.
void LaunchStageQueries(const PruneLaunch& launch, cudaStream_t stream);
/// Scaled and capped scores by `bounds`, `exact` or `probes`: candidates as rows of keys.
void LaunchScoreKeys(const PruneLaunch& launch, cudaStream_t stream);
/// The same by `descent`.
void LaunchScoreDescent(const PruneLaunch& launch, cudaStream_t stream);
/// Scores by `bounds` or `exact`, and the log-sum-exp's partial sums, of blocks for which
/// IsDecodeStage().
void LaunchDecodeScore(const PruneLaunch& launch, CallQueue* queue);
/// Ranks, or scores with the log-sum-exps' partial sums (KeepsScores()), of blocks for which
/// IsPrefillStage().
void LaunchPrefillScore(const PruneLaunch& launch, cudaStream_t stream);
/// Scores of blocks for which IsDecodeDescent().
void LaunchDecodeDescent(const PruneLaunch& launch, CallQueue* queue);
/// Ranks by `score_max`, or else scores, of blocks for which IsPrefillDescent().
void LaunchPrefillDescent(const PruneLaunch& launch, cudaStream_t stream);
/// Ranks that are to become maxima: -infinity.
void LaunchClearRanks(const PruneLaunch& launch, cudaStream_t stream);
/// The log-sum-exp of each row of scores, as one partial sum.
void LaunchLogSumExps(const PruneLaunch& launch, cudaStream_t stream);
/// One rank for each candidate, over all heads and rows.
void LaunchRank(const PruneLaunch& launch, CallQueue* queue);
/// The num_selected best of each block, in ascending order.
void LaunchSelect(const PruneLaunch& launch, CallQueue* queue);
/// LaunchRank() and LaunchSelect(), at once where candidates are few.
void LaunchRankAndSelect(const PruneLaunch& launch, CallQueue* queue);

struct AttendLaunch {
  AttentionShape shape;
  TensorRef q;                            ///< [rows, num_heads, head_dim]
  TensorRef out;                          ///< [rows, num_heads, head_dim]
  float* log_sum_exp = nullptr;           ///< [rows, num_heads] or null
  const float* sink_logits = nullptr;     ///< [num_heads] or null
  const AttendBlock* blocks = nullptr;    ///< [num_blocks]; null: few_blocks
  const AttendLayout* layouts = nullptr;  ///< [num_blocks]; null: few_layouts
  AttendBlock few_blocks[kFewBlocks] = {};
  AttendLayout few_layouts[kFewBlocks] = {};
  float* workspace = nullptr;  ///< what the layouts' offsets count from
  int32_t num_blocks = 0;
  int32_t most_rows = 0;                  ///< of a KV head, over the blocks
  int32_t most_splits = 0;                ///< over the blocks
  AttendKind kind = AttendKind::kDecode;  ///< of all blocks
  bool turns = false;                     ///< keys have rotary pairs
  int32_t* counters = nullptr;  ///< [num_blocks, num_kv_heads], 0 before and after a launch

  HD const AttendBlock& Block(uint32_t index) const {
    return blocks != nullptr ? blocks[index] : few_blocks[index];
  }
  HD const AttendLayout& Layout(uint32_t index) const {
    return layouts != nullptr ? layouts[index] : few_layouts[index];
  }
};
/// Queries turned and rounded.
void LaunchAttendQueries(const AttendLaunch& launch, cudaStream_t stream);
/// The attention of each split.
void LaunchAttendSplits(const AttendLaunch& launch, cudaStream_t stream);
/// The same, of blocks that are AttendKind::kPrefill, from the call's queries.
void LaunchPrefillAttend(const AttendLaunch& launch, cudaStream_t stream);
/// Splits merged in order, normalised, written.
void LaunchMergeSplits(const AttendLaunch& launch, cudaStream_t stream);

/// All of that at once, for blocks that are AttendKind::kDecode.
void LaunchDecodeAttend(const AttendLaunch& launch, CallQueue* queue);

}  // namespace longshore::cuda
