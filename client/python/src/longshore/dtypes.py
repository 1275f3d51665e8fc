"""Element types: their names, and what they are in numpy, which has no bfloat16 of its own."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt

from longshore._proto.longshore.v1 import tensor_pb2

Array = npt.NDArray[Any]


class DType(enum.Enum):
    """Element type of queries and outputs, or of stored keys and values."""

    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"

    def to_wire(self) -> tensor_pb2.DType:
        return _TO_WIRE[self]

    @classmethod
    def from_wire(cls, dtype: tensor_pb2.DType) -> DType:
        """Raises ValueError for a type that this client does not know."""
        for ours, wire in _TO_WIRE.items():
            if wire == dtype:
                return ours
        raise ValueError(f"dtype {tensor_pb2.DType.Name(dtype)} is not known to this client")


_TO_WIRE = {
    DType.F32: tensor_pb2.DTYPE_F32,
    DType.BF16: tensor_pb2.DTYPE_BF16,
    DType.F16: tensor_pb2.DTYPE_F16,
}


def dtype_of(array: Array, name: str) -> DType:
    """An array's element type. BF16 is the type of the package ml_dtypes, or its bits as uint16.

    Raises TypeError for anything else, calling the array `name`: nothing is converted silently.
    """
    if array.dtype == np.float32:
        return DType.F32
    if array.dtype == np.float16:
        return DType.F16
    if array.dtype == np.uint16 or array.dtype.name == "bfloat16":
        return DType.BF16
    raise TypeError(
        f"{name} is {array.dtype}, not float32, float16 or bfloat16 "
        "(the type of ml_dtypes, or its bits as uint16)"
    )


def to_bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of float32 values rounded to the nearest bfloat16, ties to even. Keeps the shape."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    rounded[np.isnan(values)] = 0x7FC0  # rounding could carry a NaN into the sign
    return rounded.astype(np.uint16)


def from_bfloat16_bits(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 values of bfloat16 bits; exact. Shapes are equal."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
