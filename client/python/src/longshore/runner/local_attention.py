"""Dense causal attention in this process: float32 numpy, true positions, all keys in memory."""

from __future__ import annotations

import math

import numpy as np

from longshore.attention import Floats
from longshore.model_shape import ModelShape, Pairing, RopeTable
from longshore.runner.rope import rotate, turns

# A block of scores, [QUERY_BLOCK * heads per KV head, KEY_BLOCK], should stay in the L3 cache.
QUERY_BLOCK = 256
KEY_BLOCK = 1024


class LocalAttention:
    """An `Attention` that computes every query against every key before it."""

    def __init__(self, shape: ModelShape, max_tokens: int) -> None:
        """Memory is reserved for max_tokens at once, and used as tokens come."""
        self._rope = _plain_rope(shape)
        self._max_tokens = max_tokens
        self._lengths = [0] * shape.num_layers
        cache = (shape.num_kv_heads, max_tokens, shape.head_dim)
        # Keys are kept rotated: a true position never changes.
        self._keys = [np.empty(cache, dtype=np.float32) for _ in range(shape.num_layers)]
        self._values = [np.empty(cache, dtype=np.float32) for _ in range(shape.num_layers)]

    def prefill(self, layer: int, position: int, q: Floats, k: Floats, v: Floats) -> Floats:
        """See `Attention`. Raises ValueError also if max_tokens would be exceeded."""
        length = self._lengths[layer]
        if position != length:
            raise ValueError(f"layer {layer} holds {length} tokens, got position {position}")
        end = position + len(q)
        if end > self._max_tokens:
            raise ValueError(f"{end} tokens do not fit into max_tokens {self._max_tokens}")
        turn = turns(self._rope, position, len(q))
        self._keys[layer][:, position:end] = rotate(k, turn).swapaxes(0, 1)
        self._values[layer][:, position:end] = v.swapaxes(0, 1)
        self._lengths[layer] = end
        return causal_attention(
            rotate(q, turn), self._keys[layer][:, :end], self._values[layer][:, :end]
        )

    def decode(self, layer: int, position: int, q: Floats, k: Floats, v: Floats) -> Floats:
        """See `Attention`: dense attention makes no difference between the two."""
        return self.prefill(layer, position, q, k, v)

    def truncate(self, position: int) -> None:
        """See `Attention`."""
        if position < 0:
            raise ValueError(f"cannot truncate to position {position}")
        self._lengths = [min(length, position) for length in self._lengths]

    def close(self) -> None:
        """See `Attention`."""
        self._keys, self._values = [], []


def _plain_rope(shape: ModelShape) -> RopeTable:
    """The one RoPE table of a shape that asks for nothing else. Raises ValueError for others."""
    if len(shape.rope_tables) != 1 or any(shape.layer_rope_table):
        raise ValueError("LocalAttention rotates all layers by one RoPE table")
    rope = shape.rope_tables[0]
    if rope.pairing is not Pairing.INTERLEAVED:
        raise ValueError(f"LocalAttention rotates interleaved pairs, not {rope.pairing}")
    scaled = rope.attention_scaling != 1 or shape.softmax_scale or shape.logit_soft_cap
    if scaled or any(shape.layer_sliding_window) or shape.sink_logits is not None:
        raise ValueError("LocalAttention computes softmax(q k / sqrt(head_dim)) v alone")
    return rope


def causal_attention(q: Floats, keys: Floats, values: Floats) -> Floats:
    """softmax(q k / sqrt(head_dim)) v, where the queries belong to the last `rows` of the tokens.

    q             [rows, heads, head_dim]        rotated
    keys, values  [kv_heads, tokens, head_dim]   keys rotated
    result        [rows, heads, head_dim]
    """
    rows, num_heads, head_dim = q.shape
    num_kv_heads, tokens, _ = keys.shape
    group = num_heads // num_kv_heads
    first = tokens - rows
    q = q * np.float32(1 / math.sqrt(head_dim))
    out = np.empty_like(q)
    for kv_head in range(num_kv_heads):
        heads = slice(kv_head * group, (kv_head + 1) * group)
        for start in range(0, rows, QUERY_BLOCK):
            block = slice(start, min(start + QUERY_BLOCK, rows))
            end = first + block.stop  # the block's last query sees the tokens [0, end)
            attended = _attend_block(
                q[block, heads], keys[kv_head, :end], values[kv_head, :end], first + start
            )
            out[block, heads] = attended
    return out


def _attend_block(q: Floats, keys: Floats, values: Floats, position: int) -> Floats:
    """One KV head's queries at `position` and on, over keys in blocks, with a running softmax.

    q             [rows, group, head_dim]   scaled
    keys, values  [tokens, head_dim]
    result        [rows, group, head_dim]
    """
    rows, group, head_dim = q.shape
    queries = q.reshape(rows * group, head_dim)
    row_position = np.repeat(np.arange(position, position + rows), group)
    peak: Floats = np.full(
        (rows * group, 1), -np.inf, dtype=np.float32
    )  # running maximum of the scores
    total: Floats = np.zeros((rows * group, 1), dtype=np.float32)  # sum of exp(score - peak)
    mixed: Floats = np.zeros(
        (rows * group, head_dim), dtype=np.float32
    )  # sum of exp(score - peak) v
    for start in range(0, len(keys), KEY_BLOCK):
        key_block, value_block = keys[start : start + KEY_BLOCK], values[start : start + KEY_BLOCK]
        scores = queries @ key_block.T  # [rows * group, block]
        end = start + len(key_block)
        if end - 1 > position:  # some query must not see some key; key 0 is seen by all
            scores[np.arange(start, end) > row_position[:, np.newaxis]] = -np.inf
        new_peak = np.maximum(peak, scores.max(axis=1, keepdims=True))
        scores -= new_peak
        weights = np.exp(scores, out=scores)
        rescale = np.exp(peak - new_peak)
        total = total * rescale + weights.sum(axis=1, keepdims=True)
        mixed = mixed * rescale + weights @ value_block
        peak = new_peak
    return (mixed / total).reshape(rows, group, head_dim)
