// Which kernels take a call's blocks and how they share the work: pure functions, no GPU.

#include "engine/cuda/launch_shape.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

namespace longshore::cuda {
namespace {

constexpr DeviceTraits kLarge{.shared_bytes = 227 << 10};
constexpr DeviceTraits kSmall{.shared_bytes = 99 << 10};

AttentionShape Shape(int32_t heads = 32, int32_t kv_heads = 8, int32_t head_dim = 128) {
  return {.num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim = head_dim,
          .kv_dtype = DType::kBf16,
          .softmax_scale = 0.1F};
}

RopeRows Rope(int32_t pairs) {
  RopeRows rope;
  rope.pairs = pairs;
  return rope;
}

PruneArgs Bounds(const AttentionShape& shape, int32_t query_stride = 4) {
  PruneArgs args;
  args.shape = shape;
  args.stage.selector = Selector::kBounds;
  args.stage.chunk_tokens = 64;
  args.stage.keep_tokens = 8192;
  args.query_stride = query_stride;
  return args;
}

PruneArgs Exact(const AttentionShape& shape, int32_t chunk_tokens) {
  PruneArgs args = Bounds(shape);
  args.stage.selector = Selector::kExact;
  args.stage.chunk_tokens = chunk_tokens;
  return args;
}

// A block at `position` that is to keep 128 chunks of 64.
PruneBlock Block(int64_t position, int32_t rows, int32_t pairs = 64) {
  PruneBlock block;
  block.block.rope = Rope(pairs);
  block.block.first_position = position;
  block.block.rows = rows;
  block.block.regions = SplitRegions(position, 256, 1024, 64);
  block.rule.style = RopeStyle::kTruePositions;
  block.num_selected = 128;
  return block;
}

AttendBlock Attended(int64_t position, int32_t rows, int32_t selected) {
  AttendBlock block;
  block.block = Block(position, rows).block;
  block.num_selected = selected;
  block.selected_chunk_tokens = 8;
  return block;
}

TEST(StageKernels, FollowFromRowsTypeSizeAndStyle) {
  const PruneArgs args = Bounds(Shape());
  const PruneBlock decode = Block(100000, 1);
  EXPECT_TRUE(IsDecodeStage(args, decode));
  EXPECT_FALSE(IsPrefillStage(kLarge, args, decode));
  const PruneBlock prefill = Block(100000, 64);
  EXPECT_FALSE(IsDecodeStage(args, prefill));
  EXPECT_TRUE(IsPrefillStage(kLarge, args, prefill));
  EXPECT_FALSE(IsPrefillStage(kSmall, args, prefill));
  // Eight columns a KV head are the most of a decode step: nine rows of which every fourth is
  // scored are three, times a group of four.
  EXPECT_TRUE(IsDecodeStage(args, Block(100000, 8)));
  EXPECT_FALSE(IsDecodeStage(args, Block(100000, 9)));
}

TEST(StageKernels, LeaveTheRestToThePlainOnes) {
  const auto plain = [](const PruneArgs& args, const PruneBlock& block) {
    return !IsDecodeStage(args, block) && !IsPrefillStage(kLarge, args, block);
  };
  PruneArgs args = Bounds(Shape());
  args.shape.kv_dtype = DType::kF32;
  EXPECT_TRUE(plain(args, Block(100000, 64)));
  EXPECT_TRUE(plain(Bounds(Shape(32, 8, 96)), Block(100000, 64, 48)));
  EXPECT_TRUE(plain(Bounds(Shape()), Block(100000, 64, 32)));  // half of each head turns
  PruneBlock squeezed = Block(100000, 64);
  squeezed.rule.style = RopeStyle::kSelfExtend;  // every query meets keys of its own
  EXPECT_TRUE(plain(Bounds(Shape()), squeezed));
}

TEST(StageKernels, DescendOnTensorCoresWithRowsEnoughForThem) {
  PruneArgs args = Bounds(Shape(), 1);
  args.stage.selector = Selector::kDescent;
  args.ranking = Ranking::kScoreMax;
  for (const int32_t rows : {4, 16, 64}) {
    const PruneBlock block = Block(100000, rows);
    EXPECT_TRUE(IsPrefillDescent(args, block)) << rows;
    EXPECT_FALSE(IsPrefillStage(kLarge, args, block)) << rows;
    EXPECT_FALSE(IsDecodeStage(args, block)) << rows;
    // Ranks come out of the kernel.
    const StageLayout layout = LayOutStage(kLarge, args, block, 0);
    EXPECT_LT(layout.end, int64_t{rows} * 32 * layout.candidates) << rows;
  }
  const PruneBlock step = Block(100000, 1);
  EXPECT_FALSE(IsPrefillDescent(args, step));
  EXPECT_FALSE(IsDecodeDescent(args, step));  // a key's id is its own at true positions
  PruneBlock relative = step;
  relative.rule.style = RopeStyle::kRelative;
  EXPECT_TRUE(IsDecodeDescent(args, relative));
  relative.block.rows = 2;
  EXPECT_FALSE(IsDecodeDescent(args, relative));
  EXPECT_FALSE(IsPrefillDescent(args, Block(100000, 128)));
  args.stage.descent_score = DescentScore::kRunningMaximum;
  EXPECT_FALSE(IsPrefillDescent(args, Block(100000, 64)));
  args.stage.descent_score = DescentScore::kFinal;
  args.ranking = Ranking::kProbability;
  const StageLayout layout = LayOutStage(kLarge, args, Block(100000, 64), 0);
  EXPECT_GE(layout.end, int64_t{64} * 32 * layout.candidates);
}

TEST(StageLayouts, DoNotOverlapAndFollowEachOther) {
  const PruneArgs args = Exact(Shape(), 8);
  int64_t end = 0;
  for (const int64_t position : {4000, 100000, 1000000}) {
    PruneBlock block = Block(position, 64);
    block.num_selected = 256;
    const StageLayout layout = LayOutStage(kLarge, args, block, end);
    EXPECT_EQ(layout.candidates, block.NumCandidates(8));
    EXPECT_EQ(layout.scored, 16);
    const int64_t rows = int64_t{16} * 32;
    EXPECT_GE(layout.scores, end);
    EXPECT_GE(layout.score_stride, layout.candidates);
    EXPECT_GE(layout.partial_max, layout.scores + rows * layout.score_stride);
    EXPECT_GE(layout.partial_sum, layout.partial_max + rows * layout.partials);
    EXPECT_GE(layout.rank, layout.partial_sum + rows * layout.partials);
    EXPECT_GE(layout.end, layout.rank + layout.candidates);
    EXPECT_EQ(layout.partials, (layout.candidates * 8 + kSpanRows - 1) / kSpanRows);
    end = layout.end;
  }
}

TEST(StageLayouts, NeedNoScoresWhereTheyAreComputedTwice) {
  PruneArgs args = Bounds(Shape());
  const PruneBlock block = Block(1000000, 64);
  EXPECT_FALSE(KeepsScores(args.stage, args.ranking));
  const int64_t twice = LayOutStage(kLarge, args, block, 0).end;
  args.ranking = Ranking::kProbabilitySum;
  EXPECT_TRUE(KeepsScores(args.stage, args.ranking));
  const int64_t kept = LayOutStage(kLarge, args, block, 0).end;
  EXPECT_GT(kept - twice, int64_t{16} * 32 * block.NumCandidates(64) - 1);
}

TEST(StageLayouts, KeepAllWhereNothingHasToGo) {
  PruneBlock block = Block(2000, 64);
  block.num_selected = block.NumCandidates(64);
  const StageLayout layout = LayOutStage(kLarge, Bounds(Shape()), block, 640);
  EXPECT_EQ(layout.scored, 0);
  EXPECT_EQ(layout.end, 640);
}

// Every column of every block must be in one tile, those of a tile in order.
void ExpectCover(const PruneArgs& args, const std::vector<PruneBlock>& blocks) {
  std::vector<StageLayout> layouts;
  layouts.reserve(blocks.size());
  for (const PruneBlock& block : blocks) {
    layouts.push_back(LayOutStage(kLarge, args, block, 0));
  }
  const std::vector<PrefillTile> tiles = PrefillTiles(args, blocks, layouts);
  std::set<std::pair<int32_t, int32_t>> seen;  // block, slot
  const auto slots_of = [&](int32_t block) {
    return (layouts[static_cast<size_t>(block)].scored * args.shape.GroupSize() + 15) / 16;
  };
  for (const PrefillTile& tile : tiles) {
    int32_t block = tile.first_block;
    int32_t slot = tile.first_slot;
    EXPECT_LE(tile.slots, args.stage.selector == Selector::kBounds ? 8 : 4);
    for (int32_t at = 0; at < tile.slots; ++at) {
      while (slot >= slots_of(block)) {
        slot -= slots_of(block);
        ++block;
      }
      EXPECT_TRUE(seen.emplace(block, slot).second);
      EXPECT_GE(tile.candidates, layouts[static_cast<size_t>(block)].candidates);
      ++slot;
    }
  }
  size_t slots = 0;
  for (int32_t block = 0; block < std::ssize(blocks); ++block) {
    slots += static_cast<size_t>(slots_of(block));
  }
  EXPECT_EQ(seen.size(), slots);
}

TEST(PrefillTiles, CoverEveryColumnOnce) {
  for (const int32_t group : {1, 3, 4, 16}) {
    for (const int32_t stride : {1, 4}) {
      const PruneArgs args = Bounds(Shape(8 * group), stride);
      std::vector<PruneBlock> blocks;
      for (int64_t position = 100000 - 32; position < 100700; position += 64) {
        blocks.push_back(Block(position, 64));
      }
      blocks.back().block.rows = 40;
      ExpectCover(args, blocks);
      PruneArgs exact = Exact(args.shape, 8);
      exact.query_stride = stride;
      ExpectCover(exact, blocks);
    }
  }
}

TEST(PrefillTiles, SkipBlocksThatKeepAll) {
  PruneBlock all = Block(2000, 64);
  all.num_selected = all.NumCandidates(64);
  ExpectCover(Bounds(Shape()), {all, Block(100000, 64), all, Block(100064, 64), all});
}

TEST(PrefillTiles, AreOfOneSession) {
  const int32_t pages[2] = {};
  std::vector<PruneBlock> blocks = {Block(100000, 64), Block(100000, 64)};
  blocks[0].block.kv.page_ids = pages;
  blocks[1].block.kv.page_ids = pages + 1;
  std::vector<StageLayout> layouts;
  layouts.reserve(blocks.size());
  for (const PruneBlock& block : blocks) {
    layouts.push_back(LayOutStage(kLarge, Bounds(Shape()), block, 0));
  }
  EXPECT_EQ(PrefillTiles(Bounds(Shape()), blocks, layouts).size(), 2U);
  blocks[1].block.kv.page_ids = pages;
  EXPECT_EQ(PrefillTiles(Bounds(Shape()), blocks, layouts).size(), 1U);
}

TEST(AttendLayouts, SplitsCoverTheKeysWithoutAnEmptyOne) {
  for (const int32_t rows : {1, 3, 64}) {
    for (const int32_t selected : {0, 7, 256, 8192}) {
      const AttendBlock block = Attended(1000000, rows, selected);
      const AttendLayout layout = LayOutAttend(kLarge, Shape(), block, 0);
      const int64_t window = block.block.first_position + rows - block.block.regions.middle_end;
      EXPECT_EQ(layout.keys, 256 + int64_t{selected} * 8 + window);
      EXPECT_GE(int64_t{layout.splits} * layout.keys_of_split, layout.keys);
      EXPECT_LT(int64_t{layout.splits - 1} * layout.keys_of_split, layout.keys);
      EXPECT_EQ(layout.rows, rows * 4);
      EXPECT_GE(layout.end - layout.acc, int64_t{layout.splits} * 8 * layout.rows * 128);
    }
  }
}

TEST(AttendKernels, FollowFromRowsTypeAndSize) {
  EXPECT_EQ(KindOf(kLarge, Shape(), Attended(100000, 1, 256)), AttendKind::kDecode);
  EXPECT_EQ(KindOf(kLarge, Shape(), Attended(100000, 64, 256)), AttendKind::kPrefill);
  EXPECT_EQ(KindOf(kSmall, Shape(), Attended(100000, 64, 256)), AttendKind::kManyRows);
  AttentionShape shape = Shape();
  shape.kv_dtype = DType::kF32;
  EXPECT_EQ(KindOf(kLarge, shape, Attended(100000, 1, 256)), AttendKind::kFewRows);
  EXPECT_EQ(KindOf(kLarge, shape, Attended(100000, 64, 256)), AttendKind::kManyRows);
}

}  // namespace
}  // namespace longshore::cuda
