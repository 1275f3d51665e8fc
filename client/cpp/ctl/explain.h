#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/ctl/json.h"
#include "engine/engine_options.h"
#include "engine/session.h"
#include "longshore/v1/model.pb.h"
#include "longshore/v1/policy.pb.h"

// What a policy does at one context, in numbers. The same numbers as longshore.policy.explain() of
// the Python client, which a test compares; here they come from the engine's own structs.
namespace longshore::ctl {

/// A number of each step between two refreshes of the coarsest stage, all at the same context:
/// the first runs every stage, the last none but those of every step.
struct Clock {
  std::vector<int64_t> values;  ///< [coarsest refresh_steps]

  int64_t fresh() const { return values.front(); }
  int64_t cached() const { return values.back(); }
  double average() const {
    return static_cast<double>(std::accumulate(values.begin(), values.end(), int64_t{0})) /
           static_cast<double>(values.size());
  }
};

/// One pruning stage at one context, when it has just been refreshed.
struct StageReads {
  std::string selector;
  int64_t chunk_tokens = 0;
  int64_t candidates = 0;   ///< chunks that it chooses from
  int64_t kept_chunks = 0;  ///< of them; a stage that keeps all scores none and reads nothing
  int64_t keep_tokens = 0;  ///< its budget
  int64_t refresh_steps = 0;
  std::string rope;
  int64_t shared_rows = 0;  ///< rows of a prefill that share a choice, and so its cost; else 1
  int64_t read_bytes = 0;   ///< to score all candidates; of descent at most
};

/// One layer's step: its stages, what it attends to, and what it reads.
struct LayerStep {
  std::vector<StageReads> stages;
  Clock sink, selected, window, attended;  ///< tokens
  Clock read_bytes;
};

/// Layers that do the same.
struct LayerGroup {
  std::vector<int32_t> layers;
  std::string middle;  ///< dense, none, stages, dense_below, sliding_window
  std::optional<int64_t> trained_tokens;
  std::string rope;  ///< the style of rotary ids in attention
  LayerStep step;
  int64_t dense_bytes = 0;  ///< what one of them reads under the policy dense
};

/// Decode: a step of one token. Prefill: the query block that ends at the context.
struct PhaseSteps {
  int64_t rows = 0;
  std::vector<LayerGroup> groups;  ///< every layer is in one

  double AverageBytes() const;  ///< of all layers
  int64_t FreshBytes() const;
  int64_t DenseBytes() const;
};

/// Host memory of a session with room for max_tokens.
struct SessionMemory {
  int64_t page_bytes = 0;     ///< reserved in the pool
  int64_t summary_bytes = 0;  ///< of those pages, beside the pool; on the GPU where there is one
  int64_t table_bytes = 0;    ///< rotary tables, page ids, masks
};

struct Explanation {
  std::string name;
  SessionSpec spec;          ///< valid
  v1::AttentionPolicy wire;  ///< the spec's policy, for its names
  int64_t context_tokens = 0;
  PhaseSteps decode;
  PhaseSteps prefill;
  SessionMemory memory;
};

/// What a session asks for: model and policy checked and filled in, as a daemon would. `spec` has
/// model, policy and max_tokens.
absl::StatusOr<SessionSpec> MakeSpec(const v1::ModelShape& model,
                                     const v1::PolicySpec& policy,
                                     int64_t max_tokens,
                                     const EngineOptions& limits);

SessionMemory MemoryOf(const SessionSpec& spec, const EngineOptions& limits);

/// `spec` is valid; context_tokens in 1..spec.max_tokens, else INVALID_ARGUMENT.
absl::StatusOr<Explanation> Explain(const std::string& name,
                                    const SessionSpec& spec,
                                    int64_t context_tokens,
                                    const EngineOptions& limits);

/// The whole table.
std::string ExplanationText(const Explanation& explanation);
Json ExplanationJson(const Explanation& explanation);

/// A policy's decode phase in one line: what all but the early layers do.
std::string PolicyLine(const v1::AttentionPolicy& policy);

}  // namespace longshore::ctl
