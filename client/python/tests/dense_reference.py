"""Dense causal attention in float64, straight from the equations: what policy `dense` must give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from longshore import (
    DType,
    ModelShape,
    Pairing,
    RopeTable,
    from_bfloat16_bits,
    to_bfloat16_bits,
)

Array = np.ndarray[Any, np.dtype[Any]]


def to_float64(array: Array) -> Array:
    """float32, float16, or bfloat16 as bits or as ml_dtypes' type."""
    if array.dtype == np.uint16:
        return from_bfloat16_bits(array).astype(np.float64)
    return array.astype(np.float64)


def rounded(array: Array, dtype: DType) -> Array:
    """float32 values as an array of `dtype`, bfloat16 as its bits."""
    if dtype is DType.BF16:
        return to_bfloat16_bits(array)
    return array.astype(np.float32 if dtype is DType.F32 else np.float16)


def rotate(x: Array, table: RopeTable, position: int) -> Array:
    """x [rows, heads, head_dim] whose first row is at `position`, turned by the table."""
    inv_freq = np.asarray(table.inv_freq, np.float64)
    half = len(inv_freq)
    angles = np.outer(np.arange(position, position + len(x)), inv_freq)[:, np.newaxis]
    cos, sin = np.cos(angles), np.sin(angles)  # [rows, 1, half]
    if table.pairing is Pairing.HALVES:
        first, second = slice(0, half), slice(half, 2 * half)
    else:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    out[..., : 2 * half] *= table.attention_scaling
    return out


def dense_attention(
    model: ModelShape, q: Array, keys: Array, values: Array, window: int = 0
) -> tuple[Array, Array]:
    """q belongs to the last rows of the tokens; all unrotated and float64, table 0 in every layer. Of the
    tokens up to its own a row sees the last `window`, all of them for 0.

    q             [rows, heads, head_dim]
    keys, values  [tokens, kv_heads, head_dim]
    out           [rows, heads, head_dim]
    lse           [rows, heads]
    """
    first = len(keys) - len(q)
    if model.rope_tables:
        q = rotate(q, model.rope_tables[0], first)
        keys = rotate(keys, model.rope_tables[0], 0)
    group = model.num_heads // model.num_kv_heads
    scale = model.softmax_scale or 1 / math.sqrt(model.head_dim)
    out, lse = np.empty(q.shape), np.empty(q.shape[:2])
    for row in range(len(q)):
        end = first + row + 1
        seen = slice(max(0, end - window) if window else 0, end)
        for head in range(model.num_heads):
            scores = keys[seen, head // group] @ q[row, head] * scale
            peak = scores.max()
            weights = np.exp(scores - peak)
            lse[row, head] = peak + math.log(weights.sum())
            out[row, head] = weights @ values[seen, head // group] / weights.sum()
    return out, lse


def gaussian(model: ModelShape, rows: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """q [rows, heads, head_dim] in query_dtype, k and v [rows, kv_heads, head_dim] in kv_dtype."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((rows, model.num_heads, model.head_dim), dtype=np.float32)
    k, v = rng.standard_normal((2, rows, model.num_kv_heads, model.head_dim), dtype=np.float32)
    return (
        rounded(2 * q, model.query_dtype),
        rounded(k, model.kv_dtype),
        rounded(v, model.kv_dtype),
    )
