#pragma once

#include <array>
#include <cstdint>

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "engine/step.h"

namespace longshore {

/// What steps did inside the engine, from their traces. Thread-safe.
class StepMetrics {
 public:
  explicit StepMetrics(prometheus::Registry* registry);

  void Count(StepKind kind, const StepTrace& trace);

 private:
  static constexpr size_t kNumKinds = 3;  // of StepKind
  struct Kind {
    prometheus::Counter* steps;
    prometheus::Histogram* items;
    prometheus::Histogram* rows;
  };
  struct Stage {
    prometheus::Counter* lookups_refreshed;
    prometheus::Counter* lookups_cached;
    std::array<prometheus::Counter*, kNumStageUses> refreshes;  // null for kCached
    prometheus::Histogram* ages;
    prometheus::Histogram* seconds;
  };

  void MakeKinds(prometheus::Registry* registry);
  void MakeStages(prometheus::Registry* registry);
  void MakeBlocks(prometheus::Registry* registry);
  void CountStage(const StepTrace& trace, size_t index);

  // All owned by the registry.
  std::array<Kind, kNumKinds> kinds_;
  std::array<Stage, kMaxStages> stages_;
  prometheus::Histogram* append_seconds_;
  prometheus::Histogram* attend_seconds_;
  prometheus::Counter* dense_blocks_;
  prometheus::Counter* streaming_blocks_;
  prometheus::Counter* sliding_blocks_;
  prometheus::Counter* staged_blocks_;
  prometheus::Counter* tokens_appended_;
  prometheus::Counter* replays_;
};

}  // namespace longshore
