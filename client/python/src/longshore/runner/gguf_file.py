"""Reads a GGUF file: metadata by key, tensors dequantised to float32."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import gguf
import numpy as np

from longshore.attention import Floats
from longshore.runner.errors import RunnerError

T = TypeVar("T")

_REQUIRED = object()


class GgufFile:
    """Metadata and tensors of one GGUF file, mapped, and read when a tensor is asked for."""

    def __init__(self, path: str | Path) -> None:
        """Raises RunnerError if there is no such file or it is not a GGUF that can be read."""
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise RunnerError(f"cannot read the model {path}: {error.strerror}") from error
        if magic != b"GGUF":
            raise RunnerError(f"{path} is not a GGUF file: it starts with {magic!r}, not b'GGUF'")
        try:
            self._reader = gguf.GGUFReader(self.path)
        except Exception as error:  # a damaged file fails anywhere in the reader, with any type
            raise RunnerError(f"{path} is damaged or of an unknown version: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    @property
    def tensor_names(self) -> set[str]:
        return set(self._tensors)

    def value(self, key: str, expect: type[T], default: object = _REQUIRED) -> T:
        """The metadata value of `key`, as `expect`; integers are taken for floats.

        Raises RunnerError if the key is missing and has no default, or holds another type.
        """
        field = self._reader.get_field(key)
        if field is None:
            if default is _REQUIRED:
                raise RunnerError(f"{self.path} has no metadata key {key}")
            return default  # type: ignore[return-value]
        value = field.contents()
        if expect is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, expect):
            raise RunnerError(f"{self.path}: {key} is {value!r}, expected {expect.__name__}")
        return value

    def tensor(self, name: str, *shape: int) -> Floats:
        """A tensor as float32 in row-major [shape] (GGUF itself lists the extents in reverse).

        Raises RunnerError if it is missing, of another shape or of a kind that gguf cannot undo.
        """
        if name not in self._tensors:
            raise RunnerError(f"{self.path} has no tensor {name}")
        tensor = self._tensors[name]
        stored = tuple(int(extent) for extent in reversed(tensor.shape))
        if stored != shape:
            raise RunnerError(f"{self.path}: {name} has shape {stored}, expected {shape}")
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise RunnerError(f"{self.path}: {name} is {kind}, which gguf cannot undo") from error
        return np.ascontiguousarray(values, dtype=np.float32).reshape(shape)
