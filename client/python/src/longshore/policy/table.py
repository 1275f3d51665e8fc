"""An explanation and the list of presets as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from longshore._proto.longshore.v1 import policy_pb2 as wire
from longshore.policy.layer_step import Clock, StageReads
from longshore.policy.policy_check import style_name

if TYPE_CHECKING:  # explanation.py prints by this module
    from longshore.policy.explanation import Explanation, LayerGroup, Phase

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")
_MIDDLES = {
    "stages": "sink, window and what the stages keep",
    "dense": "every token",
    "dense_below": "every token: the context is short (dense_below_tokens)",
    "none": "sink and window",
    "sliding_window": "the model's sliding window, whatever the policy",
}


def render(explanation: Explanation) -> str:
    """The whole table."""
    return "\n".join(_lines(explanation))


def describe(policy: wire.AttentionPolicy) -> str:
    """A policy's decode phase in one line: what all but the early layers do."""
    layers = policy.decode.rest
    if layers.middle == wire.MIDDLE_DENSE:
        return "every token"
    parts = [
        f"{_selector(stage)} {stage.chunk_tokens} keep {stage.keep_tokens}"
        for stage in layers.stages
    ]
    every = "/".join(str(stage.refresh_steps) for stage in layers.stages)
    stages = " -> ".join(parts) + f", every {every} steps; " if parts else ""
    return f"{stages}sink {policy.sink_tokens}, window {layers.window_tokens}"


def byte_text(count: float) -> str:
    """1234567 -> 1.23 MB: three digits, decimal units."""
    unit = 0
    while count >= 999.5 and unit + 1 < len(_UNITS):
        count, unit = count / 1000, unit + 1
    digits = 0 if unit == 0 or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{count:.{digits}f} {_UNITS[unit]}"


def layer_text(layers: Sequence[int]) -> str:
    """(0, 1, 2, 5) -> 0-2, 5."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(f"{first}-{last}" if first < last else str(first) for first, last in runs)


def _selector(stage: wire.Stage) -> str:
    return wire.Selector.Name(stage.selector).removeprefix("SELECTOR_").lower()


def _lines(it: Explanation) -> Iterator[str]:
    shape = it.shape
    yield (
        f"{it.name} at {it.context_tokens:,} tokens of at most {it.max_tokens:,}; "
        f"{shape.num_layers} layers, {shape.num_heads}/{shape.num_kv_heads} heads of "
        f"{shape.head_dim}, {shape.kv_dtype.value}"
    )
    yield (
        f"sink {it.sink_tokens:,}, ranking {it.ranking}, query_stride {it.query_stride}, "
        f"dense_below_tokens {it.dense_below_tokens:,}, extension {it.extension}"
    )
    yield from _phase("decode: a step of one token", it.decode, decodes=True)
    yield from _phase(
        f"prefill: a query block of {it.prefill.rows} rows", it.prefill, decodes=False
    )
    memory = it.memory
    yield ""
    yield f"host memory of a session for {it.max_tokens:,} tokens"
    yield f"  pages {byte_text(memory.page_bytes)} of the pool ({memory.page_bytes:,} bytes)"
    yield (
        f"  beside the pool: key summaries {byte_text(memory.summary_bytes)}, "
        f"tables {byte_text(memory.table_bytes)}"
    )


def _phase(title: str, phase: Phase, decodes: bool) -> Iterator[str]:
    yield ""
    yield title
    for group in phase.groups:
        yield from _group(group, decodes)
    average, fresh, dense = phase.average_bytes, phase.fresh_bytes, phase.dense_bytes
    when = f" on average, {byte_text(fresh)} when every stage runs" if fresh > average else ""
    times = f" ({dense / average:.1f} times)" if average < dense else ""
    yield f"  all layers read {byte_text(average)}{when}; dense {byte_text(dense)}{times}"


def _group(group: LayerGroup, decodes: bool) -> Iterator[str]:
    step = group.step
    layers = f"layer{'s' * (len(group.layers) > 1)} {layer_text(group.layers)}"
    trained = "" if group.trained_tokens is None else f", trained to {group.trained_tokens:,}"
    yield f"  {layers}{trained}: {_MIDDLES[group.middle]}"
    if step.stages:
        yield from (f"    {row}" for row in _stages(step.stages, decodes))
    parts = (("sink", step.sink), ("selected", step.selected), ("window", step.window))
    named = [f"{name} {_range(part)}" for name, part in parts if part.fresh or part.cached]
    sum_of = f"{' + '.join(named)} = " if len(named) > 1 else ""
    together = "" if decodes else "its rows together "  # causally, and each to its own window
    attends = "attends" if decodes else "attend"
    yield f"    {together}{attends} to {sum_of}{_range(step.attended)} tokens, ids {group.rope}"
    reads, dense = step.read_bytes, byte_text(group.dense_bytes)
    if len(reads.values) > 1:
        yield (
            f"    a layer reads {byte_text(reads.fresh)} fresh, {byte_text(reads.cached)} cached, "
            f"{byte_text(reads.average)} on average; dense {dense}"
        )
    else:
        yield f"    a layer reads {byte_text(reads.fresh)}; dense {dense}"


def _range(clock: Clock) -> str:
    """What it is when every stage has just run, and what it has become before the next time."""
    first, last = clock.fresh, clock.cached
    return f"{first:,}" if first == last else f"{first:,}..{last:,}"


def _stages(stages: Sequence[StageReads], decodes: bool) -> list[str]:
    """Rows of one width, numbers to the right."""
    rows = [
        ("stage", "selector", "chunk", "candidates", "keep", "kept", "refreshed", "rope", "reads")
    ]
    for index, stage in enumerate(stages):
        kept = stage.kept_chunks * stage.chunk_tokens
        every = f"every {stage.refresh_steps}" if decodes else f"every {stage.shared_rows} rows"
        reads = "all kept" if stage.kept_chunks == stage.candidates else byte_text(stage.read_bytes)
        numbers = (
            f"{stage.chunk_tokens:,}",
            f"{stage.candidates:,}",
            f"{stage.keep_tokens:,}",
            f"{kept:,}",
        )
        rows.append((str(index), stage.selector, *numbers, every, stage.rope, reads))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    to_left = {"stage", "selector", "refreshed", "rope"}
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if name in to_left else cell.rjust(width)
            for name, cell, width in zip(rows[0], row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
