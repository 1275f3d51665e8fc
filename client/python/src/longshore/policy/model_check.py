"""A model shape's errors, in the daemon's words and in its order (engine/model_shape.cc)."""

from __future__ import annotations

import math

import numpy as np

from longshore._proto.longshore.v1 import model_pb2
from longshore.model_shape import ModelShape
from longshore.policy.refusal import number, refuse

_HEAD_DIMS = (64, 80, 96, 128, 192, 256)
_MAX_LAYERS = 1024
_MAX_HEADS = 1024
_MAX_GROUP = 16

# Within these every later step stays finite: engine/magnitude.h. Bounds of fp32 values are fp32.
_MAX_SOFTMAX_SCALE = 1000.0
_SOFT_CAPS = (float(np.float32(0.001)), 1e6)
_ATTENTION_SCALINGS = (float(np.float32(0.01)), 100.0)
_MAX_INV_FREQ = 64.0


def check_model(shape: ModelShape) -> None:
    """Raises InvalidArgument about a field below `model`."""
    model = shape.to_wire()  # rounds to the wire's types, whose values the daemon sees
    _check_heads(model)
    _check_scores(model)
    for index, rope in enumerate(model.rope_tables):
        _check_rope_table(f"model.rope_tables[{index}]", rope, model.head_dim)
    uses = list(model.layer_rope_table)
    uses = uses or [0 if model.rope_tables else -1] * model.num_layers
    _check_layers(model, uses)
    _check_table_use(model, uses)


def _check_range(field: str, value: int, largest: int) -> None:
    if not 1 <= value <= largest:
        refuse(field, f"{value} is not in 1..{largest}")


def _check_heads(model: model_pb2.ModelShape) -> None:
    heads, kv_heads = model.num_heads, model.num_kv_heads
    _check_range("model.num_layers", model.num_layers, _MAX_LAYERS)
    _check_range("model.num_heads", heads, _MAX_HEADS)
    if kv_heads < 1 or heads % kv_heads != 0:
        refuse("model.num_kv_heads", f"{kv_heads} does not divide num_heads {heads}")
    if heads // kv_heads > _MAX_GROUP:
        what = f"{heads} is more than {_MAX_GROUP} times num_kv_heads {kv_heads}"
        refuse("model.num_heads", what)
    if model.head_dim not in _HEAD_DIMS:
        known = ", ".join(map(str, _HEAD_DIMS))
        refuse("model.head_dim", f"{model.head_dim} is not one of {known}")


def _check_scores(model: model_pb2.ModelShape) -> None:
    scale, cap, sinks = model.softmax_scale, model.logit_soft_cap, model.sink_logits
    if scale != 0.0 and not 0.0 < scale <= _MAX_SOFTMAX_SCALE:
        what = f"{number(scale)} is not above 0 and at most {number(_MAX_SOFTMAX_SCALE)}"
        refuse("model.softmax_scale", what)
    if cap != 0.0 and not _within(cap, _SOFT_CAPS):
        what = f"{number(cap)} is neither 0 nor in {_between(_SOFT_CAPS)}"
        refuse("model.logit_soft_cap", what)
    logits = model.num_layers * model.num_heads
    if sinks and len(sinks) != logits:
        what = f"has {len(sinks)} values, num_layers * num_heads is {logits}"
        refuse("model.sink_logits", what)
    if not all(map(math.isfinite, sinks)):
        refuse("model.sink_logits", "has a value that is not finite")


def _check_rope_table(at: str, rope: model_pb2.RopeTable, head_dim: int) -> None:
    pairs = len(rope.inv_freq)
    if not 2 <= 2 * pairs <= head_dim:
        what = f"has {pairs} values: rotary_dim {2 * pairs} is not in 2..head_dim {head_dim}"
        refuse(f"{at}.inv_freq", what)
    for pair, value in enumerate(rope.inv_freq):
        if not abs(value) <= _MAX_INV_FREQ:
            what = f"{number(value)} is not in {_between((-_MAX_INV_FREQ, _MAX_INV_FREQ))}"
            refuse(f"{at}.inv_freq[{pair}]", what)
    scaling = rope.attention_scaling or 1.0
    if not _within(scaling, _ATTENTION_SCALINGS):
        what = f"{number(scaling)} is not in {_between(_ATTENTION_SCALINGS)}"
        refuse(f"{at}.attention_scaling", what)
    if rope.trained_tokens < 1:
        refuse(f"{at}.trained_tokens", f"{rope.trained_tokens} is less than 1")


def _within(value: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= value <= bounds[1]


def _between(bounds: tuple[float, float]) -> str:
    return "..".join(map(number, bounds))


def _check_layers(model: model_pb2.ModelShape, uses: list[int]) -> None:
    windows = list(model.layer_sliding_window) or [0] * model.num_layers
    for name, entries in (("layer_rope_table", uses), ("layer_sliding_window", windows)):
        if len(entries) != model.num_layers:
            what = f"has {len(entries)} entries, num_layers is {model.num_layers}"
            refuse(f"model.{name}", what)
    tables = len(model.rope_tables)
    for layer, (table, window) in enumerate(zip(uses, windows, strict=True)):
        if not -1 <= table < tables:
            what = f"{table} is not -1 or below the number of rope_tables {tables}"
            refuse(f"model.layer_rope_table[{layer}]", what)
        if window < 0:
            refuse(f"model.layer_sliding_window[{layer}]", f"{window} is less than 0")


def _check_table_use(model: model_pb2.ModelShape, uses: list[int]) -> None:
    tables, layers = len(model.rope_tables), model.num_layers
    if tables > layers:
        refuse("model.rope_tables", f"has {tables} entries, more than num_layers {layers}")
    for table in range(tables):
        if table not in uses:
            what = f"is used by none of {layers} layers; there are {tables} tables"
            refuse(f"model.rope_tables[{table}]", what)
