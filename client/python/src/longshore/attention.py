"""The seam between a model runner and whoever computes its attention.

A runner opens an `Attention` for one sequence from a `ModelShape`; then, layer by layer, it hands
over the queries, keys and values of the new tokens and gets the attention output back. Queries and
keys are handed over *unrotated*: rotary positions belong to the attention side, because beyond the
trained length they differ from the true positions.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Pairing(enum.Enum):
    """Which two dimensions of a head RoPE turns together, for pair i of rotary_dim / 2."""

    INTERLEAVED = "interleaved"  # 2i and 2i + 1
    HALVES = "halves"  # i and i + rotary_dim / 2


@dataclass(frozen=True, eq=False)
class RopeTable:
    """Rotary position embedding: at position p, pair i is turned by the angle p * inv_freq[i].

    inv_freq        [rotary_dim / 2] float64, usually base^(-2i / rotary_dim)
    trained_length  positions that the model saw in training
    """

    inv_freq: npt.NDArray[np.float64]
    pairing: Pairing
    trained_length: int

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.inv_freq)


@dataclass(frozen=True, eq=False)
class ModelShape:
    """What attention knows of a model. A KV head serves num_heads / num_kv_heads query heads."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeTable


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
