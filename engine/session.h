#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/mask_cache.h"
#include "engine/model_shape.h"
#include "engine/page_table.h"
#include "engine/policy.h"
#include "engine/rope_table.h"

namespace longshore {

/// What a call does: keep keys and values, or attend as well.
enum class StepKind : uint8_t { kAppend, kPrefill, kDecode };

/// The last call that a layer applied, to recognise its replay.
struct LastCall {
  bool any = false;
  StepKind kind = StepKind::kAppend;
  int64_t position = 0;
  int64_t rows = 0;
  uint64_t append_id = 0;
};

/// One layer of a session: how long it is, where its pages are, what was selected last.
struct LayerState {
  int64_t tokens = 0;
  PageTable pages;  ///< of all tokens; those behind a sliding window are expired, and freed
  MaskCache mask;
  LastCall last_call;
};

/// What is asked for when a session is opened. Checked by Engine::Open.
struct SessionSpec {
  std::string name;  ///< for people; need not be unique
  ModelShape model;
  AttentionPolicy policy;
  int64_t max_tokens = 0;   ///< the longest that a layer may become
  bool overcommit = false;  ///< reserve no pages ahead

  /// The stages whose selection a layer keeps between decode steps: none behind a sliding window.
  std::span<const PruningStage> MaskStages(int32_t layer) const;
};

/// One sequence. Owned by Engine; not thread-safe.
struct Session {
  uint64_t id = 0;
  SessionSpec spec;
  std::vector<RopeTable> rope_tables;  ///< [spec.model.rope_tables]
  std::vector<LayerState> layers;      ///< [num_layers]
  int64_t page_bytes = 0;
  int64_t table_bytes = 0;     ///< outside the pool
  int64_t reserved_pages = 0;  ///< promised by the pool and not yet in use
  Buffer sink_logits;          ///< [num_layers, num_heads] f32, or empty

  /// Learned sink logits of a layer: [num_heads], or null.
  const float* SinkLogits(int32_t layer) const;
  /// The longest layer's length.
  int64_t MaxLayerTokens() const;
  /// The rotary table of a layer as kernels see it; no pairs for a layer without.
  RopeRows RopeOf(int32_t layer) const;
};

}  // namespace longshore
