#include "client/cpp/ctl/explain.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <absl/strings/str_cat.h>

#include "client/cpp/ctl/text.h"
#include "engine/algo/regions.h"
#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/core/math.h"
#include "engine/engine.h"
#include "engine/session_size.h"
#include "service/convert_model.h"
#include "service/convert_policy.h"

namespace longshore::ctl {
namespace {

std::string StyleName(v1::RopeStyle style) {
  return LowerName(v1::RopeStyle_Name(style), "ROPE_STYLE_");
}

// Keys on the longest way of a head down a chunk. A chunk of n tokens is halved into
// floor((n - 1) / 2) and the rest until two are left or one. Stood for by its first token, the left
// half is known from its parent; by its middle one, each half is mostly another key.
int64_t DescentKeys(const PruningStage& stage) {
  int64_t levels = 0;
  for (int64_t tokens = stage.chunk_tokens; tokens > 2; tokens -= (tokens - 1) / 2) {
    ++levels;
  }
  return stage.representative == DescentRepresentative::kMiddle ? Max(1, 2 * levels) : 1 + levels;
}

// A policy on a model at a context, in one phase.
class PhaseView {
 public:
  PhaseView(const Explanation& of, Phase phase, int64_t first_position)
      : of_(of),
        decodes_(phase == Phase::kDecode),
        policy_(decodes_ ? of.spec.policy.decode : of.spec.policy.prefill),
        wire_(decodes_ ? of.wire.decode() : of.wire.prefill()),
        first_position_(first_position),
        end_(of.context_tokens) {}

  PhaseSteps Steps() const {
    PhaseSteps steps{.rows = end_ - first_position_, .groups = {}};
    for (const std::vector<int32_t>& layers : AlikeLayers()) {
      steps.groups.push_back(Group(layers));
    }
    return steps;
  }

 private:
  // Rows that share a choice of a stage with the block: the first one, and how many.
  struct Sharing {
    int64_t first_position = 0;
    int64_t rows = 1;
  };
  // What the layers of a group have in common.
  struct Layers {
    const LayerPolicy* policy = nullptr;
    const v1::LayerPolicy* wire = nullptr;
    bool beyond = false;
    int64_t alike_from = 0;  // of a prefill: no block before has stages and these rotary styles
  };

  const ModelShape& model() const { return of_.spec.model; }
  int64_t KeyBytes() const {
    return int64_t{model().num_kv_heads} * model().head_dim * SizeOf(model().kv_dtype);
  }
  int64_t Rows() const { return decodes_ ? 1 : of_.spec.policy.query_block; }

  std::optional<int64_t> TrainedTokens(int32_t layer) const {
    const RopeSpec* rope = model().RopeOf(layer);
    return rope == nullptr ? std::nullopt : std::optional<int64_t>(rope->trained_tokens);
  }

  std::vector<std::vector<int32_t>> AlikeLayers() const {
    std::map<std::tuple<bool, int64_t, std::optional<int64_t>>, size_t> index;
    std::vector<std::vector<int32_t>> groups;
    for (int32_t layer = 0; layer < model().num_layers; ++layer) {
      const int64_t window = model().SlidingWindow(layer);
      // Where a window slides neither stages nor the trained length have a say.
      const bool early = layer < policy_.first_layers && window == 0;
      const auto key = std::tuple(early, window, window == 0 ? TrainedTokens(layer) : std::nullopt);
      const auto [found, added] = index.try_emplace(key, groups.size());
      if (added) {
        groups.emplace_back();
      }
      groups[found->second].push_back(layer);
    }
    return groups;
  }

  bool ExtendsFromStart(int64_t trained) const {
    return of_.spec.policy.extension == Extension::kFromStart && of_.spec.max_tokens > trained;
  }

  Layers LayersOf(int32_t layer) const {
    Layers layers{.policy = &policy_.Of(layer),
                  .wire = layer < policy_.first_layers ? &wire_.early() : &wire_.rest()};
    const std::optional<int64_t> trained = TrainedTokens(layer);
    layers.beyond = trained.has_value() && (ExtendsFromStart(*trained) || end_ > *trained);
    const int64_t alike_after = !layers.beyond               ? of_.spec.policy.dense_below_tokens
                                : ExtendsFromStart(*trained) ? 0
                                                             : *trained;
    layers.alike_from = alike_after / Rows() * Rows();
    return layers;
  }

  std::string MiddleName(int32_t layer, const Layers& layers) const {
    if (model().SlidingWindow(layer) > 0) {
      return "sliding_window";
    }
    const int64_t dense_below = of_.spec.policy.dense_below_tokens;
    const int64_t limit = Min(dense_below, TrainedTokens(layer).value_or(dense_below));
    if (layers.policy->middle == Middle::kStages && !layers.beyond && end_ <= limit) {
      return "dense_below";
    }
    return LowerName(v1::Middle_Name(layers.wire->middle()), "MIDDLE_");
  }

