#include "engine/cpu/stage_scores.h"

namespace longshore::cpu {
namespace {

// Candidates [begin, end) that follow each other in a page.
struct ChunkRun {
  int32_t begin = 0;
  int32_t end = 0;
  KeyPiece piece;
};

// The run that starts at candidate `begin`; without keys at `end`.
ChunkRun RunFrom(const StageView& view, int32_t begin, int32_t end) {
  if (begin == end) {
    return {.begin = end, .end = end, .piece = {}};
  }
  const int32_t chunk = view.stage.chunk_tokens;
  const int64_t token = view.Candidate(begin);
  int32_t run_end = begin + 1;
  for (int64_t next = token + chunk; run_end < end; ++run_end, next += chunk) {
    if (next % kBlockTokens == 0 || view.Candidate(run_end) != next) {
      break;
    }
  }
  return {.begin = begin,
          .end = run_end,
          .piece = {.token = token, .rank = 0, .keys = (run_end - begin) * chunk}};
}

}  // namespace

// A run at a time; while one is scored the next is fetched.
void ScoreExact(const StageView& view, CandidateRange range, Scratch* scratch) {
  const RopeRows& rope = view.prune.block.rope;
  const KvView& kv = view.prune.block.kv;
  const int32_t chunk = view.stage.chunk_tokens;
  float* cos = scratch->Floats(int64_t{kTileKeys} * rope.pairs);
  float* sin = scratch->Floats(int64_t{kTileKeys} * rope.pairs);
  float* dots = scratch->Floats(int64_t{view.rows} * kTileKeys);
  const TileRotation rotation{
      .angles = {.cos = cos, .sin = sin}, .pairs = rope.pairs, .pairing = rope.pairing};
  for (ChunkRun run = RunFrom(view, range.begin, range.end); run.begin < range.end;) {
    const ChunkRun next = RunFrom(view, run.end, range.end);
    const KeyPiece& piece = run.piece;
    ForEachSlice(view, view.shape.GroupSize(), [&](const RowSlice& slice) {
      if (view.rotates_keys) {
        const auto id_of = [&](int32_t key) {
          return PruneKeyId(view.prune.rule, slice.query_position, piece.token + key,
                            run.begin + key / chunk);
        };
        LoadAnglesOf(rope, piece.keys, id_of, cos, sin);
      }
      const ScoreTile tile{dots, kTileKeys, slice.rows, piece.keys};
      for (int32_t kv_head = 0; kv_head < view.shape.num_kv_heads; ++kv_head) {
        const float* queries = view.Queries(kv_head) + int64_t{slice.first} * view.depth;
        RowSource source = KeyRows(kv, piece, kv_head);
        if (next.piece.keys >= piece.keys) {
          source.next = KeyRows(kv, next.piece, kv_head).first;
        }
        if (view.rotates_keys) {
          DotRotatedTile(queries, source, rotation, view.depth, tile);
        } else {
          DotTile(queries, source, view.depth, tile);
        }
        ChunkMaxTile(tile, chunk, view.Scores(kv_head, slice.first, run.begin), view.stride);
      }
    });
    run = next;
  }
}

}  // namespace longshore::cpu
