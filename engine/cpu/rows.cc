#include "engine/cpu/rows.h"

#include "engine/core/math.h"

namespace longshore::cpu {

void LoadAngles(const RopeRows& rope, int64_t first_id, int32_t count, float* cos, float* sin) {
  if (rope.pairs == 0) {
    return;
  }
  for (int64_t id = first_id; id < first_id + count;) {
    // The fine rows of one coarse row are consecutive.
    const int64_t fine = id & 63;
    const int64_t coarse = (id >> 6) * rope.pairs;
    const int64_t rows = Min(first_id + count - id, 64 - fine);
    const int64_t out = (id - first_id) * rope.pairs;
    ComposeAngles(
        {.cos = rope.coarse_cos + coarse, .sin = rope.coarse_sin + coarse},
        {.cos = rope.fine_cos + fine * rope.pairs, .sin = rope.fine_sin + fine * rope.pairs},
        static_cast<int32_t>(rows), rope.pairs, cos + out, sin + out);
    id += rows;
  }
}

RowSource KeyRows(const KvView& kv, const KeyPiece& piece, int32_t kv_head) {
  return {.first = kv.Keys(piece.token) + int64_t{kv_head} * kv.head_bytes,
          .stride_bytes = kv.token_bytes,
          .dtype = kv.dtype};
}

RowSource ValueRows(const KvView& kv, const KeyPiece& piece, int32_t kv_head) {
  return {.first = kv.Values(piece.token) + int64_t{kv_head} * kv.head_bytes,
          .stride_bytes = kv.token_bytes,
          .dtype = kv.dtype};
}

}  // namespace longshore::cpu
