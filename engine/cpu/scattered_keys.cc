#include "engine/cpu/scattered_keys.h"

namespace longshore::cpu {

ScatteredKeys::ScatteredKeys(const StageView& view, Scratch* scratch)
    : view_(view),
      keys_(scratch->Floats(int64_t{kTileKeys} * view.depth)),
      cos_(scratch->Floats(view.prune.block.rope.pairs)),
      sin_(scratch->Floats(view.prune.block.rope.pairs)) {}

void ScatteredKeys::Dot(int32_t kv_head,
                        const float* queries,
                        absl::FunctionRef<ScatteredKey(int32_t index)> key_of,
                        const ScoreTile& tile) const {
  const KvView& kv = view_.prune.block.kv;
  const RopeRows& rope = view_.prune.block.rope;
  const TileRotation rotation{
      .angles = {.cos = cos_, .sin = sin_}, .pairs = rope.pairs, .pairing = rope.pairing};
  for (int32_t index = 0; index < tile.keys; ++index) {
    const ScatteredKey key = key_of(index);
    const RowSource source = KeyRows(kv, {.token = key.token, .rank = 0, .keys = 1}, kv_head);
    float* row = keys_ + int64_t{index} * view_.depth;
    if (view_.rotates_keys) {
      LoadAngles(rope, key.id, 1, cos_, sin_);
      LoadRotatedRows(source, 1, view_.depth, rotation, kv.dtype, row);
    } else {
      LoadRows(source, 1, view_.depth, row);
    }
  }
  DotTile(
      queries,
      {.first = keys_, .stride_bytes = view_.depth * int64_t{sizeof(float)}, .dtype = DType::kF32},
      view_.depth, tile);
}

}  // namespace longshore::cpu
