#pragma once

#include <cstdint>

#include "engine/backend_args.h"
#include "engine/cpu/scratch.h"
#include "engine/cpu/tile_kernels.h"

namespace longshore::cpu {

/// A run of consecutive tokens inside one page, with consecutive rotary ids.
struct KeyPiece {
  int64_t token = 0;
  int64_t id = 0;  ///< rotary id of `token`
  int32_t keys = 0;
};

/// Angles of ids first_id .. first_id + count - 1.
///
///   cos, sin  [count, rope.pairs] out
void LoadAngles(const RopeRows& rope, int64_t first_id, int32_t count, float* cos, float* sin);

/// Keys of one KV head of a page, as they lie there.
RowSource KeyRows(const KvView& kv, const KeyPiece& piece, int32_t kv_head);
RowSource ValueRows(const KvView& kv, const KeyPiece& piece, int32_t kv_head);

/// Rows of one query block for one KV head, rotated, rounded to kv_dtype, as fp32.
struct QueryRows {
  int32_t first = 0;   ///< row of the block
  int32_t stride = 1;  ///< between rows
  int32_t count = 0;
};

/// Turns the query heads that share `kv_head`, row by row, by the angle of each row's id.
///
/// `id_of(position)` is the rotary id. With `angle_scale` != 1 the rotary dimensions are scaled as
/// well: keys that are used unrotated lack the factor that attention_scaling would have given them.
///
///   q    [rows, num_heads, head_dim]
///   out  [count, group, head_dim]
template <typename IdOf>
void LoadQueries(const TensorRef& q,
                 const AttentionShape& shape,
                 const QueryBlock& block,
                 const QueryRows& rows,
                 int32_t kv_head,
                 IdOf id_of,
                 float angle_scale,
                 Scratch* scratch,
                 float* out) {
  const int32_t group = shape.GroupSize();
  const int64_t head_bytes = shape.head_dim * SizeOf(q.dtype);
  float* cos = scratch->Floats(block.rope.pairs);
  float* sin = scratch->Floats(block.rope.pairs);
  for (int32_t index = 0; index < rows.count; ++index) {
    const int64_t row = rows.first + int64_t{index} * rows.stride;
    const auto* first =
        static_cast<const std::byte*>(q.data) +
        ((block.first_row + row) * shape.num_heads + int64_t{kv_head} * group) * head_bytes;
    const RowSource source{.first = first, .stride_bytes = head_bytes, .dtype = q.dtype};
    LoadAngles(block.rope, id_of(block.first_position + row), 1, cos, sin);
    for (int32_t pair = 0; angle_scale != 1.0F && pair < block.rope.pairs; ++pair) {
      cos[pair] *= angle_scale;
      sin[pair] *= angle_scale;
    }
    LoadRotatedRows(source, group, shape.head_dim,
                    {.angles = {.cos = cos, .sin = sin},
                     .pairs = block.rope.pairs,
                     .pairing = block.rope.pairing,
                     .shared_angle = true},
                    shape.kv_dtype, out + int64_t{index} * group * shape.head_dim);
  }
}

}  // namespace longshore::cpu
