"""Rotary position embedding on interleaved pairs, which is a multiplication of complex numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from longshore.attention import Floats
from longshore.model_shape import RopeTable


def turns(rope: RopeTable, position: int, rows: int) -> npt.NDArray[np.complex64]:
    """e^(i p inv_freq) for p = position .. position + rows - 1: [rows, rotary_dim / 2].

    Angles are formed in float64: in float32 the fast pairs would lose their place within a turn.
    """
    positions = np.arange(position, position + rows, dtype=np.float64)
    return np.exp(1j * np.outer(positions, rope.inv_freq)).astype(np.complex64)


def rotate(x: Floats, turn: npt.NDArray[np.complex64]) -> Floats:
    """Turns the pairs (2i, 2i + 1) of x [rows, heads, head_dim] by turn [rows, rotary_dim / 2].

    Dimensions from rotary_dim on are copied as they are.
    """
    rotated = np.array(x, dtype=np.float32, order="C")
    pairs = rotated[..., : 2 * turn.shape[-1]].view(np.complex64)  # [rows, heads, rotary_dim / 2]
    pairs *= turn[:, np.newaxis, :]
    return rotated
