#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine_options.h"
#include "engine/model_shape.h"
#include "engine/policy.h"

namespace longshore::simulation {

/// What one life of a daemon is set up with: small limits, so that all of them are met.
struct World {
  EngineOptions engine;
  int32_t max_jobs = 0;
  int64_t max_bytes = 0;
  /// Nearly all sessions overcommit, and are long: together more than the pool holds.
  bool crowded = false;
  std::vector<ModelShape> shapes;
  std::vector<AttentionPolicy> policies;
};

struct WorldKind {
  bool mixed_pages = false;  ///< shapes whose pages differ in size
  bool crowded = false;
  int32_t max_jobs = 20;
};
World MakeWorld(const WorldKind& kind);

/// A number that depends on every bit of `word`.
constexpr uint64_t Mix(uint64_t word) {
  word ^= word >> 31;
  word *= 0x7fb5d329728ea185;
  word ^= word >> 27;
  word *= 0x81dadef4bc2dd44d;
  return word ^ (word >> 33);
}

/// What token number `position` adds to the answer of every row that sees it, if its key begins
/// with `key_word` and its value with ValueWord(key_word).
constexpr uint64_t Weight(int64_t position, uint64_t key_word, uint64_t value_word) {
  return Mix(key_word + Mix(value_word + Mix(static_cast<uint64_t>(position))));
}
constexpr uint64_t ValueWord(uint64_t key_word) { return ~key_word; }

}  // namespace longshore::simulation
