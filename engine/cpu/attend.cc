#include <cmath>
#include <limits>
#include <vector>

#include "engine/algo/rope.h"
#include "engine/core/math.h"
#include "engine/cpu/cpu_backend.h"
#include "engine/cpu/rows.h"

namespace longshore::cpu {
namespace {

constexpr int32_t kTileKeys = 64;
// A step with at most so many query heads a KV head streams its keys once for all heads, its keys
// cut into splits for the threads; larger blocks are cut by KV head. Depends on the block alone,
// never on threads.
constexpr int32_t kStreamingRows = 16;
constexpr int32_t kSplitTiles = 8;

// Pieces [first, end) of a block's keys, at most kTileKeys together.
struct Tile {
  int32_t first = 0;
  int32_t end = 0;
  int32_t keys = 0;
};

// The keys of one query block in ascending order, cut into tiles.
struct KeyList {
  std::vector<KeyPiece> pieces;
  std::vector<Tile> tiles;

  // Adds the tokens [begin, end), cut at pages; `id` is the rotary id of the first.
  void Add(int64_t begin, int64_t end, int64_t id) {
    while (begin < end) {
      const int64_t piece_end = Min(end, (begin / kBlockTokens + 1) * kBlockTokens);
      const auto keys = static_cast<int32_t>(piece_end - begin);
      if (tiles.empty() || tiles.back().keys + keys > kTileKeys) {
        const auto next = static_cast<int32_t>(pieces.size());
        tiles.push_back({next, next, 0});
      }
      pieces.push_back({begin, id, keys});
      tiles.back().end += 1;
      tiles.back().keys += keys;
      id += keys;
      begin = piece_end;
    }
  }
};

KeyList ListKeys(const AttendBlock& attend, const AttendIds& ids) {
  const QueryBlock& block = attend.block;
  const int64_t end = block.first_position + block.rows;
  KeyList list;
  if (attend.dense) {
    list.Add(0, end, 0);
    return list;
  }
  list.Add(0, Min(block.regions.sink_end, end), ids.OfSink(0));
  for (int32_t chunk = 0; chunk < attend.num_selected; ++chunk) {
    const int64_t token = attend.selected[chunk];
    const int64_t rank = int64_t{chunk} * attend.selected_chunk_tokens;
    list.Add(token, token + attend.selected_chunk_tokens, ids.OfSelected(token, rank));
  }
  const int64_t window = block.regions.middle_end;
  list.Add(window, Max(window, end), ids.OfWindow(window));
  return list;
}

// Running attention of some query heads: softmax state and unnormalised output.
struct Partial {
  float* max = nullptr;  // [rows]
  float* sum = nullptr;  // [rows]
  float* acc = nullptr;  // [rows, head_dim]

  void Clear(int64_t rows, int64_t depth) const {
    std::fill_n(max, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, rows, 0.0F);
    std::fill_n(acc, rows * depth, 0.0F);
  }
};

// What a thread needs while it walks tiles.
struct TileBuffers {
  float* keys;       // [kTileKeys, head_dim]
  float* values;     // [kTileKeys, head_dim]
  float* cos;        // [kTileKeys, pairs]
  float* sin;        // [kTileKeys, pairs]
  float* scores;     // [rows, kTileKeys]
  float* rescale;    // [rows]
  int32_t* visible;  // [rows]

  TileBuffers(const AttentionShape& shape, int32_t pairs, int32_t rows, Scratch* scratch)
      : keys(scratch->Floats(int64_t{kTileKeys} * shape.head_dim)),
        values(scratch->Floats(int64_t{kTileKeys} * shape.head_dim)),
        cos(scratch->Floats(int64_t{kTileKeys} * pairs)),
        sin(scratch->Floats(int64_t{kTileKeys} * pairs)),
        scores(scratch->Floats(int64_t{rows} * kTileKeys)),
        rescale(scratch->Floats(rows)),
        visible(scratch->Ints(rows)) {}
};

// One query block on its way through Attend.
class BlockRun {
 public:
  BlockRun(const AttendArgs& args, const AttendBlock& attend)
      : args_(args),
        attend_(attend),
        block_(attend.block),
        rope_(attend.block.rope),
        ids_(MakeAttendIds(attend.rope_style,
                           attend.block.regions,
                           int64_t{attend.num_selected} * attend.selected_chunk_tokens)),
        keys_(ListKeys(attend, ids_)),
        rows_(block_.rows * args.shape.GroupSize()) {}

