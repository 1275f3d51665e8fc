#pragma once

#include <cstdint>

#include "engine/cpu/stage_scores.h"

namespace longshore::cpu {

/// A key of a stage's candidate and its rotary id for one query.
struct ScatteredKey {
  int64_t token = 0;
  int64_t id = 0;
};

/// Dot products with keys that lie anywhere: gathers them into fp32 rows, rotated and rounded where
/// the stage's style rotates keys.
class ScatteredKeys {
 public:
  ScatteredKeys(const StageView& view, Scratch* scratch);

  /// tile[r, i] = queries[r] . key_of(i), for at most kTileKeys keys.
  ///
  ///   queries  [tile.rows, view.depth]
  ///   key_of   (int32_t index) -> ScatteredKey
  void Dot(int32_t kv_head,
           const float* queries,
           absl::FunctionRef<ScatteredKey(int32_t index)> key_of,
           const ScoreTile& tile) const;

 private:
  const StageView& view_;
  float* keys_;  // [kTileKeys, depth]
  float* cos_;   // [pairs]
  float* sin_;   // [pairs]
};

}  // namespace longshore::cpu
