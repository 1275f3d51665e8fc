#pragma once

#include <cstdint>

namespace longshore {

/// Which two dimensions a rotary angle turns, with `pairs` angles: (i, i + pairs) or (2i, 2i + 1).
enum class RopePairing : uint8_t { kHalf, kInterleaved };

}  // namespace longshore