  const QueryBlock& block() const { return block_; }
  int32_t rows() const { return rows_; }  // query rows that share a KV head
  int32_t num_tiles() const { return static_cast<int32_t>(keys_.tiles.size()); }

  // The block's queries of one KV head: [rows, head_dim].
  void Queries(int32_t kv_head, Scratch* scratch, float* out) const {
    LoadQueries(
        args_.q, args_.shape, block_, {.first = 0, .stride = 1, .count = block_.rows}, kv_head,
        [this](int64_t position) { return QueryId(position); }, 1.0F, scratch, out);
  }

  // The rotary angles of a tile's keys, for all KV heads.
  void Angles(int32_t tile, const TileBuffers& buffers) const {
    const Tile& range = keys_.tiles[static_cast<size_t>(tile)];
    int64_t row = 0;
    for (int32_t index = range.first; index < range.end; ++index) {
      const KeyPiece& piece = keys_.pieces[static_cast<size_t>(index)];
      LoadAngles(rope_, piece.id, piece.keys, buffers.cos + row * rope_.pairs,
                 buffers.sin + row * rope_.pairs);
      row += piece.keys;
    }
  }

  // One tile of keys and values of one KV head into `partial`; `queries` [rows, head_dim].
  void Step(int32_t tile,
            int32_t kv_head,
            const float* queries,
            const TileBuffers& buffers,
            const Partial& partial) const {
    const Tile& range = keys_.tiles[static_cast<size_t>(tile)];
    const ScoreTile scores{buffers.scores, kTileKeys, rows_, range.keys};
    DotTile(queries, Keys(range, kv_head, buffers), args_.shape.head_dim, scores);
    ScaleTile(scores, args_.shape.softmax_scale, args_.shape.logit_soft_cap);
    SoftmaxTile(scores, Visible(range, buffers), {partial.max, partial.sum, buffers.rescale});
    AccumulateTile(scores, buffers.rescale, Values(range, kv_head, buffers), args_.shape.head_dim,
                   partial.acc);
  }

  // Normalises the rows of one KV head and writes them out.
  void Finish(int32_t kv_head, const Partial& partial) const;

 private:
  int64_t QueryId(int64_t position) const {
    return attend_.dense ? position : ids_.OfWindow(position);
  }

  RowSource Keys(const Tile& range, int32_t kv_head, const TileBuffers& buffers) const {
    const int32_t depth = args_.shape.head_dim;
    if (rope_.pairs == 0 && range.end - range.first == 1) {
      return KeyRows(block_.kv, keys_.pieces[static_cast<size_t>(range.first)], kv_head);
    }
    int64_t row = 0;
    for (int32_t index = range.first; index < range.end; ++index) {
      const KeyPiece& piece = keys_.pieces[static_cast<size_t>(index)];
      const TileRotation rotation{.angles = {.cos = buffers.cos + row * rope_.pairs,
                                             .sin = buffers.sin + row * rope_.pairs},
                                  .pairs = rope_.pairs,
                                  .pairing = rope_.pairing};
      RowSource source = KeyRows(block_.kv, piece, kv_head);
      source.next = Ahead(index, piece, kv_head, false);
      LoadRotatedRows(source, piece.keys, depth, rotation, args_.shape.kv_dtype,
                      buffers.keys + row * depth);
      row += piece.keys;
    }
    return {.first = buffers.keys, .stride_bytes = depth * int64_t{4}, .dtype = DType::kF32};
  }

  RowSource Values(const Tile& range, int32_t kv_head, const TileBuffers& buffers) const {
    const int32_t depth = args_.shape.head_dim;
    if (range.end - range.first == 1) {
      const KeyPiece& piece = keys_.pieces[static_cast<size_t>(range.first)];
      RowSource source = ValueRows(block_.kv, piece, kv_head);
      source.next = Ahead(range.first, piece, kv_head, true);
      return source;
    }
    int64_t row = 0;
    for (int32_t index = range.first; index < range.end; ++index) {
      const KeyPiece& piece = keys_.pieces[static_cast<size_t>(index)];
      LoadRows(ValueRows(block_.kv, piece, kv_head), piece.keys, depth,
               buffers.values + row * depth);
      row += piece.keys;
    }
    return {.first = buffers.values, .stride_bytes = depth * int64_t{4}, .dtype = DType::kF32};
  }

