#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend_args.h"
#include "engine/cpu/rows.h"

namespace longshore::cpu {

/// Pieces [first, end) of a key list, kTileKeys keys at most.
struct KeyTile {
  int32_t first = 0;
  int32_t end = 0;
  int32_t keys = 0;
};

/// The keys that a query block attends to, in ascending order: runs of tokens with their ranks, cut
/// at pages, and tiles of them.
struct KeyList {
  std::vector<KeyPiece> pieces;
  std::vector<KeyTile> tiles;

  /// Adds tokens [begin, end).
  void Add(int64_t begin, int64_t end);
};

/// Sink, selected chunks and window of a block, up to its last row.
KeyList ListKeys(const AttendBlock& attend);

}  // namespace longshore::cpu
