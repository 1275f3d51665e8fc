"""A policy's errors, in the daemon's words and in its order.

First what is not set or does not belong together, everywhere (service/convert_policy.cc), then the
values (engine/policy.cc). test_policy_daemon.py holds the daemon's answers against these.
"""

from __future__ import annotations

from typing import Any

from longshore._proto.longshore.v1 import policy_pb2 as wire
from longshore.policy.refusal import number, refuse

PAGE_TOKENS = 64  # of a page and of a key summary
_QUERY_BLOCKS = (16, 32, 64)
_MAX_STAGE_QUERY_BLOCK = 1024
_MAX_REGION_TOKENS = 1 << 24
_MAX_STAGES = 4
_MAX_POWER = 1024.0

_SELF_EXTEND = wire.ROPE_STYLE_SELF_EXTEND
_PRUNING_ONLY = (wire.ROPE_STYLE_RELATIVE, wire.ROPE_STYLE_CHUNK_INDEXED)
_ATTENTION_ONLY = (wire.ROPE_STYLE_STREAMING,)
_FOR_BOUNDS = (
    wire.ROPE_STYLE_TRUE_POSITIONS,
    wire.ROPE_STYLE_RELATIVE,
    wire.ROPE_STYLE_INFLLM,
)


def style_name(style: wire.RopeStyle) -> str:
    """true_positions, relative, ..."""
    return wire.RopeStyle.Name(style).removeprefix("ROPE_STYLE_").lower()


def query_block_of(policy: wire.AttentionPolicy, stage: wire.Stage) -> int:
    """Rows of a prefill that share the stage's selection."""
    return stage.query_block or policy.query_block


def check_written(policy: wire.AttentionPolicy, at: str) -> None:
    """What is written in full at the field `at` of a request: enums set, nothing out of place."""
    _check_enum(f"{at}.ranking", policy.ranking, wire.Ranking)
    _check_rope_written(policy.attention_rope, f"{at}.attention_rope")
    _check_enum(f"{at}.extension", policy.extension, wire.Extension)
    _check_phase_written(policy.prefill, f"{at}.prefill")
    _check_phase_written(policy.decode, f"{at}.decode")


def check_values(policy: wire.AttentionPolicy, at: str) -> None:
    """The values of a policy that check_written() has passed."""
    _check_range(f"{at}.sink_tokens", policy.sink_tokens, 0)
    power = policy.probability_power
    if policy.ranking == wire.RANKING_PROBABILITY_POWER and not 1.0 <= power <= _MAX_POWER:
        refuse(f"{at}.probability_power", f"{number(power)} is not in 1..{number(_MAX_POWER)}")
    if policy.query_block not in _QUERY_BLOCKS:
        refuse(f"{at}.query_block", f"{policy.query_block} is not 16, 32 or 64")
    if not 1 <= policy.query_stride <= policy.query_block:
        what = f"{policy.query_stride} is not in 1..query_block {policy.query_block}"
        refuse(f"{at}.query_stride", what)
    _check_at_least(f"{at}.dense_below_tokens", policy.dense_below_tokens, 0)
    _check_rope(f"{at}.attention_rope", policy.attention_rope, pruning=False)
    _check_phase(f"{at}.prefill", policy.prefill, policy)
    _check_phase(f"{at}.decode", policy.decode, policy)


def _check_enum(field: str, value: int, kind: Any) -> None:
    if value == 0:
        refuse(field, "is not set")
    if value not in kind.values():
        refuse(field, f"{value} is not one of its values")


def _check_rope_written(rope: wire.RopeChoice, at: str) -> None:
    _check_enum(f"{at}.within_trained", rope.within_trained, wire.RopeStyle)
    _check_enum(f"{at}.beyond_trained", rope.beyond_trained, wire.RopeStyle)


def _check_phase_written(phase: wire.PhasePolicy, at: str) -> None:
    _check_layers_written(phase.rest, f"{at}.rest")
    if phase.first_layers > 0:
        _check_layers_written(phase.early, f"{at}.early")
    elif phase.HasField("early"):
        refuse(f"{at}.early", f"is set, and first_layers is {phase.first_layers}")


