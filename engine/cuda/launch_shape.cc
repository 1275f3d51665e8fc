#include "engine/cuda/launch_shape.h"

#include "engine/algo/regions.h"
#include "engine/algo/rope.h"

namespace longshore::cuda {
namespace {

// Fewer keys are not worth a thread block of their own, more splits not worth merging.
constexpr int64_t kFewestKeysOfSplit = 256;
constexpr int64_t kMostSplits = 64;
// A block of many rows is many thread blocks already.
constexpr int64_t kFewestKeysOfLargeSplit = 16384;

// Thread blocks of a decode step on one large GPU, all at once. Constants, so that results do not
// depend on which one it is.
constexpr int64_t kDecodeBlocks = 256;
constexpr int64_t kScoreShares = 128;

// Whether rotary tables turn all dimensions or none.
bool TurnsWhole(const AttentionShape& shape, const RopeRows& rope) {
  return rope.pairs == 0 || 2 * rope.pairs == shape.head_dim;
}

// Whether the kernels on tensor cores know these keys.
bool SuitsTensorCores(const AttentionShape& shape, const RopeRows& rope) {
  const bool element = shape.kv_dtype == DType::kBf16 || shape.kv_dtype == DType::kF16;
  return element && (shape.head_dim == 64 || shape.head_dim == 128) && TurnsWhole(shape, rope);
}

// Float offsets of parts that follow each other, each on a line of its own.
class Offsets {
 public:
  explicit Offsets(int64_t begin) : next_(begin) {}
  int64_t Take(int64_t floats) {
    const int64_t at = next_;
    next_ = RoundUp(next_ + floats, 64);
    return at;
  }
  int64_t next() const { return next_; }

