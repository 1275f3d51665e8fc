#pragma once

#include <cstdint>

namespace longshore::client {

/// Random bits, never 0: an append_id or open_id that nobody else chooses.
uint64_t RandomId();

}  // namespace longshore::client