  // The same rows of the next piece, where it is as long, for prefetching.
  const void* Ahead(int32_t index, const KeyPiece& piece, int32_t kv_head, bool values) const {
    if (static_cast<size_t>(index) + 1 >= keys_.pieces.size()) {
      return nullptr;
    }
    const KeyPiece& next = keys_.pieces[static_cast<size_t>(index) + 1];
    if (next.keys < piece.keys) {
      return nullptr;
    }
    return values ? ValueRows(block_.kv, next, kv_head).first
                  : KeyRows(block_.kv, next, kv_head).first;
  }

  // How many keys of the tile each row may see; null where every row sees all.
  const int32_t* Visible(const Tile& range, const TileBuffers& buffers) const {
    const KeyPiece& last = keys_.pieces[static_cast<size_t>(range.end - 1)];
    if (last.token + last.keys - 1 <= block_.first_position) {
      return nullptr;
    }
    const int32_t group = args_.shape.GroupSize();
    for (int32_t row = 0; row < rows_; ++row) {
      const int64_t position = block_.first_position + row / group;
      int64_t visible = 0;
      for (int32_t index = range.first; index < range.end; ++index) {
        const KeyPiece& piece = keys_.pieces[static_cast<size_t>(index)];
        visible += Max(0, Min(position - piece.token + 1, piece.keys));
      }
      buffers.visible[row] = static_cast<int32_t>(visible);
    }
    return buffers.visible;
  }

  const AttendArgs& args_;
  const AttendBlock& attend_;
  const QueryBlock& block_;
  const RopeRows& rope_;
  AttendIds ids_;
  KeyList keys_;
  int32_t rows_;
};

void BlockRun::Finish(int32_t kv_head, const Partial& partial) const {
  const int32_t depth = args_.shape.head_dim;
  const int32_t group = args_.shape.GroupSize();
  for (int32_t row = 0; row < rows_; ++row) {
    const int32_t head = kv_head * group + row % group;
    float max = partial.max[row];
    float sum = partial.sum[row];
    float scale = 1.0F;
    if (args_.sink_logits != nullptr) {  // one more term of the denominator, without a value
      const float with_sink = std::max(max, args_.sink_logits[head]);
      scale = std::exp(max - with_sink);
      sum = sum * scale + std::exp(args_.sink_logits[head] - with_sink);
      max = with_sink;
    }
    float* acc = partial.acc + int64_t{row} * depth;
    for (int32_t d = 0; d < depth; ++d) {
      acc[d] = acc[d] * scale / sum;
    }
    const int64_t out_row =
        (int64_t{block_.first_row} + row / group) * args_.shape.num_heads + head;
    StoreRows(acc, depth, args_.out.dtype,
              static_cast<std::byte*>(args_.out.data) + out_row * depth * SizeOf(args_.out.dtype));
    if (args_.log_sum_exp != nullptr) {
      args_.log_sum_exp[out_row] = max + std::log(sum);
    }
  }
}

// A large block: one KV head, all tiles in order.
void RunHead(const BlockRun& run, const AttentionShape& shape, int32_t kv_head, Scratch* scratch) {
  scratch->Reset();
  const int64_t rows = run.rows();
  float* queries = scratch->Floats(rows * shape.head_dim);
  const Partial partial{scratch->Floats(rows), scratch->Floats(rows),
                        scratch->Floats(rows * shape.head_dim)};
  const TileBuffers buffers(shape, run.block().rope.pairs, run.rows(), scratch);
  run.Queries(kv_head, scratch, queries);
  partial.Clear(rows, shape.head_dim);
  for (int32_t tile = 0; tile < run.num_tiles(); ++tile) {
    run.Angles(tile, buffers);
    run.Step(tile, kv_head, queries, buffers, partial);
  }
  run.Finish(kv_head, partial);
}

// The splits of a small block: for each, softmax state and output of all heads.
struct SplitRun {
  const BlockRun* run = nullptr;
  int32_t num_splits = 0;
  float* queries = nullptr;  // [kv_heads, rows, head_dim]
  Partial partials;          // [splits, kv_heads * rows(, head_dim)]

