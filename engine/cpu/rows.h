#pragma once

#include <cstdint>

#include "engine/backend_args.h"
#include "engine/cpu/scratch.h"
#include "engine/cpu/tile_kernels.h"

namespace longshore::cpu {

/// Keys that are scored together.
inline constexpr int32_t kTileKeys = 64;

/// A run of consecutive tokens inside one page.
struct KeyPiece {
  int64_t token = 0;
  int64_t rank = 0;  ///< keys of the list before `token`
  int32_t keys = 0;
};

/// Angles of ids first_id .. first_id + count - 1.
///
///   cos, sin  [count, rope.pairs] out
void LoadAngles(const RopeRows& rope, int64_t first_id, int32_t count, float* cos, float* sin);

/// Angles of `count` keys of which number i has the id id_of(i).
template <typename IdOf>
void LoadAnglesOf(const RopeRows& rope, int32_t count, IdOf id_of, float* cos, float* sin) {
  for (int32_t first = 0; first < count;) {
    const int64_t id = id_of(first);
    int32_t end = first + 1;
    while (end < count && id_of(end) == id + (end - first)) {
      ++end;
    }
    const int64_t out = int64_t{first} * rope.pairs;
    LoadAngles(rope, id, end - first, cos + out, sin + out);
    first = end;
  }
}

/// Keys of one KV head of a page, as they lie there.
RowSource KeyRows(const KvView& kv, const KeyPiece& piece, int32_t kv_head);
RowSource ValueRows(const KvView& kv, const KeyPiece& piece, int32_t kv_head);

/// Every stride-th row of a query block, from `first` on.
struct QueryRows {
  int32_t first = 0;
  int32_t stride = 1;
  int32_t count = 0;
};

/// The query heads that share a KV head, in some rows of a block.
struct QuerySource {
  const TensorRef& q;  ///< [rows, num_heads, head_dim]
  const AttentionShape& shape;
  const QueryBlock& block;
  QueryRows rows;
  /// Multiplies the rotary dimensions: keys that are used unrotated lack the factor that
  /// attention_scaling would have given them.
  float angle_scale = 1.0F;
};

/// Queries turned by the angle of each row's id, rounded to kv_dtype, as fp32.
///
///   id_of(position)  the rotary id of a query
///   out              [rows.count, group, head_dim]
template <typename IdOf>
void LoadQueries(const QuerySource& source,
                 int32_t kv_head,
                 IdOf id_of,
                 Scratch* scratch,
                 float* out) {
  const AttentionShape& shape = source.shape;
  const RopeRows& rope = source.block.rope;
  const int32_t group = shape.GroupSize();
  const int64_t head_bytes = shape.head_dim * SizeOf(source.q.dtype);
  float* cos = scratch->Floats(rope.pairs);
  float* sin = scratch->Floats(rope.pairs);
  const TileRotation rotation{.angles = {.cos = cos, .sin = sin},
                              .pairs = rope.pairs,
                              .pairing = rope.pairing,
                              .shared_angle = true};
  for (int32_t index = 0; index < source.rows.count; ++index) {
    const int64_t row = source.rows.first + int64_t{index} * source.rows.stride;
    const int64_t head =
        (source.block.first_row + row) * shape.num_heads + int64_t{kv_head} * group;
    LoadAngles(rope, id_of(source.block.first_position + row), 1, cos, sin);
    for (int32_t pair = 0; source.angle_scale != 1.0F && pair < rope.pairs; ++pair) {
      cos[pair] *= source.angle_scale;
      sin[pair] *= source.angle_scale;
    }
    LoadRotatedRows({.first = static_cast<const std::byte*>(source.q.data) + head * head_bytes,
                     .stride_bytes = head_bytes,
                     .dtype = source.q.dtype},
                    group, shape.head_dim, rotation, shape.kv_dtype,
                    out + int64_t{index} * group * shape.head_dim);
  }
}

}  // namespace longshore::cpu
