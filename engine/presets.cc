#include <array>

#include "engine/core/error.h"
#include "engine/policy.h"

namespace longshore {
namespace {

constexpr int64_t kSinkTokens = 256;
constexpr int64_t kWindowTokens = 1024;
constexpr int64_t kDenseBelowTokens = 8192;

// Inside the trained length true positions keep 15-20 points more attention mass; beyond it the
// styles keep every id inside what the model has seen (design section 4).
constexpr RopeChoice kPruningRope = {.within_trained = RopeStyle::kTruePositions,
                                     .beyond_trained = RopeStyle::kRelative};
constexpr RopeChoice kAttentionRope = {.within_trained = RopeStyle::kTruePositions,
                                       .beyond_trained = RopeStyle::kStreaming};

AttentionPolicy OnePolicy(const LayerPolicy& layers) {
  AttentionPolicy policy;
  policy.sink_tokens = kSinkTokens;
  policy.query_block = 64;
  policy.query_stride = 4;
  policy.attention_rope = kAttentionRope;
  policy.extension = Extension::kFromStart;
  policy.prefill.rest = layers;
  policy.decode.rest = layers;
  return policy;
}

// `bounds` of 64 tokens, then `exact` of 8: both stream.
AttentionPolicy BoundsThenExact(int32_t coarse_tokens,
                                int32_t fine_tokens,
                                int32_t coarse_steps,
                                int32_t fine_steps) {
  AttentionPolicy policy = OnePolicy({.middle = Middle::kStages,
                                      .window_tokens = kWindowTokens,
                                      .stages = {{.selector = Selector::kBounds,
                                                  .chunk_tokens = 64,
                                                  .keep_tokens = coarse_tokens,
                                                  .refresh_steps = coarse_steps,
                                                  .rope = kPruningRope},
                                                 {.selector = Selector::kExact,
                                                  .chunk_tokens = 8,
                                                  .keep_tokens = fine_tokens,
                                                  .refresh_steps = fine_steps,
                                                  .rope = kPruningRope}}});
  policy.dense_below_tokens = kDenseBelowTokens;
  return policy;
}

AttentionPolicy Standard() { return BoundsThenExact(8192, 2048, 16, 4); }
AttentionPolicy Wide() { return BoundsThenExact(16384, 4096, 16, 4); }
AttentionPolicy Fast() { return BoundsThenExact(8192, 2048, 32, 8); }
AttentionPolicy Flash() { return BoundsThenExact(8192, 2048, 96, 8); }

AttentionPolicy Dense() {
  return OnePolicy({.middle = Middle::kDense, .window_tokens = kWindowTokens, .stages = {}});
}

AttentionPolicy Streaming() {
  return OnePolicy({.middle = Middle::kNone, .window_tokens = kWindowTokens, .stages = {}});
}

// A stage of InfiniteHiP: how many tokens of a chunk size a layer keeps, and for how long.
struct PaperStage {
  int32_t chunk_tokens;
  int32_t keep_tokens;
  int32_t refresh_steps;
};

// The paper's early layers prune by chunk ordinals, the others at a constant distance, whatever the
// length of the context.
constexpr int32_t kPaperEarlyLayers = 3;

LayerPolicy PaperLayers(const std::vector<PaperStage>& stages, RopeStyle style) {
  LayerPolicy layers{.middle = Middle::kStages, .window_tokens = kWindowTokens, .stages = {}};
  for (const PaperStage& stage : stages) {
    layers.stages.push_back({.selector = Selector::kDescent,
                             .chunk_tokens = stage.chunk_tokens,
                             .keep_tokens = stage.keep_tokens,
                             .refresh_steps = stage.refresh_steps,
                             .rope = {.within_trained = style, .beyond_trained = style}});
  }
  return layers;
}

PhasePolicy PaperPhase(const std::vector<PaperStage>& early, const std::vector<PaperStage>& rest) {
  return {.rest = PaperLayers(rest, RopeStyle::kRelative),
          .first_layers = kPaperEarlyLayers,
          .early = PaperLayers(early, RopeStyle::kChunkIndexed)};
}

PhasePolicy Paper3k(int32_t first_steps, int32_t second_steps, int32_t third_steps) {
  return PaperPhase({{256, 32768, first_steps}, {32, 8192, second_steps}, {8, 4096, third_steps}},
                    {{256, 32768, first_steps}, {32, 8192, second_steps}, {8, 2048, third_steps}});
}

PhasePolicy Paper5k() {
  const std::vector<PaperStage> stages = {{64, 32768, 16}, {32, 16384, 8}, {16, 4096, 4}};
  return PaperPhase(stages, stages);
}

AttentionPolicy Paper(const PhasePolicy& prefill, const PhasePolicy& decode) {
  AttentionPolicy policy = OnePolicy({});
  policy.ranking = Ranking::kScoreMax;
  policy.query_stride = 1;
  policy.prefill = prefill;
  policy.decode = decode;
  return policy;
}

AttentionPolicy Paper3kNormal() { return Paper(Paper3k(16, 8, 4), Paper3k(16, 8, 4)); }
AttentionPolicy Paper3kFast() { return Paper(Paper3k(32, 16, 8), Paper3k(32, 16, 8)); }
AttentionPolicy Paper3kFlash() { return Paper(Paper3k(96, 24, 8), Paper3k(96, 24, 8)); }
AttentionPolicy Paper5kNormal() { return Paper(Paper5k(), Paper5k()); }
AttentionPolicy Paper3k5k() { return Paper(Paper3k(16, 8, 4), Paper5k()); }

AttentionPolicy Paper16k() {
  PhasePolicy phase = PaperPhase({{32, 16384, 4}}, {{32, 16384, 4}});
  phase.early.window_tokens = int64_t{128} << 10;
  return Paper(phase, phase);
}

struct Preset {
  absl::string_view name;
  AttentionPolicy (*make)();
};
constexpr auto kPresets = std::to_array<Preset>({
    {"standard", Standard},
    {"wide", Wide},
    {"fast", Fast},
    {"flash", Flash},
    {"dense", Dense},
    {"streaming", Streaming},
    {"paper-3k", Paper3kNormal},
    {"paper-3k-fast", Paper3kFast},
    {"paper-3k-flash", Paper3kFlash},
    {"paper-5k", Paper5kNormal},
    {"paper-3k-5k", Paper3k5k},
    {"paper-16k", Paper16k},
});

}  // namespace

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  names.reserve(kPresets.size());
  for (const Preset& preset : kPresets) {
    names.emplace_back(preset.name);
  }
  return names;
}

absl::StatusOr<AttentionPolicy> PresetPolicy(absl::string_view name) {
  std::string known;
  for (const Preset& preset : kPresets) {
    if (preset.name == name) {
      return preset.make();
    }
    absl::StrAppend(&known, known.empty() ? "" : ", ", preset.name);
  }
  return MakeError(absl::StatusCode::kNotFound,
                   absl::StrCat("preset \"", name, "\" is not one of ", known),
                   {.reason = "PRESET_NOT_FOUND", .field = "preset", .metadata = {}});
}

}  // namespace longshore