  std::string AttentionRope(const std::string& middle, const Layers& layers) const {
    if (middle != "stages" && middle != "none") {
      return "true_positions";
    }
    const v1::RopeChoice& rope = layers.wire->has_attention_rope() ? layers.wire->attention_rope()
                                                                   : of_.wire.attention_rope();
    return StyleName(layers.beyond ? rope.beyond_trained() : rope.within_trained());
  }

  LayerGroup Group(const std::vector<int32_t>& members) const {
    const int32_t layer = members.front();
    const Layers layers = LayersOf(layer);
    LayerGroup group{.layers = members,
                     .middle = MiddleName(layer, layers),
                     .trained_tokens = TrainedTokens(layer),
                     .rope = {},
                     .step = {},
                     .dense_bytes = 2 * KeyBytes() * end_};
    group.rope = AttentionRope(group.middle, layers);
    if (group.middle == "sliding_window") {
      group.step = WholeStep(OldestSeen(first_position_, model().SlidingWindow(layer)));
      group.dense_bytes = group.step.read_bytes.fresh();
    } else if (group.middle == "dense" || group.middle == "dense_below") {
      group.step = WholeStep(0);
    } else {
      group.step = PrunedStep(layers);
    }
    return group;
  }

  // Attends to every token from `first_token` on.
  LayerStep WholeStep(int64_t first_token) const {
    LayerStep step;
    Attend(0, 0, end_ - first_token, 0, &step);
    return step;
  }

  // Attends to sink, window and what the stages keep, at every age of the coarsest stage's choice.
  LayerStep PrunedStep(const Layers& layers) const {
    const std::vector<PruningStage>& stages = layers.policy->stages;
    // No more steps than there have been.
    const int64_t ages = decodes_ && !stages.empty() ? Min(stages.front().refresh_steps, end_) : 1;
    LayerStep step;
    for (int64_t age = 0; age < ages; ++age) {
      const int64_t refreshed_at =
          (stages.empty() ? first_position_ : SharingOf(stages.front(), layers).first_position) -
          age;
      const int64_t sink_tokens = of_.spec.policy.sink_tokens;
      const int64_t middle = SplitRegions(refreshed_at, sink_tokens, layers.policy->window_tokens,
                                          layers.policy->MiddleChunkTokens())
                                 .MiddleTokens();
      int64_t stage_bytes = 0;
      const int64_t kept = RunStages(layers, middle, age, &stage_bytes, &step);
      Attend(Min(sink_tokens, end_), stages.empty() ? 0 : kept, Max(0, end_ - sink_tokens - middle),
             stage_bytes, &step);
    }
    return step;
  }

  // Tokens that the stages keep of `tokens`, and what those read that run at this age. At age 0
  // every stage runs, and is described.
  int64_t RunStages(const Layers& layers,
                    int64_t tokens,
                    int64_t age,
                    int64_t* stage_bytes,
                    LayerStep* step) const {
    for (size_t index = 0; index < layers.policy->stages.size(); ++index) {
      const PruningStage& stage = layers.policy->stages[index];
      const int64_t candidates = tokens / stage.chunk_tokens;
      const int64_t kept = Min(stage.KeepChunks(), candidates);
      const int64_t scored = kept == candidates ? 0 : candidates * ChunkBytes(stage);
      const int64_t shared_rows = SharingOf(stage, layers).rows;
      if (age % stage.refresh_steps == 0) {
        *stage_bytes += scored / (shared_rows / Rows());
      }
      if (age == 0) {
        const v1::Stage& wire = layers.wire->stages(static_cast<int>(index));
        step->stages.push_back(
            {.selector = LowerName(v1::Selector_Name(wire.selector()), "SELECTOR_"),
             .chunk_tokens = stage.chunk_tokens,
             .candidates = candidates,
             .kept_chunks = kept,
             .keep_tokens = stage.keep_tokens,
             .refresh_steps = stage.refresh_steps,
             .rope = StyleName(layers.beyond ? wire.rope().beyond_trained()
                                             : wire.rope().within_trained()),
             .shared_rows = shared_rows,
             .read_bytes = scored});
      }
      tokens = kept * stage.chunk_tokens;
    }
    return tokens;
  }

