#pragma once

#include <cstdint>

#include "tests/support/oracle_math.h"
#include "tests/support/oracle_model.h"

/// The oracle's rotary ids: the table of RoPE styles in design section 4. No state.
namespace longshore::oracle {

/// One query and one key.
struct Pair {
  int64_t query_position = 0;  ///< p
  int64_t key_position = 0;    ///< i
  int64_t block_first = 0;     ///< f: first position of the query's block, as the call cut it
  bool beyond = false;         ///< the block reaches past the trained length
};

/// What a key is to a query while pruning. Descent compares branches, then scores what is left.
enum class KeyRole { kScored, kLeftBranch, kRightBranch, kFinalToken };

/// A query and a key of a candidate chunk.
struct ScoredPair {
  Pair pair;
  KeyRole role = KeyRole::kScored;
  int64_t chunk_ordinal = 0;  ///< of the key's chunk among the stage's candidates, from 0
  int64_t num_chunks = 0;     ///< candidates of the stage
};

/// A query and a key that it attends. Ranks count the attended tokens of the query from 0.
struct AttendedPair {
  Pair pair;
  int64_t query_rank = 0;
  int64_t key_rank = 0;
  bool key_in_window = false;  ///< the key is in [M, p]
};

/// Where the two vectors of a pair are rotated to.
struct PairPlaces {
  RotaryPlace query;
  RotaryPlace key;
};

/// Id of a key of kDynamicExtend. With L trained, w = floor(L / 4), p, i and f as in `Pair`:
/// i if p < L or i >= f - w; else f - w + floor((i - f + w)(L - w) / (f - w)), at least p - L + 1.
int64_t DynamicExtendId(int64_t trained_tokens, const Pair& pair);

/// Id of a key of kSelfExtend. With group g and n neighbors:
/// i if p - i < n; else p - (n + floor((p - i - n) / g)).
int64_t SelfExtendId(const SelfExtend& self_extend, const Pair& pair);

/// Places while pruning with a stage; a style that is added is a case here.
///
/// kRelative: descent places the query at W + 1, a left branch at 0, a right one and the final
/// token at 1. Other selectors' pairs are the table's (W + 1, 1) shifted by one, so that keys stay
/// as they are stored; the key's share of the attention scaling goes to the query.
PairPlaces PlaceScored(const Model& model,
                       const Policy& policy,
                       const Stage& stage,
                       const ScoredPair& scored);

/// Places in attention; a style that is added is a case here.
PairPlaces PlaceAttended(const Model& model, const Policy& policy, const AttendedPair& attended);

}  // namespace longshore::oracle
