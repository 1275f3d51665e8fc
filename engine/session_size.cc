#include "engine/session_size.h"

#include <string>

#include "engine/algo/regions.h"
#include "engine/core/error.h"
#include "engine/core/math.h"
#include "engine/kv/page_pool.h"

namespace longshore {
namespace {

// Scores of one stage of a query block, which a backend keeps all at once to rank them:
// [num_heads, scored rows, candidates] f32.
int64_t ScoreBytes(const SessionSpec& spec, int32_t query_block, int64_t candidates) {
  const int32_t rows = ScoredRows(query_block, spec.policy.query_stride);
  return static_cast<int64_t>(sizeof(float)) * spec.model.num_heads * rows * candidates;
}

absl::Status CheckScores(const SessionSpec& spec,
                         const LayerPolicy& layers,
                         Phase phase,
                         absl::string_view field,
                         int64_t max_bytes) {
  int64_t tokens = Max(0, spec.max_tokens - spec.policy.sink_tokens - layers.window_tokens);
  for (size_t index = 0; index < layers.stages.size(); ++index) {
    const PruningStage& stage = layers.stages[index];
    const int64_t candidates = tokens / stage.chunk_tokens;
    const int64_t kept = Min(stage.KeepChunks(), candidates);
    const int32_t query_block =
        phase == Phase::kPrefill ? spec.policy.QueryBlockOf(stage) : spec.policy.query_block;
    const int64_t bytes = kept == candidates ? 0 : ScoreBytes(spec, query_block, candidates);
    if (bytes > max_bytes) {
      return InvalidField("max_tokens", spec.max_tokens, " gives policy ", field, ".stages[", index,
                          "] ", bytes, " bytes of scores for ", candidates,
                          " candidates of a query block, the limit is ", max_bytes,
                          ": fewer tokens, larger chunks, a larger query_stride or a smaller "
                          "query_block need less");
    }
    tokens = kept * stage.chunk_tokens;
  }
  return absl::OkStatus();
}

absl::Status CheckScores(const SessionSpec& spec, Phase phase, int64_t max_bytes) {
  const bool prefills = phase == Phase::kPrefill;
  const absl::string_view field = prefills ? "prefill" : "decode";
  const PhasePolicy& policy = prefills ? spec.policy.prefill : spec.policy.decode;
  RETURN_IF_ERROR(CheckScores(spec, policy.rest, phase, absl::StrCat(field, ".rest"), max_bytes));
  return policy.first_layers == 0
             ? absl::OkStatus()
             : CheckScores(spec, policy.early, phase, absl::StrCat(field, ".early"), max_bytes);
}

}  // namespace

int64_t PageBytes(const ModelShape& model) {
  return int64_t{2} * kBlockTokens * model.num_kv_heads * model.head_dim * SizeOf(model.kv_dtype);
}

int64_t PagesFor(int64_t tokens) { return CeilDiv(tokens, kBlockTokens); }

int64_t LayerPages(const SessionSpec& spec, int32_t layer, const EngineOptions& options) {
  const int64_t pages = PagesFor(spec.max_tokens);
  const int64_t window = spec.model.SlidingWindow(layer);
  if (window == 0 || window >= spec.max_tokens) {
    return pages;
  }
  // The last page and the first one may hold one token each of what is needed.
  const int64_t most_rows = Max(options.max_rows_per_prefill, options.max_rows_per_decode_item);
  return Min(pages, PagesFor(window + 2 * most_rows) + 1);
}

int64_t SessionPages(const SessionSpec& spec, const EngineOptions& options) {
  int64_t pages = 0;
  for (int32_t layer = 0; layer < spec.model.num_layers; ++layer) {
    pages += LayerPages(spec, layer, options);
  }
  return pages;
}

int64_t MaxRopeIds(const SessionSpec& spec) {
  int64_t max_ids = spec.max_tokens;
  for (int32_t layer = 0; layer < spec.model.num_layers; ++layer) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      max_ids = Max(max_ids, spec.policy.Of(phase, layer).window_tokens + 2);
    }
  }
  return max_ids;
}

int64_t TableBytes(const SessionSpec& spec) {
  int64_t bytes = static_cast<int64_t>(spec.model.sink_logits.size() * sizeof(float));
  for (const RopeSpec& rope : spec.model.rope_tables) {
    bytes += RopeTable::BytesFor(static_cast<int64_t>(rope.inv_freq.size()), MaxRopeIds(spec));
  }
  const int64_t page_ids = PageTable::BytesFor(PagesFor(spec.max_tokens));
  for (int32_t layer = 0; layer < spec.model.num_layers; ++layer) {
    bytes += static_cast<int64_t>(sizeof(LayerState)) + page_ids +
             MaskCache::BytesFor(spec.MaskStages(layer), spec.max_tokens);
  }
  return bytes;
}

absl::Status CheckSessionSize(const SessionSpec& spec, const EngineOptions& options) {
  const ModelShape& model = spec.model;
  if (PageBytes(model) > PagePool::kDefaultSlabBytes) {
    return InvalidField("model.num_kv_heads", model.num_kv_heads, " of head_dim ", model.head_dim,
                        " in ", NameOf(model.kv_dtype), " make pages of ", PageBytes(model),
                        " bytes, the limit is ", PagePool::kDefaultSlabBytes);
  }
  if (TableBytes(spec) > options.max_table_bytes) {
    return InvalidField("max_tokens", spec.max_tokens, " needs ", TableBytes(spec),
                        " bytes of tables (rotary tables, page ids, masks), the limit is ",
                        options.max_table_bytes);
  }
  RETURN_IF_ERROR(CheckScores(spec, Phase::kPrefill, options.max_score_bytes));
  return CheckScores(spec, Phase::kDecode, options.max_score_bytes);
}

}  // namespace longshore
