#pragma once

#include <cstdint>

namespace longshore {

/// Tokens of a page, of a key summary and of a query block. They align to it and so to each other.
inline constexpr int32_t kBlockTokens = 64;

}  // namespace longshore
