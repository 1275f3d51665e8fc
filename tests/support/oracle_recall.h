#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tests/support/oracle.h"
#include "tests/support/oracle_model.h"

/// The oracle's measure of a selection: how much of the attention it keeps.
namespace longshore::oracle {

/// One row of a block, and every key that it may see.
struct RecallRow {
  int64_t position = 0;
  int64_t block_first = 0;          ///< position of the first row of the row's block
  bool beyond = false;              ///< the block reaches past the trained length
  std::span<const double> queries;  ///< [heads, head_dim] unrotated
  std::span<const double> keys;     ///< [position + 1 or more, kv_heads, head_dim] unrotated
};

/// Shares of sum over tokens of exp(logit), [heads] each.
struct KeptMass {
  std::vector<double> all;     ///< of every token up to the row's own: sink, chosen and window
  std::vector<double> middle;  ///< of the middle's tokens: the chosen ones
};

/// How much of a row's attention a selection keeps. All tokens, kept or not, stand where the
/// policy's style in attention puts them; where that is kStreaming, which has no place for what is
/// not chosen, at true positions inside the trained length and by kInfLlm beyond it. Learned sinks
/// do not count.
KeptMass MassKept(const Model& model,
                  Policy policy,
                  const Selection& selection,
                  const RecallRow& row);

}  // namespace longshore::oracle
