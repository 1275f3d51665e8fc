"""The seam between a model runner and whoever computes its attention.

A runner opens an `Attention` for one sequence from its model's `ModelShape`; then, layer by layer, it hands
over the queries, keys and values of the new tokens and gets the attention output back. Queries and
keys are handed over *unrotated*: rotary positions belong to the attention side, because beyond the
trained length they differ from the true positions.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Attention(Protocol):
    """Causal attention of one sequence, with the keys and values of its past tokens.

    Layers have independent lengths; `position` is the layer's length, i.e. the position of the
    first of the rows handed over. For prefill and decode alike:

        q       [rows, heads, head_dim]      unrotated
        k, v    [rows, kv_heads, head_dim]   k unrotated; both are appended
        result  [rows, heads, head_dim]      softmax(q k / sqrt(head_dim)) v, up to the own token

    Raises ValueError if `position` is not the layer's length.
    """

    def prefill(self, layer: int, position: int, q: Floats, k: Floats, v: Floats) -> Floats:
        """Appends and attends a piece of the prompt, best cut at multiples of 64 tokens."""
        ...

    def decode(self, layer: int, position: int, q: Floats, k: Floats, v: Floats) -> Floats:
        """Appends and attends one generated token: rows is 1."""
        ...

    def truncate(self, position: int) -> None:
        """Forgets the tokens at `position` and after it, in every layer."""
        ...

    def close(self) -> None:
        """Frees the keys and values; nothing else may be called afterwards."""
        ...