def _check_layers_written(layers: wire.LayerPolicy, at: str) -> None:
    _check_enum(f"{at}.middle", layers.middle, wire.Middle)
    for index, stage in enumerate(layers.stages):
        _check_stage_written(stage, f"{at}.stages[{index}]")
    if layers.HasField("attention_rope"):
        _check_rope_written(layers.attention_rope, f"{at}.attention_rope")


def _check_stage_written(stage: wire.Stage, at: str) -> None:
    _check_enum(f"{at}.selector", stage.selector, wire.Selector)
    _check_rope_written(stage.rope, f"{at}.rope")
    selector = wire.Selector.Name(stage.selector)
    if stage.HasField("descent"):
        if stage.selector != wire.SELECTOR_DESCENT:
            refuse(f"{at}.descent", f"is set, and selector is {selector}, not SELECTOR_DESCENT")
        descent, kinds = stage.descent, wire.DescentParams
        _check_enum(f"{at}.descent.representative", descent.representative, kinds.Representative)
        _check_enum(f"{at}.descent.score", descent.score, kinds.Score)
    if stage.HasField("probes") and stage.selector != wire.SELECTOR_PROBES:
        refuse(f"{at}.probes", f"is set, and selector is {selector}, not SELECTOR_PROBES")


def _check_range(field: str, value: int, smallest: int) -> None:
    if not smallest <= value <= _MAX_REGION_TOKENS:
        refuse(field, f"{value} is not in {smallest}..{_MAX_REGION_TOKENS}")


def _check_at_least(field: str, value: int, smallest: int) -> None:
    if value < smallest:
        refuse(field, f"{value} is less than {smallest}")


def _check_rope(field: str, rope: wire.RopeChoice, pruning: bool) -> None:
    for name, style in _styles(rope):
        if style in (_ATTENTION_ONLY if pruning else _PRUNING_ONLY):
            use = "attention" if pruning else "pruning"
            refuse(f"{field}.{name}", f"{style_name(style)} is for {use} only")
    if _SELF_EXTEND in (rope.within_trained, rope.beyond_trained):
        _check_at_least(f"{field}.self_extend_group", rope.self_extend_group, 1)
        neighbors = rope.self_extend_neighbor_tokens
        _check_range(f"{field}.self_extend_neighbor_tokens", neighbors, 1)


def _styles(rope: wire.RopeChoice) -> tuple[tuple[str, wire.RopeStyle], ...]:
    return ("within_trained", rope.within_trained), ("beyond_trained", rope.beyond_trained)


def _check_phase(at: str, phase: wire.PhasePolicy, policy: wire.AttentionPolicy) -> None:
    _check_at_least(f"{at}.first_layers", phase.first_layers, 0)
    _check_layers(f"{at}.rest", phase.rest, policy)
    if phase.first_layers > 0:
        _check_layers(f"{at}.early", phase.early, policy)


def _check_layers(at: str, layers: wire.LayerPolicy, policy: wire.AttentionPolicy) -> None:
    _check_range(f"{at}.window_tokens", layers.window_tokens, 1)
    if layers.HasField("attention_rope"):
        _check_rope(f"{at}.attention_rope", layers.attention_rope, pruning=False)
    entries = len(layers.stages)
    if layers.middle == wire.MIDDLE_STAGES:
        if not 1 <= entries <= _MAX_STAGES:
            refuse(f"{at}.stages", f"has {entries} entries, not 1..{_MAX_STAGES}")
        _check_stages(at, layers, policy)
    elif entries > 0:
        refuse(f"{at}.stages", f"has {entries} entries, middle says that there are 0")


