"""Host memory of a session, by the daemon's own formulas (engine/session_size.cc)."""

from __future__ import annotations

import numpy as np

from longshore._proto.longshore.v1 import policy_pb2 as wire
from longshore.dtypes import DType
from longshore.model_shape import ModelShape
from longshore.policy.engine_data import LAYER_STATE_BYTES, MAX_PAGE_BYTES, SessionLimits
from longshore.policy.policy_check import PAGE_TOKENS, query_block_of
from longshore.policy.refusal import refuse

_ELEMENT_BYTES = {DType.F32: 4, DType.BF16: 2, DType.F16: 2}
_FLOAT_BYTES = 4
_ID_BYTES = 4
_FINE_ROPE_IDS = 64  # a rotary table has so many fine rows, and a coarse one for so many ids


def layers_of(phase: wire.PhasePolicy, layer: int) -> wire.LayerPolicy:
    """Stages and window of a layer."""
    return phase.early if layer < phase.first_layers else phase.rest


def token_bytes(shape: ModelShape) -> int:
    """Bytes of one token's key of one layer, all KV heads; its value has as many."""
    return shape.num_kv_heads * shape.head_dim * _ELEMENT_BYTES[shape.kv_dtype]


def page_bytes(shape: ModelShape) -> int:
    """Bytes of a page: 64 tokens of one layer, keys and values."""
    return 2 * PAGE_TOKENS * token_bytes(shape)


def pages_for(tokens: int) -> int:
    """Pages of so many tokens of one layer."""
    return -(-tokens // PAGE_TOKENS)


def session_pages(shape: ModelShape, max_tokens: int, limits: SessionLimits) -> int:
    """Pages that a session reserves when it is opened.

    Those of max_tokens for every layer; for one with a sliding window those of the window and two
    calls, the last one (which may be replayed) and the next, and one that is cut at both ends.
    """
    pages, whole = 0, pages_for(max_tokens)
    for layer in range(shape.num_layers):
        window = shape.sliding_window(layer)
        slides = 0 < window < max_tokens
        held = pages_for(window + 2 * limits.max_rows_per_prefill) + 1
        pages += min(whole, held) if slides else whole
    return pages


def table_bytes(shape: ModelShape, policy: wire.AttentionPolicy, max_tokens: int) -> int:
    """Bytes beside the pool from open to close: rotary tables, page ids, masks, learned sinks."""
    max_ids = max(max_tokens, _widest_window(shape, policy) + 2)
    table_rows = _FINE_ROPE_IDS + -(-max_ids // _FINE_ROPE_IDS)
    total = 0 if shape.sink_logits is None else _FLOAT_BYTES * int(np.size(shape.sink_logits))
    for rope in shape.rope_tables:
        total += 2 * _FLOAT_BYTES * len(rope.inv_freq) * table_rows
    for layer in range(shape.num_layers):
        masks = 0
        if shape.sliding_window(layer) == 0:  # two generations of what each stage keeps
            for stage in layers_of(policy.decode, layer).stages:
                kept = min(stage.keep_tokens, max_tokens) // stage.chunk_tokens
                masks += 2 * _ID_BYTES * kept
        page_ids = 2 * _ID_BYTES * pages_for(max_tokens)  # the kernels have a copy
        total += LAYER_STATE_BYTES + page_ids + masks
    return total


def _widest_window(shape: ModelShape, policy: wire.AttentionPolicy) -> int:
    phases = (policy.prefill, policy.decode)
    layers = range(shape.num_layers)
    return max(layers_of(phase, layer).window_tokens for phase in phases for layer in layers)


def check_page(shape: ModelShape) -> None:
    """Raises InvalidArgument if a page is larger than the pool can serve."""
    size = page_bytes(shape)
    if size > MAX_PAGE_BYTES:
        kind = f"of head_dim {shape.head_dim} in {shape.kv_dtype.value}"
        what = f"{shape.num_kv_heads} {kind} make pages of {size} bytes"
        refuse("model.num_kv_heads", f"{what}, the limit is {MAX_PAGE_BYTES}")


def check_session_size(
    shape: ModelShape, policy: wire.AttentionPolicy, max_tokens: int, limits: SessionLimits
) -> None:
    """Raises InvalidArgument if tables or scores of so long a session pass their limits."""
    tables = table_bytes(shape, policy, max_tokens)
    if tables > limits.max_table_bytes:
        what = f"{max_tokens} needs {tables} bytes of tables (rotary tables, page ids, masks)"
        refuse("max_tokens", f"{what}, the limit is {limits.max_table_bytes}")
    for name, phase in (("prefill", policy.prefill), ("decode", policy.decode)):
        parts = [("rest", phase.rest)]
        parts += [("early", phase.early)] if phase.first_layers > 0 else []
        for part, layers in parts:
            tokens = max(0, max_tokens - policy.sink_tokens - layers.window_tokens)
            for index, stage in enumerate(layers.stages):
                candidates = tokens // stage.chunk_tokens
                kept = min(stage.keep_tokens // stage.chunk_tokens, candidates)
                block = query_block_of(policy, stage) if name == "prefill" else policy.query_block
                rows = (block - 1) // policy.query_stride + 1  # that are scored
                scores = _FLOAT_BYTES * shape.num_heads * rows * candidates
                scores = 0 if kept == candidates else scores
                if scores > limits.max_score_bytes:
                    _refuse_scores(
                        f"{max_tokens} gives policy {name}.{part}.stages[{index}] {scores} bytes",
                        candidates,
                        limits.max_score_bytes,
                    )
                tokens = kept * stage.chunk_tokens


def _refuse_scores(what: str, candidates: int, limit: int) -> None:
    of = f"of scores for {candidates} candidates of a query block, the limit is {limit}"
    less = "fewer tokens, larger chunks, a larger query_stride or a smaller query_block need less"
    refuse("max_tokens", f"{what} {of}: {less}")
