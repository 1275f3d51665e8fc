"""The attention part of a model: what a runner tells whoever computes its attention."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from longshore._proto.longshore.v1 import model_pb2
from longshore.dtypes import DType


class Pairing(enum.Enum):
    """Which two dimensions of a head RoPE turns together, for pair i of rotary_dim / 2."""

    INTERLEAVED = "interleaved"  # 2i and 2i + 1
    HALVES = "halves"  # i and i + rotary_dim / 2


_PAIRINGS = {
    Pairing.HALVES: model_pb2.ROPE_PAIRING_HALF,
    Pairing.INTERLEAVED: model_pb2.ROPE_PAIRING_INTERLEAVED,
}


@dataclass(frozen=True, eq=False)
class RopeTable:
    """One rotary embedding: at position p, pair i of a head is turned by p * inv_freq[i] radians.

    inv_freq           [rotary_dim / 2]  with the scalings of Llama 3, YaRN or LongRoPE included
    trained_tokens     positions below this were seen in training
    attention_scaling  multiplies cos and sin of queries and keys
    """

    inv_freq: npt.NDArray[np.floating] | Sequence[float]
    pairing: Pairing
    trained_tokens: int
    attention_scaling: float = 1.0

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.inv_freq)

    @classmethod
    def from_base(
        cls, base: float, rotary_dim: int, pairing: Pairing, trained_tokens: int
    ) -> RopeTable:
        """The usual table: inv_freq[i] = base^(-2i / rotary_dim)."""
        inv_freq = base ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
        return cls(inv_freq, pairing, trained_tokens)

    def to_wire(self) -> model_pb2.RopeTable:
        return model_pb2.RopeTable(
            inv_freq=np.asarray(self.inv_freq, dtype=np.float64).tolist(),
            pairing=_PAIRINGS[self.pairing],
            attention_scaling=self.attention_scaling,
            trained_tokens=self.trained_tokens,
        )

    @classmethod
    def from_wire(cls, wire: model_pb2.RopeTable) -> RopeTable:
        pairing = next(ours for ours, theirs in _PAIRINGS.items() if theirs == wire.pairing)
        scaling = wire.attention_scaling or 1.0
        return cls(np.array(wire.inv_freq, np.float64), pairing, wire.trained_tokens, scaling)


@dataclass(frozen=True, eq=False)
class ModelShape:
    """Everything that attention must know of a model.

    A KV head serves num_heads / num_kv_heads query heads.

    head_dim              64, 80, 96, 128, 192 or 256
    rope_tables           the model's rotary embeddings, usually one; empty: none, in no layer
    layer_rope_table      [num_layers] each layer's table, -1 for none; empty: table 0 everywhere
    query_dtype           of q and of the output
    kv_dtype              of keys and values as stored; k and v come in it or in query_dtype
    softmax_scale         0: 1 / sqrt(head_dim)
    logit_soft_cap        scores become soft_cap * tanh(score / soft_cap); 0: they stay
    layer_sliding_window  [num_layers] tokens that a query sees, 0 for all; empty: all everywhere
    sink_logits           [num_layers, num_heads] learned logits of the softmax denominator, or None
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_tables: Sequence[RopeTable] = ()
    layer_rope_table: Sequence[int] = ()
    query_dtype: DType = DType.F32
    kv_dtype: DType = DType.F32
    softmax_scale: float = 0.0
    logit_soft_cap: float = 0.0
    layer_sliding_window: Sequence[int] = ()
    sink_logits: npt.NDArray[np.floating] | None = field(default=None, repr=False)

    def rope_table(self, layer: int) -> RopeTable | None:
        """The rotary embedding of a layer, None for a layer without."""
        default = 0 if self.rope_tables else -1
        index = self.layer_rope_table[layer] if self.layer_rope_table else default
        return None if index < 0 else self.rope_tables[index]

    def sliding_window(self, layer: int) -> int:
        """Tokens that a query of a layer sees, itself included; 0: all."""
        return self.layer_sliding_window[layer] if self.layer_sliding_window else 0

    def to_wire(self) -> model_pb2.ModelShape:
        sinks = () if self.sink_logits is None else np.ravel(self.sink_logits).tolist()
        return model_pb2.ModelShape(
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            query_dtype=self.query_dtype.to_wire(),
            kv_dtype=self.kv_dtype.to_wire(),
            softmax_scale=self.softmax_scale,
            logit_soft_cap=self.logit_soft_cap,
            rope_tables=[table.to_wire() for table in self.rope_tables],
            layer_rope_table=self.layer_rope_table,
            layer_sliding_window=self.layer_sliding_window,
            sink_logits=sinks,
        )

    @classmethod
    def from_wire(cls, wire: model_pb2.ModelShape) -> ModelShape:
        sinks = None
        if wire.sink_logits:
            sinks = np.array(wire.sink_logits, np.float32).reshape(wire.num_layers, wire.num_heads)
        return cls(
            num_layers=wire.num_layers,
            num_heads=wire.num_heads,
            num_kv_heads=wire.num_kv_heads,
            head_dim=wire.head_dim,
            rope_tables=[RopeTable.from_wire(table) for table in wire.rope_tables],
            layer_rope_table=tuple(wire.layer_rope_table),
            query_dtype=DType.from_wire(wire.query_dtype),
            kv_dtype=DType.from_wire(wire.kv_dtype),
            softmax_scale=wire.softmax_scale,
            logit_soft_cap=wire.logit_soft_cap,
            layer_sliding_window=tuple(wire.layer_sliding_window),
            sink_logits=sinks,
        )
