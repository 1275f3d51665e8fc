#pragma once

#include <cstdint>

#include "engine/cpu/key_list.h"

namespace longshore::cpu {

/// Running attention of some query rows: softmax state and output that is not normalised yet.
struct Partial {
  float* max = nullptr;  ///< [rows]
  float* sum = nullptr;  ///< [rows]
  float* acc = nullptr;  ///< [rows, head_dim]

  /// Nothing has been attended to.
  void Clear(int64_t rows, int64_t depth) const;
  /// Adds what `other` attended to.
  void Merge(const Partial& other, int64_t rows, int64_t depth) const;
};

/// Working memory of a thread that walks tiles.
struct TileBuffers {
  TileBuffers(const AttentionShape& shape, int32_t pairs, int32_t rows, Scratch* scratch);

  float* keys;       ///< [kTileKeys, head_dim]
  float* values;     ///< [kTileKeys, head_dim]
  float* cos;        ///< [kTileKeys, pairs]
  float* sin;        ///< [kTileKeys, pairs]
  float* scores;     ///< [rows, kTileKeys]
  float* rescale;    ///< [rows]
  float* ones;       ///< [rows]
  int32_t* visible;  ///< [rows]
};

/// Hides what the tiles of one query block are made of: pages, pieces, rotary ids, causality. Its
/// user walks tiles and KV heads in any order that keeps the tiles of a Partial ascending.
class BlockAttention {
 public:
  /// Both arguments must outlive this.
  BlockAttention(const AttendArgs& args, const AttendBlock& attend);

  /// A block of few rows reads keys and values straight from their pages, once; a larger one copies
  /// a tile to fp32 and reuses it for all rows. Depends on the block alone, never on threads.
  bool Streams() const { return rows_ <= kStreamingRows; }
  /// Query rows that share a KV head: the block's rows times the group.
  int32_t rows() const { return rows_; }
  int32_t num_tiles() const { return static_cast<int32_t>(keys_.tiles.size()); }
  int32_t pairs() const { return rope_.pairs; }

  /// The rotated queries of one KV head: out [rows, head_dim].
  void LoadQueries(int32_t kv_head, Scratch* scratch, float* out) const;
  /// The rotary angles of a tile's keys, for all KV heads.
  void LoadTileAngles(int32_t tile, const TileBuffers& buffers) const;
  /// One tile of one KV head into `partial`; queries [rows, head_dim].
  void Step(int32_t tile,
            int32_t kv_head,
            const float* queries,
            const TileBuffers& buffers,
            const Partial& partial) const;
  /// Normalises the rows of one KV head and writes them to args.out.
  void Finish(int32_t kv_head, const Partial& partial) const;

 private:
  static constexpr int32_t kStreamingRows = 16;

  TileRotation Rotation(const TileBuffers& buffers, int64_t row) const;
  void Score(const KeyTile& tile,
             int32_t kv_head,
             const float* queries,
             const TileBuffers& buffers) const;
  void Accumulate(const KeyTile& tile,
                  int32_t kv_head,
                  const TileBuffers& buffers,
                  const Partial& partial) const;
  const void* Ahead(const KeyTile& tile, int32_t index, int32_t kv_head, bool values) const;
  const int32_t* Visible(const KeyTile& tile, const TileBuffers& buffers) const;
  void HideExpired(const KeyTile& tile, ScoreTile scores) const;

  const AttendArgs& args_;
  const QueryBlock& block_;
  const RopeRows& rope_;
  AttendIds ids_;
  KeyList keys_;
  int64_t sliding_window_tokens_;
  int32_t rows_;
};

}  // namespace longshore::cpu