 private:
  int64_t next_;
};

}  // namespace

bool IsDecodeStage(const PruneArgs& args, const PruneBlock& block) {
  const bool selector =
      args.stage.selector == Selector::kBounds || args.stage.selector == Selector::kExact;
  const int32_t rows = ScoredRows(block.block.rows, args.query_stride) * args.shape.GroupSize();
  return selector && rows <= 8 && SuitsTensorCores(args.shape, block.block.rope) &&
         !KeyIdsDependOnQuery(block.rule.style);
}

bool IsPrefillStage(const DeviceTraits& device, const PruneArgs& args, const PruneBlock& block) {
  return device.PrefillKernels() && args.stage.selector != Selector::kDescent &&
         SuitsTensorCores(args.shape, block.block.rope) && !KeyIdsDependOnQuery(block.rule.style) &&
         !IsDecodeStage(args, block);
}

bool IsDecodeDescent(const PruneArgs& args, const PruneBlock& block) {
  const RopeStyle style = block.rule.style;
  const bool ids = block.block.rope.pairs == 0 || style == RopeStyle::kRelative ||
                   style == RopeStyle::kChunkIndexed || style == RopeStyle::kInfLlm;
  return args.stage.selector == Selector::kDescent &&
         args.stage.descent_score == DescentScore::kFinal && ids &&
         ScoredRows(block.block.rows, args.query_stride) == 1 &&
         SuitsTensorCores(args.shape, block.block.rope);
}

bool IsPrefillDescent(const PruneArgs& args, const PruneBlock& block) {
  constexpr int32_t kFewestRows = 4;
  constexpr int32_t kMostRows = 64;
  const int32_t rows = ScoredRows(block.block.rows, args.query_stride);
  return args.stage.selector == Selector::kDescent &&
         args.stage.descent_score == DescentScore::kFinal && rows >= kFewestRows &&
         rows <= kMostRows && SuitsTensorCores(args.shape, block.block.rope) &&
         !KeyIdsDependOnQuery(block.rule.style);
}

bool KeepsScores(const PruningStage& stage, Ranking ranking) {
  if (stage.selector == Selector::kDescent) {
    return ranking != Ranking::kScoreMax;
  }
  return stage.selector != Selector::kBounds ||
         (ranking != Ranking::kProbability && ranking != Ranking::kScoreMax);
}

int32_t KeysOfCandidate(const PruningStage& stage) {
  switch (stage.selector) {
    case Selector::kExact: return stage.chunk_tokens;
    case Selector::kProbes: return stage.probes;
    default: return 1;
  }
}

int32_t StageDepth(const PruneArgs& args) {
  return args.stage.selector == Selector::kBounds ? 2 * args.shape.head_dim : args.shape.head_dim;
}

StageLayout LayOutStage(const DeviceTraits& device,
                        const PruneArgs& args,
                        const PruneBlock& block,
                        int64_t begin) {
  StageLayout layout;
  layout.candidates = block.NumCandidates(args.stage.chunk_tokens);
  Offsets offsets(begin);
  if (block.num_selected < layout.candidates) {
    layout.first_row = FirstScoredRow(block.block.rows, args.query_stride);
    layout.scored = ScoredRows(block.block.rows, args.query_stride);
    layout.score_stride = RoundUp(layout.candidates, 64);
    const int64_t rows = int64_t{layout.scored} * args.shape.num_heads;
    layout.partials = 1;
    const bool prefills = IsPrefillStage(device, args, block);
    const bool descends = IsPrefillDescent(args, block);
    const bool wants_queries = !prefills && !descends && !IsDecodeDescent(args, block);
    if (prefills) {
      layout.partials = static_cast<int32_t>(
          CeilDiv(int64_t{layout.candidates} * KeysOfCandidate(args.stage), kSpanRows));
    } else if (wants_queries) {
      layout.queries = offsets.Take(rows * StageDepth(args));
    }
    if (!(prefills || descends) || KeepsScores(args.stage, args.ranking)) {
      layout.scores = offsets.Take(rows * layout.score_stride);
    }
    if (IsDecodeStage(args, block)) {
      // A warp takes a tile of 16 keys or summaries, or as many as a candidate has.
      const int64_t units = CeilDiv(int64_t{layout.candidates} * KeysOfCandidate(args.stage),
                                    Max(16, KeysOfCandidate(args.stage)));
      const int64_t teams = ScoreTeamsOf(args.shape);
      layout.shares = static_cast<int32_t>(Min(kScoreShares, CeilDiv(units, teams)));
      layout.partials = static_cast<int32_t>(layout.shares * teams);
    }
    layout.partial_max = offsets.Take(rows * layout.partials);
    layout.partial_sum = offsets.Take(rows * layout.partials);
    layout.rank = offsets.Take(layout.candidates);
  }
  layout.end = offsets.next();
  return layout;
}

std::vector<PrefillTile> PrefillTiles(const PruneArgs& args,
                                      std::span<const PruneBlock> blocks,
                                      std::span<const StageLayout> layouts) {
  // Keys of chosen chunks are of one block alone, summaries of a whole region are shared.
  const int32_t most = args.stage.selector == Selector::kBounds ? 8 : 4;
  std::vector<PrefillTile> tiles;
  const auto joins = [&](const PrefillTile& tile, const PruneBlock& block) {
    const PruneBlock& first = blocks[static_cast<size_t>(tile.first_block)];
    return tile.slots < most && args.stage.selector == Selector::kBounds &&
           first.parents == nullptr && block.parents == nullptr &&
           first.block.kv.page_ids == block.block.kv.page_ids &&
           first.block.regions.sink_end == block.block.regions.sink_end &&
           first.rule.style == block.rule.style;
  };
  for (size_t index = 0; index < blocks.size(); ++index) {
    const StageLayout& layout = layouts[index];
    const auto slots =
        static_cast<int32_t>(CeilDiv(int64_t{layout.scored} * args.shape.GroupSize(), 16));
    for (int32_t slot = 0; slot < slots;) {
      if (tiles.empty() || !joins(tiles.back(), blocks[index])) {
        tiles.push_back({.first_block = static_cast<int32_t>(index), .first_slot = slot});
      }
      PrefillTile& tile = tiles.back();
      const auto taken = static_cast<int32_t>(Min(most - tile.slots, slots - slot));
      tile.slots += taken;
      tile.candidates = static_cast<int32_t>(Max(tile.candidates, layout.candidates));
      slot += taken;
    }
  }
  return tiles;
}

AttendKind KindOf(const DeviceTraits& device,
                  const AttentionShape& shape,
                  const AttendBlock& block) {
  const int32_t rows = block.block.rows * shape.GroupSize();
  const bool element = shape.kv_dtype == DType::kBf16 || shape.kv_dtype == DType::kF16;
  const bool depth = shape.head_dim % 64 == 0 && rows <= (shape.head_dim <= 128 ? 16 : 8);
  if (element && depth && TurnsWhole(shape, block.block.rope)) {
    return AttendKind::kDecode;
  }
  if (device.PrefillKernels() && rows > 16 && SuitsTensorCores(shape, block.block.rope)) {
    return AttendKind::kPrefill;
  }
  return rows <= 16 ? AttendKind::kFewRows : AttendKind::kManyRows;
}

AttendLayout LayOutAttend(const DeviceTraits& device,
                          const AttentionShape& shape,
                          const AttendBlock& block,
                          int64_t begin) {
  AttendLayout layout;
  const int64_t end = block.block.first_position + block.block.rows;
  layout.keys = SinkTokens(block) + int64_t{block.num_selected} * block.selected_chunk_tokens +
                Max(0, end - block.block.regions.middle_end);
  layout.rows = block.block.rows * shape.GroupSize();
  int64_t fewest = kFewestKeysOfLargeSplit;
  int64_t most = kMostSplits;
  int64_t multiple = kTileKeys;
  switch (KindOf(device, shape, block)) {
    case AttendKind::kDecode:
      fewest = kTileKeys;
      most = Max(1, kDecodeBlocks / shape.num_kv_heads);
      multiple = 16;
      break;
    case AttendKind::kFewRows: fewest = kFewestKeysOfSplit; break;
    case AttendKind::kPrefill:
    case AttendKind::kManyRows: break;
  }
  const int64_t keys_of_split = RoundUp(Max(fewest, CeilDiv(layout.keys, most)), multiple);
  layout.keys_of_split = static_cast<int32_t>(keys_of_split);
  layout.splits = static_cast<int32_t>(CeilDiv(Max(layout.keys, 1), keys_of_split));
  const int64_t rows = int64_t{layout.rows} * shape.num_kv_heads;
  Offsets offsets(begin);
  if (KindOf(device, shape, block) != AttendKind::kPrefill) {
    layout.queries = offsets.Take(rows * shape.head_dim);
  }
  layout.max = offsets.Take(rows * layout.splits);
  layout.sum = offsets.Take(rows * layout.splits);
  layout.acc = offsets.Take(rows * layout.splits * shape.head_dim);
  layout.end = offsets.next();
  return layout;
}

}  // namespace longshore::cuda
