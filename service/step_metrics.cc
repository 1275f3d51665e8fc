#include "service/step_metrics.h"

#include <string>
#include <vector>

#include "service/metric_families.h"

namespace longshore {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;

constexpr std::array<const char*, 3> kKindNames = {"append", "prefill", "decode"};
constexpr std::array<const char*, kNumStageUses> kUseNames = {
    "", "prefill", "first", "invalidated", "clock", "propagated"};

Histogram::BucketBoundaries ItemBuckets() { return {1, 2, 4, 8, 16, 32, 64, 128, 256}; }

// One row of a decode step to the largest piece of a prompt.
Histogram::BucketBoundaries RowBuckets() { return {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536}; }

// The upper ends of MaskAges' buckets but the last one.
Histogram::BucketBoundaries AgeBuckets() {
  Histogram::BucketBoundaries bounds;
  for (size_t bucket = 0; bucket + 1 < MaskAges::kBuckets; ++bucket) {
    bounds.push_back(static_cast<double>((int64_t{1} << bucket) - 1));
  }
  return bounds;
}

void Add(Counter* counter, int64_t count) {
  if (count > 0) {
    counter->Increment(static_cast<double>(count));
  }
}

}  // namespace

StepMetrics::StepMetrics(prometheus::Registry* registry) {
  MakeKinds(registry);
  MakeStages(registry);
  MakeBlocks(registry);
}

void StepMetrics::MakeKinds(prometheus::Registry* registry) {
  Family<Counter>& steps =
      Counters(*registry, "longshore_steps_total", "Steps that the engine ran, by kind");
  Family<Histogram>& items =
      Histograms(*registry, "longshore_step_items", "Sessions that one step was a batch of");
  Family<Histogram>& rows =
      Histograms(*registry, "longshore_step_rows", "Rows of one step, of all its sessions");
  for (size_t kind = 0; kind < kNumKinds; ++kind) {
    const std::map<std::string, std::string> labels = {{"kind", kKindNames[kind]}};
    kinds_[kind] = {.steps = &steps.Add(labels),
                    .items = &items.Add(labels, ItemBuckets()),
                    .rows = &rows.Add(labels, RowBuckets())};
  }
}

void StepMetrics::MakeStages(prometheus::Registry* registry) {
  Family<Histogram>& seconds =
      Histograms(*registry, "longshore_step_stage_seconds", "Time of each part of a step that ran");
  Family<Counter>& lookups =
      Counters(*registry, "longshore_mask_cache_lookups_total",
               "Query blocks of decode steps that ran a stage, or used its cached result");
  Family<Counter>& refreshes =
      Counters(*registry, "longshore_stage_refreshes_total",
               "Query blocks that ran a stage, by the reason why no cached result served");
  Family<Histogram>& ages =
      Histograms(*registry, "longshore_mask_age_tokens",
                 "Positions since a cached result was made, at each use of it");
  append_seconds_ = &seconds.Add({{"stage", "append"}}, SecondsBuckets());
  attend_seconds_ = &seconds.Add({{"stage", "attend"}}, SecondsBuckets());
  for (size_t index = 0; index < stages_.size(); ++index) {
    const std::string name = "prune_" + std::to_string(index);
    Stage& stage = stages_[index];
    stage = {.lookups_refreshed = &lookups.Add({{"stage", name}, {"result", "refreshed"}}),
             .lookups_cached = &lookups.Add({{"stage", name}, {"result", "cached"}}),
             .refreshes = {},
             .ages = &ages.Add({{"stage", name}}, AgeBuckets()),
             .seconds = &seconds.Add({{"stage", name}}, SecondsBuckets())};
    for (size_t use = 1; use < kNumStageUses; ++use) {
      stage.refreshes[use] = &refreshes.Add({{"stage", name}, {"reason", kUseNames[use]}});
    }
  }
}

void StepMetrics::MakeBlocks(prometheus::Registry* registry) {
  Family<Counter>& blocks = Counters(*registry, "longshore_query_blocks_total",
                                     "Query blocks attended, by what their middle region was");
  dense_blocks_ = &blocks.Add({{"kind", "dense"}});
  streaming_blocks_ = &blocks.Add({{"kind", "streaming"}});
  sliding_blocks_ = &blocks.Add({{"kind", "sliding"}});
  staged_blocks_ = &blocks.Add({{"kind", "staged"}});
  tokens_appended_ =
      &Counters(*registry, "longshore_tokens_appended_total", "Tokens appended, summed over layers")
           .Add({});
  replays_ =
      &Counters(*registry, "longshore_replays_total", "Items answered again without appending")
           .Add({});
}

void StepMetrics::Count(StepKind kind, const StepTrace& trace) {
  const Kind& of_kind = kinds_[static_cast<size_t>(kind)];
  of_kind.steps->Increment();
  of_kind.items->Observe(trace.items);
  of_kind.rows->Observe(static_cast<double>(trace.rows));
  Add(tokens_appended_, trace.appended_tokens);
  Add(replays_, trace.replayed_items);
  append_seconds_->Observe(trace.append_seconds);
  if (kind == StepKind::kAppend) {
    return;
  }
  attend_seconds_->Observe(trace.attend_seconds);
  Add(dense_blocks_, trace.dense_blocks);
  Add(streaming_blocks_, trace.streaming_blocks);
  Add(sliding_blocks_, trace.sliding_blocks);
  Add(staged_blocks_, trace.staged_blocks);
  for (size_t index = 0; index < static_cast<size_t>(trace.num_stages); ++index) {
    CountStage(trace, index);
  }
}

void StepMetrics::CountStage(const StepTrace& trace, size_t index) {
  const Stage& stage = stages_[index];
  const auto& uses = trace.stage_uses[index];
  for (size_t use = 1; use < kNumStageUses; ++use) {
    Add(stage.refreshes[use], uses[use]);
  }
  if (trace.stage_refreshed[index] > 0) {
    stage.seconds->Observe(trace.stage_seconds[index]);
    // A prefill selects afresh and never looks for a mask.
    Add(stage.lookups_refreshed,
        trace.stage_refreshed[index] - uses[static_cast<size_t>(StageUse::kPrefill)]);
  }
  if (trace.stage_cached[index] > 0) {
    Add(stage.lookups_cached, trace.stage_cached[index]);
    const MaskAges& ages = trace.stage_ages[index];
    stage.ages->ObserveMultiple(std::vector<double>(ages.blocks.begin(), ages.blocks.end()),
                                static_cast<double>(ages.positions));
  }
}

}  // namespace longshore
