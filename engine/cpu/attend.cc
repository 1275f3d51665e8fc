#include <utility>
#include <vector>

#include "engine/core/math.h"
#include "engine/cpu/block_attention.h"
#include "engine/cpu/cpu_backend.h"

namespace longshore::cpu {
namespace {

// Tiles of a split: enough work to be worth handing out, few enough that 3K keys keep several
// threads busy. A constant, so that results do not depend on the number of threads.
constexpr int32_t kSplitTiles = 8;

// A large block, by KV head: all tiles in order.
void RunHead(const BlockAttention& block,
             const AttentionShape& shape,
             int32_t kv_head,
             Scratch* scratch) {
  scratch->Reset();
  const int64_t rows = block.rows();
  float* queries = scratch->Floats(rows * shape.head_dim);
  const Partial partial{scratch->Floats(rows), scratch->Floats(rows),
                        scratch->Floats(rows * shape.head_dim)};
  const TileBuffers buffers(shape, block.pairs(), block.rows(), scratch);
  block.LoadQueries(kv_head, scratch, queries);
  partial.Clear(rows, shape.head_dim);
  for (int32_t tile = 0; tile < block.num_tiles(); ++tile) {
    block.LoadTileAngles(tile, buffers);
    block.Step(tile, kv_head, queries, buffers, partial);
  }
  block.Finish(kv_head, partial);
}

// A small block, by split: each reads its keys and values once for all heads.
class SplitBlock {
 public:
  SplitBlock(const BlockAttention* block, const AttentionShape* shape, Scratch* scratch)
      : block_(block),
        shape_(shape),
        num_splits_(static_cast<int32_t>(CeilDiv(block->num_tiles(), kSplitTiles))) {
    const int64_t states = int64_t{shape->num_kv_heads} * block->rows();
    queries_ = scratch->Floats(states * shape->head_dim);
    partials_ = {scratch->Floats(states * num_splits_), scratch->Floats(states * num_splits_),
                 scratch->Floats(states * num_splits_ * shape->head_dim)};
    for (int32_t kv_head = 0; kv_head < shape->num_kv_heads; ++kv_head) {
      block->LoadQueries(kv_head, scratch, Queries(kv_head));
    }
  }

  int32_t num_splits() const { return num_splits_; }

  void RunSplit(int32_t split, Scratch* scratch) const {
    scratch->Reset();
    const TileBuffers buffers(*shape_, block_->pairs(), block_->rows(), scratch);
    At(split, 0).Clear(int64_t{shape_->num_kv_heads} * block_->rows(), shape_->head_dim);
    const int64_t end = Min(block_->num_tiles(), int64_t{split + 1} * kSplitTiles);
    for (int32_t tile = split * kSplitTiles; tile < end; ++tile) {
      block_->LoadTileAngles(tile, buffers);
      for (int32_t kv_head = 0; kv_head < shape_->num_kv_heads; ++kv_head) {
        block_->Step(tile, kv_head, Queries(kv_head), buffers, At(split, kv_head));
      }
    }
  }

  // Merges the splits of a KV head, in order, and writes its rows.
  void Finish(int32_t kv_head) const {
    for (int32_t split = 1; split < num_splits_; ++split) {
      At(0, kv_head).Merge(At(split, kv_head), block_->rows(), shape_->head_dim);
    }
    block_->Finish(kv_head, At(0, kv_head));
  }

 private:
  float* Queries(int64_t kv_head) const {
    return queries_ + kv_head * block_->rows() * shape_->head_dim;
  }
  Partial At(int64_t split, int64_t kv_head) const {
    const int64_t row = (split * shape_->num_kv_heads + kv_head) * block_->rows();
    return {partials_.max + row, partials_.sum + row, partials_.acc + row * shape_->head_dim};
  }

  const BlockAttention* block_;
  const AttentionShape* shape_;
  int32_t num_splits_;
  float* queries_;    // [kv_heads, rows, head_dim]
  Partial partials_;  // [splits, kv_heads, rows(, head_dim)]
};

}  // namespace

absl::Status CpuBackend::Attend(const AttendArgs& args) {
  const AttentionShape& shape = args.shape;
  std::vector<BlockAttention> large;
  std::vector<BlockAttention> small;
  for (const AttendBlock& attend : args.blocks) {
    BlockAttention block(args, attend);
    (block.Streams() ? small : large).push_back(std::move(block));
  }
  team_.ParallelFor(static_cast<int64_t>(large.size()) * shape.num_kv_heads,
                    [&](int64_t index, int32_t thread) {
                      RunHead(large[static_cast<size_t>(index / shape.num_kv_heads)], shape,
                              static_cast<int32_t>(index % shape.num_kv_heads),
                              &scratch_[static_cast<size_t>(thread)]);
                    });
  shared_scratch_.Reset();
  std::vector<SplitBlock> blocks;
  std::vector<std::pair<size_t, int32_t>> splits;  // (block, split)
  for (const BlockAttention& block : small) {
    blocks.emplace_back(&block, &shape, &shared_scratch_);
    for (int32_t split = 0; split < blocks.back().num_splits(); ++split) {
      splits.emplace_back(blocks.size() - 1, split);
    }
  }
  team_.ParallelFor(static_cast<int64_t>(splits.size()), [&](int64_t index, int32_t thread) {
    const auto [block, split] = splits[static_cast<size_t>(index)];
    blocks[block].RunSplit(split, &scratch_[static_cast<size_t>(thread)]);
  });
  team_.ParallelFor(static_cast<int64_t>(blocks.size()) * shape.num_kv_heads,
                    [&](int64_t index, int32_t /*thread*/) {
                      blocks[static_cast<size_t>(index / shape.num_kv_heads)].Finish(
                          static_cast<int32_t>(index % shape.num_kv_heads));
                    });
  return absl::OkStatus();
}

}  // namespace longshore::cpu