  Partial At(int64_t split, int64_t kv_head, const AttentionShape& shape) const {
    const int64_t row = (split * shape.num_kv_heads + kv_head) * run->rows();
    return {partials.max + row, partials.sum + row, partials.acc + row * shape.head_dim};
  }
};

SplitRun StartSplits(const BlockRun& run, const AttentionShape& shape, Scratch* scratch) {
  SplitRun splits;
  splits.run = &run;
  splits.num_splits = static_cast<int32_t>(CeilDiv(run.num_tiles(), kSplitTiles));
  const int64_t rows = int64_t{shape.num_kv_heads} * run.rows();
  splits.queries = scratch->Floats(rows * shape.head_dim);
  for (int32_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    run.Queries(kv_head, scratch, splits.queries + int64_t{kv_head} * run.rows() * shape.head_dim);
  }
  const int64_t states = rows * splits.num_splits;
  splits.partials = {scratch->Floats(states), scratch->Floats(states),
                     scratch->Floats(states * shape.head_dim)};
  return splits;
}

// A few tiles, every key and value of them read once for all heads.
void RunSplit(const SplitRun& splits,
              const AttentionShape& shape,
              int32_t split,
              Scratch* scratch) {
  scratch->Reset();
  const BlockRun& run = *splits.run;
  const TileBuffers buffers(shape, run.block().rope.pairs, run.rows(), scratch);
  const int64_t rows = int64_t{shape.num_kv_heads} * run.rows();
  splits.At(split, 0, shape).Clear(rows, shape.head_dim);
  const auto end = static_cast<int32_t>(Min(run.num_tiles(), int64_t{split + 1} * kSplitTiles));
  for (int32_t tile = split * kSplitTiles; tile < end; ++tile) {
    run.Angles(tile, buffers);
    for (int32_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      run.Step(tile, kv_head, splits.queries + int64_t{kv_head} * run.rows() * shape.head_dim,
               buffers, splits.At(split, kv_head, shape));
    }
  }
}

// Merges the splits of one KV head, in order, into the first.
void MergeSplits(const SplitRun& splits, const AttentionShape& shape, int32_t kv_head) {
  const Partial first = splits.At(0, kv_head, shape);
  const int32_t depth = shape.head_dim;
  for (int32_t split = 1; split < splits.num_splits; ++split) {
    const Partial other = splits.At(split, kv_head, shape);
    for (int32_t row = 0; row < splits.run->rows(); ++row) {
      const float max = std::max(first.max[row], other.max[row]);
      if (!(max > -std::numeric_limits<float>::infinity())) {
        continue;  // neither split holds a key that this row sees
      }
      const float keep = std::exp(first.max[row] - max);
      const float add = std::exp(other.max[row] - max);
      first.max[row] = max;
      first.sum[row] = first.sum[row] * keep + other.sum[row] * add;
      float* acc = first.acc + int64_t{row} * depth;
      const float* other_acc = other.acc + int64_t{row} * depth;
      for (int32_t d = 0; d < depth; ++d) {
        acc[d] = acc[d] * keep + other_acc[d] * add;
      }
    }
  }
  splits.run->Finish(kv_head, first);
}

}  // namespace

absl::Status CpuBackend::Attend(const AttendArgs& args) {
  const AttentionShape& shape = args.shape;
  std::vector<BlockRun> large;
  std::vector<BlockRun> small;
  for (const AttendBlock& block : args.blocks) {
    const bool streams = block.block.rows * shape.GroupSize() <= kStreamingRows;
    (streams ? small : large).emplace_back(args, block);
  }
  team_.ParallelFor(static_cast<int64_t>(large.size()) * shape.num_kv_heads,
                    [&](int64_t index, int32_t thread) {
                      RunHead(large[static_cast<size_t>(index / shape.num_kv_heads)], shape,
                              static_cast<int32_t>(index % shape.num_kv_heads),
                              &scratch_[static_cast<size_t>(thread)]);
                    });
  shared_scratch_.Reset();
  std::vector<SplitRun> splits;
  std::vector<std::pair<int32_t, int32_t>> work;  // (block, split)
  for (const BlockRun& run : small) {
    splits.push_back(StartSplits(run, shape, &shared_scratch_));
    for (int32_t split = 0; split < splits.back().num_splits; ++split) {
      work.emplace_back(static_cast<int32_t>(splits.size()) - 1, split);
    }
  }
  team_.ParallelFor(static_cast<int64_t>(work.size()), [&](int64_t index, int32_t thread) {
    const auto [block, split] = work[static_cast<size_t>(index)];
    RunSplit(splits[static_cast<size_t>(block)], shape, split,
             &scratch_[static_cast<size_t>(thread)]);
  });
  team_.ParallelFor(static_cast<int64_t>(splits.size()) * shape.num_kv_heads,
                    [&](int64_t index, int32_t /*thread*/) {
                      MergeSplits(splits[static_cast<size_t>(index / shape.num_kv_heads)], shape,
                                  static_cast<int32_t>(index % shape.num_kv_heads));
                    });
  return absl::OkStatus();
}

}  // namespace longshore::cpu
