#pragma once

#include <cstdint>

#include "engine/engine_options.h"
#include "engine/model_shape.h"
#include "engine/session.h"

namespace longshore {

/// Bytes of a page: kBlockTokens tokens of one layer, keys and values.
int64_t PageBytes(const ModelShape& model);

/// Pages of `tokens` tokens of one layer.
int64_t PagesFor(int64_t tokens);

/// Pages that a layer holds at most: those of max_tokens, or in a sliding-window layer of the
/// window and two calls of as many rows as one may have, the last one (which may be replayed) and
/// the next.
int64_t LayerPages(const SessionSpec& spec, int32_t layer, const EngineOptions& options);
/// Of all layers: what a session reserves when it is opened, unless it overcommits.
int64_t SessionPages(const SessionSpec& spec, const EngineOptions& options);

/// Rotary ids of a session are below this: every id of every style is at most the true position of
/// some token, or the window and one (pruning `relative`).
int64_t MaxRopeIds(const SessionSpec& spec);

/// What a session holds outside the pool from Open to Close: rotary tables, page ids, masks,
/// learned sinks. Much of it is only touched as the session grows.
int64_t TableBytes(const SessionSpec& spec);

/// Whether the memory that the session's shape, policy and length ask for is within the engine's
/// bounds: a page within a slab, tables and the scores of every pruning stage within their limits.
/// InvalidArgument names the field and both numbers. The spec must be valid otherwise.
absl::Status CheckSessionSize(const SessionSpec& spec, const EngineOptions& options);

}  // namespace longshore
