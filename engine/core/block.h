#pragma once

#include <cstdint>

namespace longshore {

/// Tokens of a page, of a key summary and of a query block. They align to it and so to each other.
inline constexpr int32_t kBlockTokens = 64;

/// Calls body(begin, end) for the parts of tokens [begin, end) that lie in one page each, in order.
template <class Body>
void ForEachPagePart(int64_t begin, int64_t end, const Body& body) {
  while (begin < end) {
    const int64_t page_end = (begin / kBlockTokens + 1) * kBlockTokens;
    const int64_t part_end = end < page_end ? end : page_end;
    body(begin, part_end);
    begin = part_end;
  }
}

}  // namespace longshore
