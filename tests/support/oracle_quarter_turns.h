#pragma once

#include "tests/support/oracle_model.h"

namespace longshore::oracle {

/// Turns the only pair by a quarter a position, exactly.
inline Rope QuarterTurns() {
  Rope rope{.rotary_dim = 2};
  for (int id = 0; id < 16; ++id) {
    rope.cos_table.push_back(id % 2 == 0 ? 1 - id % 4 : 0);
    rope.sin_table.push_back(id % 2 == 0 ? 0 : 2 - id % 4);
  }
  return rope;
}

}  // namespace longshore::oracle
