#include "engine/cpu/key_list.h"

#include "engine/core/math.h"

namespace longshore::cpu {

void KeyList::Add(int64_t begin, int64_t end) {
  int64_t rank = pieces.empty() ? 0 : pieces.back().rank + pieces.back().keys;
  ForEachPagePart(begin, end, [&](int64_t first, int64_t piece_end) {
    const auto keys = static_cast<int32_t>(piece_end - first);
    if (tiles.empty() || tiles.back().keys + keys > kTileKeys) {
      const auto next = static_cast<int32_t>(pieces.size());
      tiles.push_back({.first = next, .end = next, .keys = 0});
    }
    pieces.push_back({.token = first, .rank = rank, .keys = keys});
    tiles.back().end += 1;
    tiles.back().keys += keys;
    rank += keys;
  });
}

KeyList ListKeys(const AttendBlock& attend) {
  const QueryBlock& block = attend.block;
  const int64_t end = block.first_position + block.rows;
  KeyList list;
  list.Add(0, Min(block.regions.sink_end, end));
  for (int32_t chunk = 0; chunk < attend.num_selected; ++chunk) {
    const int64_t token = attend.selected[chunk];
    list.Add(token, token + attend.selected_chunk_tokens);
  }
  const int64_t window = block.regions.middle_end;
  list.Add(window, Max(window, end));
  return list;
}

}  // namespace longshore::cpu
