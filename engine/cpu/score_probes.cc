#include "engine/core/math.h"
#include "engine/cpu/scattered_keys.h"

namespace longshore::cpu {

// The best of n tokens of each chunk, at offsets floor((i + 1/2) chunk / n).
void ScoreProbes(const StageView& view, CandidateRange range, Scratch* scratch) {
  const ScatteredKeys keys(view, scratch);
  const int32_t chunk = view.stage.chunk_tokens;
  const int32_t probes = view.stage.probes;
  const int32_t chunks_at_once = kTileKeys / probes;
  float* dots = scratch->Floats(int64_t{view.rows} * kTileKeys);
  for (int32_t begin = range.begin; begin < range.end; begin += chunks_at_once) {
    const auto chunks = static_cast<int32_t>(Min(chunks_at_once, range.end - begin));
    for (int32_t kv_head = 0; kv_head < view.shape.num_kv_heads; ++kv_head) {
      ForEachSlice(view, view.shape.GroupSize(), [&](const RowSlice& slice) {
        const auto key_of = [&](int32_t index) {
          const int32_t ordinal = begin + index / probes;
          const int64_t offset = (2 * int64_t{index % probes} + 1) * chunk / (2 * int64_t{probes});
          const int64_t token = view.Candidate(ordinal) + offset;
          return ScatteredKey{token,
                              PruneKeyId(view.prune.rule, slice.query_position, token, ordinal)};
        };
        const ScoreTile tile{dots, kTileKeys, slice.rows, chunks * probes};
        keys.Dot(kv_head, view.Queries(kv_head) + int64_t{slice.first} * view.depth, key_of, tile);
        ChunkMaxTile(tile, probes, view.Scores(kv_head, slice.first, begin), view.stride);
      });
    }
  }
}

}  // namespace longshore::cpu
