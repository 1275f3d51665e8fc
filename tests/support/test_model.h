#pragma once

#include <cstdint>

#include "engine/model_shape.h"
#include "engine/policy.h"
#include "tests/support/oracle_model.h"

namespace longshore {

/// Past every length that a test reaches.
inline constexpr int64_t kNeverBeyond = int64_t{1} << 30;

/// All of the head turned, as Llama does it: inv_freq[i] = 10000^(-2 i / rotary_dim).
RopeSpec TestRope(int32_t rotary_dim, int64_t trained_tokens = kNeverBeyond);

/// A table that turns nothing, exactly: inv_freq 0. With integers in q and k every score is exact.
RopeSpec IdentityRope(int32_t rotary_dim, int64_t trained_tokens = kNeverBeyond);

/// One layer in fp32 with TestRope, normalised.
ModelShape TestModel(int32_t num_heads = 2, int32_t num_kv_heads = 1, int32_t head_dim = 64);

/// `standard` on a small scale: S=64, W=128, bounds 64 keep 256 every 16 steps -> exact 8 keep 64
/// every 4 steps; dense_below 0. A context of 449 tokens is the shortest that the first stage
/// prunes.
AttentionPolicy SmallStandard();
/// One `exact` stage: S=64, W=64.
AttentionPolicy OneStage(int32_t chunk_tokens, int32_t keep_tokens, int32_t refresh_steps);
/// No stages, everything attended.
AttentionPolicy SmallDense();
/// Sink and window alone: S=64, W=128.
AttentionPolicy SmallStreaming();

/// The same for both phases and all layers.
void SetLayers(const LayerPolicy& layers, AttentionPolicy* policy);

/// What the oracle is told about one layer.
oracle::Model OracleModel(const ModelShape& model, int32_t layer);
oracle::Policy OraclePolicy(const AttentionPolicy& policy, Phase phase, int32_t layer);
oracle::Storage OracleStorage(DType dtype);

}  // namespace longshore