  // Those within an absolute multiple of the stage's query block, in a prefill that goes on.
  Sharing SharingOf(const PruningStage& stage, const Layers& layers) const {
    if (decodes_) {
      return {.first_position = first_position_, .rows = 1};
    }
    const int64_t stage_rows = of_.spec.policy.QueryBlockOf(stage);
    const int64_t start = first_position_ / stage_rows * stage_rows;
    const int64_t first = Max(start, layers.alike_from);
    return {.first_position = first, .rows = start + stage_rows - first};
  }

  // Bytes that scoring one candidate reads.
  int64_t ChunkBytes(const PruningStage& stage) const {
    switch (stage.selector) {
      case Selector::kBounds: return 2 * KeyBytes();  // elementwise minimum and maximum
      case Selector::kExact: return stage.chunk_tokens * KeyBytes();
      case Selector::kProbes: return stage.probes * KeyBytes();
      case Selector::kDescent: {
        const int64_t head_bytes = KeyBytes() / model().num_kv_heads;
        return Min(DescentKeys(stage) * model().num_heads * head_bytes,
                   stage.chunk_tokens * KeyBytes());  // heads of a group may meet
      }
    }
    return 0;
  }

  void Attend(int64_t sink,
              int64_t selected,
              int64_t window,
              int64_t stage_bytes,
              LayerStep* step) const {
    const int64_t attended = sink + selected + window;
    step->sink.values.push_back(sink);
    step->selected.values.push_back(selected);
    step->window.values.push_back(window);
    step->attended.values.push_back(attended);
    step->read_bytes.values.push_back(stage_bytes + attended * 2 * KeyBytes());
  }

  const Explanation& of_;
  bool decodes_;
  const PhasePolicy& policy_;
  const v1::PhasePolicy& wire_;
  int64_t first_position_;
  int64_t end_;
};

}  // namespace

double PhaseSteps::AverageBytes() const {
  double bytes = 0;
  for (const LayerGroup& group : groups) {
    bytes += static_cast<double>(group.layers.size()) * group.step.read_bytes.average();
  }
  return bytes;
}

int64_t PhaseSteps::FreshBytes() const {
  int64_t bytes = 0;
  for (const LayerGroup& group : groups) {
    bytes += static_cast<int64_t>(group.layers.size()) * group.step.read_bytes.fresh();
  }
  return bytes;
}

int64_t PhaseSteps::DenseBytes() const {
  int64_t bytes = 0;
  for (const LayerGroup& group : groups) {
    bytes += static_cast<int64_t>(group.layers.size()) * group.dense_bytes;
  }
  return bytes;
}

absl::StatusOr<SessionSpec> MakeSpec(const v1::ModelShape& model,
                                     const v1::PolicySpec& policy,
                                     int64_t max_tokens,
                                     const EngineOptions& limits) {
  SessionSpec spec;
  ASSIGN_OR_RETURN(spec.model, ModelFromWire(model, "model"));
  ASSIGN_OR_RETURN(spec.policy, PolicyFromWire(policy, "policy"));
  if (max_tokens < 1 || max_tokens > limits.max_tokens_per_session) {
    return InvalidField("max_tokens", max_tokens, " is not in 1..", limits.max_tokens_per_session);
  }
  spec.max_tokens = max_tokens;
  RETURN_IF_ERROR(CheckSessionSize(spec, limits));
  return spec;
}

SessionMemory MemoryOf(const SessionSpec& spec, const EngineOptions& limits) {
  const int64_t page_bytes = SessionPages(spec, limits) * PageBytes(spec.model);
  // A summary of each kind for the keys of a page: as much of a page as of a whole granule.
  const int64_t summary_share = KvView::kGranuleBytes / Engine::SummaryBytes(KvView::kGranuleBytes);
  return {.page_bytes = page_bytes,
          .summary_bytes = page_bytes / summary_share,
          .table_bytes = TableBytes(spec)};
}

absl::StatusOr<Explanation> Explain(const std::string& name,
                                    const SessionSpec& spec,
                                    int64_t context_tokens,
                                    const EngineOptions& limits) {
  if (context_tokens < 1 || context_tokens > spec.max_tokens) {
    return InvalidField("context_tokens", context_tokens, " is not in 1..max_tokens ",
                        spec.max_tokens);
  }
  Explanation explanation{.name = name,
                          .spec = spec,
                          .wire = PolicyToWire(spec.policy),
                          .context_tokens = context_tokens,
                          .decode = {},
                          .prefill = {},
                          .memory = MemoryOf(spec, limits)};
  const int64_t last = context_tokens - 1;
  const int64_t block = spec.policy.query_block;
  explanation.decode = PhaseView(explanation, Phase::kDecode, last).Steps();
  explanation.prefill = PhaseView(explanation, Phase::kPrefill, last / block * block).Steps();
  return explanation;
}

}  // namespace longshore::ctl
