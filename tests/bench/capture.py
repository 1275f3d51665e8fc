"""A real model's own queries and keys of a text, as its attention gets them: unrotated, in files.

They are kept at FOLDER/capture-KEY, where KEY says of which model, text and attention they are, so that a
study that is run again does not run the model again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from longshore.attention import Attention, Floats
from longshore.runner import Llama
from longshore.runner.model import Model


class RecordingAttention:
    """An `Attention` that keeps the queries and keys which another one is given."""

    def __init__(self, attention: Attention, layers: Sequence[int]) -> None:
        self._attention = attention
        self._queries: dict[int, list[Floats]] = {layer: [] for layer in layers}
        self._keys: dict[int, list[Floats]] = {layer: [] for layer in layers}

    def prefill(self, layer: int, position: int, q: Floats, k: Floats, v: Floats) -> Floats:
        """See `Attention`. Copies, since the runner's arrays are views of what it uses again."""
        if layer in self._queries:
            self._queries[layer].append(np.array(q))
            self._keys[layer].append(np.array(k))
        return self._attention.prefill(layer, position, q, k, v)

    def decode(self, layer: int, position: int, q: Floats, k: Floats, v: Floats) -> Floats:
        """See `Attention`."""
        raise NotImplementedError("a capture is of a prefill")

    def truncate(self, position: int) -> None:
        """See `Attention`."""
        raise NotImplementedError("a capture is of one prefill")

    def close(self) -> None:
        """See `Attention`."""
        self._attention.close()

    def of(self, layer: int) -> tuple[Floats, Floats]:
        """q [tokens, heads, head_dim] and k [tokens, kv_heads, head_dim], unrotated."""
        return np.concatenate(self._queries[layer]), np.concatenate(self._keys[layer])


class Capture:
    """Queries and keys in files, read as they are needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def queries(self, layer: int) -> Floats:
        """[tokens, heads, head_dim], unrotated."""
        return np.load(self.folder / f"q{layer:02}.npy", mmap_mode="r")

    def keys(self, layer: int) -> Floats:
        """[tokens, kv_heads, head_dim], unrotated."""
        return np.load(self.folder / f"k{layer:02}.npy", mmap_mode="r")


def capture(
    model: Model,
    tokens: Sequence[int],
    folder: Path,
    attention_name: str,
    open_attention: Callable[[], Attention],
    layers: Sequence[int] | None = None,
    piece: int = 1024,
) -> Capture:
    """Queries and keys of `tokens` in `layers` (all of them by default), from `folder` if they are there.

    attention_name tells captures apart whose layers below were attended to in different ways.
    """
    layers = range(model.shape.num_layers) if layers is None else layers
    facts = json.dumps([model.name, attention_name, list(tokens), list(layers)])
    home = folder / f"capture-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"
    if not home.exists():
        recording = RecordingAttention(open_attention(), layers)
        try:
            Llama(model, recording, piece).prefill(
                list(tokens), lambda done: print(f"captured {done:,} tokens", flush=True)
            )
        finally:
            recording.close()
        # Under another name until it is whole, so that a run which was stopped leaves nothing half done.
        unfinished = home.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for layer in layers:
            for name, array in zip("qk", recording.of(layer), strict=True):
                np.save(unfinished / f"{name}{layer:02}.npy", array)
        unfinished.rename(home)
    return Capture(home)