def _check_stages(at: str, layers: wire.LayerPolicy, policy: wire.AttentionPolicy) -> None:
    for index, stage in enumerate(layers.stages):
        field = f"{at}.stages[{index}]"
        _check_stage(field, stage)
        if index > 0:
            _check_follows(field, stage, layers.stages[index - 1])
        elif policy.sink_tokens % stage.chunk_tokens != 0:
            what = f"{stage.chunk_tokens} does not divide sink_tokens {policy.sink_tokens}"
            refuse(f"{field}.chunk_tokens", what)
        previous = layers.stages[index - 1] if index > 0 else stage
        _check_query_block(f"{field}.query_block", stage, previous, policy)


def _check_stage(field: str, stage: wire.Stage) -> None:
    chunk, keep = stage.chunk_tokens, stage.keep_tokens
    _check_range(f"{field}.chunk_tokens", chunk, 1)
    _check_selector(field, stage)
    if keep < chunk:
        refuse(f"{field}.keep_tokens", f"{keep} is less than chunk_tokens {chunk}")
    if keep % chunk != 0:
        refuse(f"{field}.keep_tokens", f"{keep} is not a multiple of chunk_tokens {chunk}")
    if keep > _MAX_REGION_TOKENS:
        refuse(f"{field}.keep_tokens", f"{keep} is more than {_MAX_REGION_TOKENS}")
    _check_at_least(f"{field}.refresh_steps", stage.refresh_steps, 1)
    _check_rope(f"{field}.rope", stage.rope, pruning=True)


def _check_query_block(
    field: str, stage: wire.Stage, previous: wire.Stage, policy: wire.AttentionPolicy
) -> None:
    """Query blocks of a stage hold whole ones of the next, and of what is attended together."""
    rows, rows_before = query_block_of(policy, stage), query_block_of(policy, previous)
    if not 1 <= rows <= _MAX_STAGE_QUERY_BLOCK:
        refuse(field, f"{rows} is not in 0..{_MAX_STAGE_QUERY_BLOCK}")
    if rows % policy.query_block != 0:
        refuse(field, f"{rows} is not a multiple of the policy's {policy.query_block}")
    if rows_before % rows != 0:
        refuse(field, f"{rows} does not divide the previous stage's {rows_before}")


def _check_selector(field: str, stage: wire.Stage) -> None:
    """What a selector asks of its stage, if anything."""
    chunk = stage.chunk_tokens
    if stage.selector == wire.SELECTOR_BOUNDS:
        if chunk != PAGE_TOKENS:
            what = f"{chunk} is not {PAGE_TOKENS}, the only size of bounds"
            refuse(f"{field}.chunk_tokens", what)
        for name, style in _styles(stage.rope):
            if style not in _FOR_BOUNDS:
                rule = "is not true_positions, relative or infllm, which bounds needs"
                refuse(f"{field}.rope.{name}", f"{style_name(style)} {rule}")
    if stage.selector == wire.SELECTOR_EXACT and PAGE_TOKENS % chunk != 0:
        refuse(f"{field}.chunk_tokens", f"{chunk} does not divide a page of {PAGE_TOKENS} tokens")
    if stage.selector == wire.SELECTOR_PROBES:
        probes, most = stage.probes.probes, min(chunk, PAGE_TOKENS)
        if not 1 <= probes <= most or probes & (probes - 1) != 0:
            refuse(f"{field}.probes.probes", f"{probes} is not a power of two in 1..{most}")


def _check_follows(field: str, stage: wire.Stage, previous: wire.Stage) -> None:
    """What a stage must be to come after another."""
    if previous.chunk_tokens % stage.chunk_tokens != 0:
        rule = f"does not divide the previous stage's {previous.chunk_tokens}"
        refuse(f"{field}.chunk_tokens", f"{stage.chunk_tokens} {rule}")
    if stage.keep_tokens > previous.keep_tokens:
        rule = f"is more than the previous stage's {previous.keep_tokens}"
        refuse(f"{field}.keep_tokens", f"{stage.keep_tokens} {rule}")
    if previous.refresh_steps % stage.refresh_steps != 0:
        rule = f"does not divide the previous stage's {previous.refresh_steps}"
        refuse(f"{field}.refresh_steps", f"{stage.refresh_steps} {rule}")
