#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend_args.h"
#include "engine/core/hd.h"
#include "engine/core/math.h"

// Who does what in a launch, as pure functions of a call's arguments: tested without a GPU. What a
// block's results are made of depends on the block alone, never on its neighbours in the call.
namespace longshore::cuda {

/// Keys that are scored or attended to together.
inline constexpr int32_t kTileKeys = 64;

/// Shared memory that the kernels for prefill want for a thread block.
inline constexpr int64_t kPrefillSharedBytes = int64_t{160} << 10;

/// What of a device decides between kernels.
struct DeviceTraits {
  int32_t shared_bytes = 0;  ///< that a thread block may have

  bool PrefillKernels() const { return shared_bytes >= kPrefillSharedBytes; }
};

/// One stage of one query block in workspace.
struct StageLayout {
  int32_t first_row = 0;  ///< of the block, the first that is scored
  int32_t scored = 0;     ///< rows that are; 0: all candidates are kept
  int32_t candidates = 0;
  int64_t score_stride = 0;  ///< floats between the scores of two rows
  int64_t queries = 0;       ///< offset in floats of [kv_heads, scored, group, depth]
  int64_t scores = 0;        ///< offset in floats of [kv_heads, scored, group, score_stride]
  int32_t shares = 0;        ///< thread blocks that a decode step's candidates are divided among
  int32_t partials = 0;      ///< sums that each row's log-sum-exp is made of
  int64_t partial_max = 0;   ///< offset in floats of [kv_heads, scored, group, partials]
  int64_t partial_sum = 0;   ///< the same
  int64_t rank = 0;          ///< offset in floats of [candidates]
  int64_t end = 0;           ///< behind all of these
};

/// Whether blocks of a call are scored by the kernels for decode, which want 16-bit keys of a size
/// that they know, keys that all queries meet at the same ids, and few rows.
bool IsDecodeStage(const PruneArgs& args, const PruneBlock& block);

/// Whether blocks of a call are scored by the kernels for prefill, on the same terms but for more
/// rows and also by `probes`.
bool IsPrefillStage(const DeviceTraits& device, const PruneArgs& args, const PruneBlock& block);
/// Whether blocks of a call are of one scored row whose way down a chunk has its own kernel: 16-bit
/// keys whose ids do not change on the way but by side.
bool IsDecodeDescent(const PruneArgs& args, const PruneBlock& block);

/// Whether blocks of a call go down their chunks on tensor cores:
/// 16-bit keys that all queries meet at the same ids, and from 4 to 64 scored rows.
bool IsPrefillDescent(const PruneArgs& args, const PruneBlock& block);
/// Whether these two keep the scores for LaunchRank(). Many candidates by `bounds` that are ranked
/// by a maximum are rather scored twice, once for the log-sum-exps: that is faster than memory.
bool KeepsScores(const PruningStage& stage, Ranking ranking);

/// How the warps of a thread block share a decode step's candidates: each scores them for one of up
/// to kScoreHeads KV heads at a time, and so many teams of such warps take turns. A power of two.
inline constexpr int32_t kScoreWarps = 16;
inline constexpr int32_t kScoreHeads = 8;
HD inline int32_t ScoreTeamsOf(const AttentionShape& shape) {
  int32_t teams = 1;
  while (2 * teams * Min(kScoreHeads, shape.num_kv_heads) <= kScoreWarps) {
    teams *= 2;
  }
  return teams;
}

/// Lays out a block behind `begin` floats.
StageLayout LayOutStage(const DeviceTraits& device,
                        const PruneArgs& args,
                        const PruneBlock& block,
                        int64_t begin);

/// Keys that a candidate is scored by, of a page (`exact`, `probes`) or its summary (`bounds`).
int32_t KeysOfCandidate(const PruningStage& stage);
/// Keys or summaries of a block that a thread block of the prefill kernels takes, with a
/// PrefillTile.
inline constexpr int32_t kSpanRows = 2048;

/// Queries of one KV head that such a thread block takes: so many times 16 columns, a column a
/// scored row's head, from slot `first_slot` of block `first_block` of the launch on. A block has
/// ceil(columns / 16) slots. Blocks of one tile are of one session, with candidates that begin at
/// one place.
struct PrefillTile {
  int32_t first_block = 0;
  int32_t first_slot = 0;
  int32_t slots = 0;
  int32_t candidates = 0;  ///< the most of its blocks
};
std::vector<PrefillTile> PrefillTiles(const PruneArgs& args,
                                      std::span<const PruneBlock> blocks,
                                      std::span<const StageLayout> layouts);

/// Floats of a scored query: two of each dimension for `bounds`.
int32_t StageDepth(const PruneArgs& args);

/// The attention of one query block: its keys are cut into splits, whose partial results are
/// merged in order.
struct AttendLayout {
  int64_t keys = 0;
  int32_t rows = 0;           ///< of a KV head: block rows * group, row r is [r / group, r % group]
  int32_t splits = 0;         ///< none of them empty
  int32_t keys_of_split = 0;  ///< a multiple of kTileKeys, kDecode: of 16
  int64_t queries = 0;        ///< offset in floats of [kv_heads, rows, head_dim]
  int64_t max = 0;            ///< offset in floats of [splits, kv_heads, rows]
  int64_t sum = 0;            ///< the same
  int64_t acc = 0;            ///< offset in floats of [splits, kv_heads, rows, head_dim]
  int64_t end = 0;
};

AttendLayout LayOutAttend(const DeviceTraits& device,
                          const AttentionShape& shape,
                          const AttendBlock& block,
                          int64_t begin);

/// Which kernel attends.
enum class AttendKind : uint8_t { kDecode, kPrefill, kFewRows, kManyRows };
inline constexpr size_t kNumAttendKinds = 4;
AttendKind KindOf(const DeviceTraits& device,
                  const AttentionShape& shape,
                  const AttendBlock& block);

/// The token of the key of rank `rank`: sink, selected chunks and window in order. Tokens fit int32
/// (EngineOptions::kMaxTokens).
HD inline int32_t TokenOfRank(const AttendBlock& block, int32_t sink_tokens, int32_t rank) {
  if (rank < sink_tokens) {
    return rank;
  }
  const auto of_middle = static_cast<uint32_t>(rank - sink_tokens);
  const auto chunk = static_cast<uint32_t>(block.selected_chunk_tokens);
  if (of_middle < static_cast<uint32_t>(block.num_selected) * chunk) {
    return block.selected[of_middle / chunk] + static_cast<int32_t>(of_middle % chunk);
  }
  return static_cast<int32_t>(block.block.regions.middle_end) +
         static_cast<int32_t>(of_middle - static_cast<uint32_t>(block.num_selected) * chunk);
}

/// Sink tokens that the block sees.
HD inline int32_t SinkTokens(const AttendBlock& block) {
  return static_cast<int32_t>(
      Min(block.block.regions.sink_end, block.block.first_position + block.block.rows));
}

}  // namespace longshore::cuda
