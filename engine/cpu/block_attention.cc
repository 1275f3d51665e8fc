#include "engine/cpu/block_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/math.h"

namespace longshore::cpu {

void Partial::Clear(int64_t rows, int64_t depth) const {
  std::fill_n(max, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, rows, 0.0F);
  std::fill_n(acc, rows * depth, 0.0F);
}

void Partial::Merge(const Partial& other, int64_t rows, int64_t depth) const {
  for (int64_t row = 0; row < rows; ++row) {
    const float new_max = std::max(max[row], other.max[row]);
    if (!(new_max > -std::numeric_limits<float>::infinity())) {
      continue;  // neither holds a key that this row sees
    }
    const float keep = std::exp(max[row] - new_max);
    const float add = std::exp(other.max[row] - new_max);
    max[row] = new_max;
    sum[row] = sum[row] * keep + other.sum[row] * add;
    float* to = acc + row * depth;
    const float* from = other.acc + row * depth;
    for (int64_t d = 0; d < depth; ++d) {
      to[d] = to[d] * keep + from[d] * add;
    }
  }
}

TileBuffers::TileBuffers(const AttentionShape& shape, int32_t pairs, int32_t rows, Scratch* scratch)
    : keys(scratch->Floats(int64_t{kTileKeys} * shape.head_dim)),
      values(scratch->Floats(int64_t{kTileKeys} * shape.head_dim)),
      cos(scratch->Floats(int64_t{kTileKeys} * pairs)),
      sin(scratch->Floats(int64_t{kTileKeys} * pairs)),
      scores(scratch->Floats(int64_t{rows} * kTileKeys)),
      rescale(scratch->Floats(rows)),
      ones(scratch->Floats(rows)),
      visible(scratch->Ints(rows)) {
  std::fill_n(ones, rows, 1.0F);
}

BlockAttention::BlockAttention(const AttendArgs& args, const AttendBlock& attend)
    : args_(args),
      block_(attend.block),
      rope_(attend.block.rope),
      ids_(MakeAttendIds(attend.rule,
                         attend.block.regions,
                         int64_t{attend.num_selected} * attend.selected_chunk_tokens)),
      keys_(ListKeys(attend)),
      sliding_window_tokens_(attend.sliding_window_tokens),
      rows_(block_.rows * args.shape.GroupSize()) {}

void BlockAttention::LoadQueries(int32_t kv_head, Scratch* scratch, float* out) const {
  const auto id_of = [this](int64_t position) { return ids_.OfQuery(position); };
  const QuerySource source{.q = args_.q,
                           .shape = args_.shape,
                           .block = block_,
                           .rows = {.first = 0, .stride = 1, .count = block_.rows}};
  cpu::LoadQueries(source, kv_head, id_of, scratch, out);
}

void BlockAttention::LoadTileAngles(int32_t tile, const TileBuffers& buffers) const {
  const KeyTile& range = keys_.tiles[static_cast<size_t>(tile)];
  int64_t row = 0;
  for (int32_t index = range.first; index < range.end; ++index) {
    const KeyPiece& piece = keys_.pieces[static_cast<size_t>(index)];
    const auto id_of = [&](int32_t key) {
      return ids_.OfKey(block_.first_position, piece.token + key, piece.rank + key);
    };
    LoadAnglesOf(rope_, piece.keys, id_of, buffers.cos + row * rope_.pairs,
                 buffers.sin + row * rope_.pairs);
    row += piece.keys;
  }
}

void BlockAttention::Step(int32_t tile,
                          int32_t kv_head,
                          const float* queries,
                          const TileBuffers& buffers,
                          const Partial& partial) const {
  const KeyTile& range = keys_.tiles[static_cast<size_t>(tile)];
  const ScoreTile scores{buffers.scores, kTileKeys, rows_, range.keys};
  Score(range, kv_head, queries, buffers);
  ScaleTile(scores, args_.shape.softmax_scale, args_.shape.logit_soft_cap);
  HideExpired(range, scores);
  SoftmaxTile(scores, Visible(range, buffers), {partial.max, partial.sum, buffers.rescale});
  Accumulate(range, kv_head, buffers, partial);
}

TileRotation BlockAttention::Rotation(const TileBuffers& buffers, int64_t row) const {
  return {
      .angles = {.cos = buffers.cos + row * rope_.pairs, .sin = buffers.sin + row * rope_.pairs},
      .pairs = rope_.pairs,
      .pairing = rope_.pairing};
}

// Raw scores of a tile. A score is the same however its keys are cut into calls.
void BlockAttention::Score(const KeyTile& tile,
                           int32_t kv_head,
                           const float* queries,
                           const TileBuffers& buffers) const {
  const int32_t depth = args_.shape.head_dim;
  int64_t row = 0;
  for (int32_t index = tile.first; index < tile.end; ++index) {
    const KeyPiece& piece = keys_.pieces[static_cast<size_t>(index)];
    RowSource keys = KeyRows(block_.kv, piece, kv_head);
    if (Streams()) {
      keys.next = Ahead(tile, index, kv_head, false);
      const ScoreTile scores{buffers.scores + row, kTileKeys, rows_, piece.keys};
      if (rope_.pairs > 0) {
        DotRotatedTile(queries, keys, Rotation(buffers, row), depth, scores);
      } else {
        DotTile(queries, keys, depth, scores);
      }
    } else {
      LoadRotatedRows(keys, piece.keys, depth, Rotation(buffers, row), args_.shape.kv_dtype,
                      buffers.keys + row * depth);
    }
    row += piece.keys;
  }
  if (!Streams()) {
    DotTile(queries,
            {.first = buffers.keys, .stride_bytes = depth * int64_t{4}, .dtype = DType::kF32},
            depth, {buffers.scores, kTileKeys, rows_, tile.keys});
  }
}

void BlockAttention::Accumulate(const KeyTile& tile,
                                int32_t kv_head,
                                const TileBuffers& buffers,
                                const Partial& partial) const {
  const int32_t depth = args_.shape.head_dim;
  int64_t row = 0;
  for (int32_t index = tile.first; index < tile.end; ++index) {
    const KeyPiece& piece = keys_.pieces[static_cast<size_t>(index)];
    RowSource values = ValueRows(block_.kv, piece, kv_head);
    if (Streams()) {
      values.next = Ahead(tile, index, kv_head, true);
      AccumulateTile({buffers.scores + row, kTileKeys, rows_, piece.keys},
                     index == tile.first ? buffers.rescale : buffers.ones, values, depth,
                     partial.acc);
    } else {
      LoadRows(values, piece.keys, depth, buffers.values + row * depth);
    }
    row += piece.keys;
  }
  if (!Streams()) {
    AccumulateTile(
        {buffers.scores, kTileKeys, rows_, tile.keys}, buffers.rescale,
        {.first = buffers.values, .stride_bytes = depth * int64_t{4}, .dtype = DType::kF32}, depth,
        partial.acc);
  }
}

// The piece that the next tile has in the place of this one, for prefetching; null where it is
// shorter.
const void* BlockAttention::Ahead(const KeyTile& tile,
                                  int32_t index,
                                  int32_t kv_head,
                                  bool values) const {
  const auto next = static_cast<size_t>(index) + static_cast<size_t>(tile.end - tile.first);
  if (next >= keys_.pieces.size() ||
      keys_.pieces[next].keys < keys_.pieces[static_cast<size_t>(index)].keys) {
    return nullptr;
  }
  return values ? ValueRows(block_.kv, keys_.pieces[next], kv_head).first
                : KeyRows(block_.kv, keys_.pieces[next], kv_head).first;
}

// How many keys of the tile each row may see; null where every row sees all.
const int32_t* BlockAttention::Visible(const KeyTile& tile, const TileBuffers& buffers) const {
  const KeyPiece& last = keys_.pieces[static_cast<size_t>(tile.end - 1)];
  if (last.token + last.keys - 1 <= block_.first_position) {
    return nullptr;
  }
  const int32_t group = args_.shape.GroupSize();
  for (int32_t row = 0; row < rows_; ++row) {
    const int64_t position = block_.first_position + row / group;
    int64_t visible = 0;
    for (int32_t index = tile.first; index < tile.end; ++index) {
      const KeyPiece& piece = keys_.pieces[static_cast<size_t>(index)];
      visible += Max(0, Min(position - piece.token + 1, piece.keys));
    }
    buffers.visible[row] = static_cast<int32_t>(visible);
  }
  return buffers.visible;
}

// Of a sliding window: the keys that have left it for a row, which are the tile's first ones.
void BlockAttention::HideExpired(const KeyTile& tile, ScoreTile scores) const {
  const int64_t last_position = block_.first_position + block_.rows - 1;
  const int64_t first_token = keys_.pieces[static_cast<size_t>(tile.first)].token;
  if (sliding_window_tokens_ == 0 || first_token > last_position - sliding_window_tokens_) {
    return;
  }
  const int32_t group = args_.shape.GroupSize();
  for (int32_t row = 0; row < rows_; ++row) {
    const int64_t oldest = block_.first_position + row / group - sliding_window_tokens_ + 1;
    int64_t hidden = 0;
    for (int32_t index = tile.first; index < tile.end; ++index) {
      const KeyPiece& piece = keys_.pieces[static_cast<size_t>(index)];
      hidden += Max(0, Min(oldest - piece.token, piece.keys));
    }
    std::fill_n(scores.data + row * scores.stride, hidden, -std::numeric_limits<float>::infinity());
  }
}

void BlockAttention::Finish(int32_t kv_head, const Partial& partial) const {
  const int32_t depth = args_.shape.head_dim;
  const int32_t group = args_.shape.GroupSize();
  const float largest = LargestOf(args_.out.dtype);
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
      acc[d] = std::clamp(acc[d] * scale / sum, -largest, largest);
    }
    const int64_t out_row =
        (int64_t{block_.first_row} + row / group) * args_.shape.num_heads + head;
    auto* out = static_cast<std::byte*>(args_.out.data) + out_row * depth * SizeOf(args_.out.dtype);
    StoreRows(acc, depth, args_.out.dtype, out);
    if (args_.log_sum_exp.data != nullptr) {
      static_cast<float*>(args_.log_sum_exp.data)[out_row] = max + std::log(sum);
    }
  }
}

}  // namespace longshore::cpu
