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

AttentionPolicy Standard() {
  AttentionPolicy policy = OnePolicy({.middle = Middle::kStages,
                                      .window_tokens = kWindowTokens,
                                      .stages = {{.selector = Selector::kBounds,
                                                  .chunk_tokens = 64,
                                                  .keep_tokens = 8192,
                                                  .refresh_steps = 16,
                                                  .rope = kPruningRope},
                                                 {.selector = Selector::kExact,
                                                  .chunk_tokens = 8,
                                                  .keep_tokens = 2048,
                                                  .refresh_steps = 4,
                                                  .rope = kPruningRope}}});
  policy.dense_below_tokens = kDenseBelowTokens;
  return policy;
}

AttentionPolicy Dense() {
  return OnePolicy({.middle = Middle::kDense, .window_tokens = kWindowTokens, .stages = {}});
}

AttentionPolicy Streaming() {
  return OnePolicy({.middle = Middle::kNone, .window_tokens = kWindowTokens, .stages = {}});
}

struct Preset {
  absl::string_view name;
  AttentionPolicy (*make)();
};
constexpr std::array<Preset, 3> kPresets = {
    {{"standard", Standard}, {"dense", Dense}, {"streaming", Streaming}}};

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
