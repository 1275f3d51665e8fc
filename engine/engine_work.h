#pragma once

#include <cstdint>

#include "engine/engine.h"

namespace longshore {

/// One item of a call on its way through Submit. Private to Engine's own files.
struct Engine::Work {
  StepItem item;
  Session* session = nullptr;
  LayerState* layer = nullptr;
  int32_t layer_index = 0;
  int32_t first_row = 0;
  bool replay = false;
  bool mask_begun = false;  ///< the layer's mask is no longer what it was before the call
  KvView kv;
  ItemPlan plan;
};

}  // namespace longshore
