#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tests/support/engine_session.h"
#include "tests/support/oracle_recall.h"
#include "tests/support/test_model.h"

namespace longshore {

/// More products than any test's measurement has.
inline constexpr int64_t kWholeBlock = int64_t{1} << 60;

/// An engine that samples one query block in `sample_every`, and measures as many of a block's rows
/// as `max_block_products` allow.
inline std::unique_ptr<Engine> SamplingEngine(int32_t sample_every = 1,
                                              int64_t max_block_products = kWholeBlock) {
  return *Engine::Create({.pool_bytes = int64_t{64} << 20,
                          .recall_sample_every = sample_every,
                          .recall_max_block_products = max_block_products},
                         MakeTestBackend());
}

/// The measurement that waits, in slices of at most `max_products`; nothing if none does.
inline std::optional<RecallSample> Measure(Engine* engine, int64_t max_products = kWholeBlock) {
  while (true) {
    absl::StatusOr<RecallSlice> slice = engine->AdvanceRecall(max_products);
    EXPECT_TRUE(slice.ok()) << slice.status();
    if (slice->sample.has_value() || slice->products == 0) {
      return slice->sample;
    }
  }
}

}  // namespace longshore
