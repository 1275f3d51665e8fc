#include "engine/session.h"

#include <algorithm>

namespace longshore {

std::span<const PruningStage> SessionSpec::MaskStages(int32_t layer) const {
  if (model.SlidingWindow(layer) > 0) {
    return {};
  }
  return policy.Of(Phase::kDecode, layer).stages;
}

int64_t Session::MaxLayerTokens() const {
  int64_t longest = 0;
  for (const LayerState& layer : layers) {
    longest = std::max(longest, layer.tokens);
  }
  return longest;
}

RopeRows Session::RopeOf(int32_t layer) const {
  const int32_t table = spec.model.layer_rope_table[static_cast<size_t>(layer)];
  return table < 0 ? RopeRows{} : rope_tables[static_cast<size_t>(table)].rows();
}

const float* Session::SinkLogits(int32_t layer) const {
  if (sink_logits.data() == nullptr) {
    return nullptr;
  }
  return reinterpret_cast<const float*>(sink_logits.data()) +
         static_cast<int64_t>(layer) * spec.model.num_heads;
}

}  // namespace longshore
