"""Attention over sets of tokens that several sessions hold, from what each of them gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from longshore.dtypes import Array, from_bfloat16_bits, to_bfloat16_bits
from longshore.steps import Attended


def merge(parts: Sequence[tuple[Array, Array | None]]) -> Attended:
    """Merges attention over disjoint sets of tokens by the logarithms of their denominators.

        lse = log(sum_i exp(lse_i))
        out = sum_i exp(lse_i - lse) out_i

    A part is (out, lse), as a step with `want_lse=True` gives it: [rows, heads, head_dim] and
    [rows, heads]. A part without tokens has lse -inf and out 0, as has the merger of none but such.
    Of the steps all but one must leave the model's learned sinks out (`exclude_sink_logits=True`), for
    a sink counts once. The parts' shapes and types must be the same; the sums are in float32.
    ValueError names the part that does not fit.

    A step attends to what its own session holds and to the rows that it appends. So a prefix that
    several requests share, in a session of its own, has to hold back its last token: each step of a
    request appends it with the request's query, and afterwards it is taken away again.

        for layer in ...:              # once: the prefix's n tokens, all but the last
            prefix.append(layer, k[:n - 1], v[:n - 1])

        for layer in ...:              # a step: one query; k_last and v_last of this layer
            shared = prefix.decode(layer, q, k_last, v_last, want_lse=True, exclude_sink_logits=True)
            own = request.decode(layer, q, k_new, v_new, want_lse=True)
            out, lse = merge([shared, own])
        prefix.truncate(n - 1)         # before the next step, of whichever request

    What that costs: a prefix serves one request at a time, a truncate a step, and every step runs all
    of the prefix's pruning stages, since a truncate forgets what they kept. Rows of a prefill cannot
    do it: of the prefix they would see what they append there causally, not all of it. They go one
    at a time, as decode. And each session counts rotary positions for itself: the query stands at
    n - 1 in the prefix. This is exact for layers without them, and otherwise as good as what the model
    makes of such positions.
    """
    if not parts:
        raise ValueError("parts is empty")
    outs = [out for out, _ in parts]
    lses = [_checked_lse(number, parts) for number in range(len(parts))]
    stacked = np.stack([np.asarray(lse, np.float32) for lse in lses])  # [parts, rows, heads]
    lse = np.logaddexp.reduce(stacked, axis=0)
    shares = np.exp(stacked - np.where(np.isneginf(lse), 0, lse))[..., None]
    total = np.zeros(outs[0].shape, np.float32)
    for share, out in zip(shares, outs, strict=True):
        total += share * _floats(out)
    return Attended(_as(total, outs[0].dtype), lse)


def _checked_lse(number: int, parts: Sequence[tuple[Array, Array | None]]) -> Array:
    """The lse of a part that fits the first one, which was checked before."""
    (out, lse), (first_out, first_lse) = parts[number], parts[0]
    if lse is None or first_lse is None:
        raise ValueError(f"parts[{number}].lse is None: ask for it with want_lse=True")
    _check_alike(number, "out", out, first_out)
    if lse.shape != out.shape[:-1]:
        rows = f"parts[{number}].out {out.shape} has [rows, heads] {out.shape[:-1]}"
        raise ValueError(f"parts[{number}].lse is {lse.shape}, {rows}")
    _check_alike(number, "lse", lse, first_lse)
    return lse


def _check_alike(number: int, name: str, array: Array, first: Array) -> None:
    if array.shape != first.shape or array.dtype != first.dtype:
        raise ValueError(
            f"parts[{number}].{name} is {array.dtype} {array.shape}, "
            f"parts[0].{name} is {first.dtype} {first.shape}"
        )


def _floats(out: Array) -> npt.NDArray[np.float32]:
    return from_bfloat16_bits(out) if out.dtype == np.uint16 else out.astype(np.float32)


def _as(out: npt.NDArray[np.float32], dtype: np.dtype[Any]) -> Array:
    return to_bfloat16_bits(out) if dtype == np.uint16 else out.astype(dtype)
