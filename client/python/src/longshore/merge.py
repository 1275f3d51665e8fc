"""Attention over sets of tokens that several sessions hold, from what each of them gave.

A prefix that many requests share can live in a session of its own, and each request in another: both
attend with the same queries, and the results are merged as if one had held all the tokens. Rotary
positions are each session's own, so this is exact for layers without them, and otherwise as good as
what the model makes of the positions that it is given.
"""

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

    A part is (out, lse), as a step with `want_lse=True` gives it. Of the steps all but one must leave the
    model's learned sinks out (`exclude_sink_logits=True`), for a sink counts once. The parts' shapes and
    types must be the same; the sums are in float32. ValueError names the part that does not fit.
    """
    parts = [Attended(*part) for part in parts]
    if not parts:
        raise ValueError("parts is empty")
    for number, part in enumerate(parts):
        if part.lse is None:
            raise ValueError(f"parts[{number}].lse is None: ask for it with want_lse=True")
        for name, array in (("out", part.out), ("lse", part.lse)):
            first = getattr(parts[0], name)
            if array.shape != first.shape or array.dtype != first.dtype:
                raise ValueError(
                    f"parts[{number}].{name} is {array.dtype} {array.shape}, "
                    f"parts[0].{name} is {first.dtype} {first.shape}"
                )
    lses = np.stack([np.asarray(part.lse, np.float32) for part in parts])  # [parts, rows, heads]
    lse = np.logaddexp.reduce(lses, axis=0)
    shares = np.exp(lses - lse)[..., None]
    out = sum(share * _floats(part.out) for share, part in zip(shares, parts, strict=True))
    return Attended(_as(out, parts[0].out.dtype), lse)


def _floats(out: Array) -> npt.NDArray[np.float32]:
    return from_bfloat16_bits(out) if out.dtype == np.uint16 else out.astype(np.float32)


def _as(out: npt.NDArray[np.float32], dtype: np.dtype[Any]) -> Array:
    return to_bfloat16_bits(out) if dtype == np.uint16 else out.astype(dtype)
