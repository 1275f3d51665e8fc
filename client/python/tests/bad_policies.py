"""Policies that no daemon takes, each with its whole message.

At least one row for every check of service/convert_policy.cc and engine/policy.cc, and in
bad_sessions.py of engine/model_shape.cc and engine/session_size.cc: test_policy.py holds
longshore.policy.validate() against them, test_policy_daemon.py the daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longshore import ModelShape, Pairing, RopeTable, policy
from longshore._proto.longshore.v1 import policy_pb2 as wire
from longshore.policy import AttentionPolicy

ROPE = RopeTable.from_base(10000.0, 64, Pairing.HALVES, trained_tokens=8192)
SHAPE = ModelShape(2, 4, 2, 64, [ROPE])
MAX_TOKENS = 1000


@dataclass(frozen=True)
class Refused:
    """Arguments of open_session, and what it says to them."""

    message: str
    policy: str | AttentionPolicy
    shape: ModelShape = SHAPE
    max_tokens: int = MAX_TOKENS
    dense_below_tokens: int | None = None

    @property
    def field(self) -> str:
        return self.message.split(" ")[0]


def spoilt(
    message: str, spoil: Callable[[AttentionPolicy], Any], preset: str = "standard"
) -> Refused:
    """A preset in full, spoilt in one place; the message without what all of them begin with."""
    full = policy.preset(preset)
    spoil(full)
    return Refused(f"policy.policy.{message}", full)


def put(path: str, value: Any) -> Callable[[AttentionPolicy], None]:
    """Sets a.b[1].c to a value."""

    def change(full: AttentionPolicy) -> None:
        *parents, name = path.split(".")
        message: Any = full
        for parent in parents:
            part, _, index = parent.partition("[")
            message = getattr(message, part)
            message = message[int(index[:-1])] if index else message
        setattr(message, name, value)

    return change


def both(*changes: Callable[[AttentionPolicy], Any]) -> Callable[[AttentionPolicy], None]:
    def change(full: AttentionPolicy) -> None:
        for one in changes:
            one(full)

    return change


STAGE = "decode.rest.stages[1]"
COARSE = "decode.rest.stages[0]"
FOR_BOUNDS = "is not true_positions, relative or infllm, which bounds needs"
MAX_REGION = 1 << 24


def probes(count: int, chunk: int = 8) -> Callable[[AttentionPolicy], None]:
    return both(
        put(f"{STAGE}.selector", wire.SELECTOR_PROBES),
        put(f"{STAGE}.probes.probes", count),
        put(f"{STAGE}.chunk_tokens", chunk),
    )


def self_extend(group: int, neighbors: int) -> Callable[[AttentionPolicy], None]:
    return both(
        put("attention_rope.beyond_trained", wire.ROPE_STYLE_SELF_EXTEND),
        put("attention_rope.self_extend_group", group),
        put("attention_rope.self_extend_neighbor_tokens", neighbors),
    )


def power(value: float) -> Callable[[AttentionPolicy], None]:
    return both(put("ranking", wire.RANKING_PROBABILITY_POWER), put("probability_power", value))


def stages_of(count: int) -> Callable[[AttentionPolicy], None]:
    def change(full: AttentionPolicy) -> None:
        fine = full.decode.rest.stages[1]
        del full.decode.rest.stages[min(count, 2) :]
        full.decode.rest.stages.extend([fine] * (count - 2))

    return change


def descent(
    representative: int, score: int, selector: int = wire.SELECTOR_DESCENT
) -> Callable[[AttentionPolicy], None]:
    def change(full: AttentionPolicy) -> None:
        stage = full.decode.rest.stages[1]
        stage.selector = selector
        stage.descent.SetInParent()
        stage.descent.representative = representative
        stage.descent.score = score

    return change


WRITTEN = [  # service/convert_policy.cc
    spoilt("ranking is not set", put("ranking", 0)),
    spoilt("ranking 99 is not one of its values", put("ranking", 99)),
    spoilt("ranking -1 is not one of its values", put("ranking", -1)),
    spoilt("attention_rope.within_trained is not set", lambda p: p.ClearField("attention_rope")),
    spoilt("attention_rope.beyond_trained is not set", put("attention_rope.beyond_trained", 0)),
    spoilt(
        "decode.rest.attention_rope.beyond_trained is not set",
        put("decode.rest.attention_rope.within_trained", wire.ROPE_STYLE_STREAMING),
    ),
    spoilt("extension is not set", put("extension", 0)),
    spoilt("extension 99 is not one of its values", put("extension", 99)),
    spoilt("prefill.rest.middle is not set", lambda p: p.ClearField("prefill")),
    spoilt("decode.rest.middle 17 is not one of its values", put("decode.rest.middle", 17)),
    spoilt(f"{STAGE}.selector is not set", put(f"{STAGE}.selector", 0)),
    spoilt(f"{STAGE}.selector 99 is not one of its values", put(f"{STAGE}.selector", 99)),
    spoilt(f"{STAGE}.rope.within_trained is not set", put(f"{STAGE}.rope.within_trained", 0)),
    spoilt(
        f"{STAGE}.rope.beyond_trained 99 is not one of its values",
        put(f"{STAGE}.rope.beyond_trained", 99),
    ),
    spoilt(
        f"{STAGE}.descent is set, and selector is SELECTOR_EXACT, not SELECTOR_DESCENT",
        descent(1, 1, wire.SELECTOR_EXACT),
    ),
    spoilt(f"{STAGE}.descent.representative is not set", descent(0, 1)),
    spoilt(f"{STAGE}.descent.score 99 is not one of its values", descent(2, 99)),
    spoilt(
        f"{COARSE}.probes is set, and selector is SELECTOR_BOUNDS, not SELECTOR_PROBES",
        put(f"{COARSE}.probes.probes", 4),
    ),
    spoilt("decode.early is set, and first_layers is 0", lambda p: p.decode.early.SetInParent()),
    spoilt(
        "decode.early is set, and first_layers is -2",
        both(lambda p: p.decode.early.SetInParent(), put("decode.first_layers", -2)),
    ),
    spoilt("decode.early.middle is not set", put("decode.first_layers", 1)),
    Refused(
        'policy.preset "fst" is not one of ' + ", ".join(policy.PRESETS),
        "fst",
    ),
    Refused(
        r'policy.preset "a\"b\\\n\t\x01\x61g\xc3\xa9\'" is not one of ' + ", ".join(policy.PRESETS),
        "a\"b\\\n\t\x01ag\u00e9'",
    ),
    Refused('policy.preset "" is not one of ' + ", ".join(policy.PRESETS), ""),
    Refused(
        f'policy.preset "{"x" * 64}" is not one of ' + ", ".join(policy.PRESETS),
        "x" * 100,
    ),
    Refused("policy.dense_below_tokens -5 is less than 0", "standard", dense_below_tokens=-5),
    Refused(
        "policy.dense_below_tokens goes with a preset: set it in policy",
        policy.preset("standard"),
        dense_below_tokens=0,
    ),
]

VALUES = [  # engine/policy.cc
    spoilt(f"sink_tokens -1 is not in 0..{MAX_REGION}", put("sink_tokens", -1)),
    spoilt(
        f"sink_tokens {MAX_REGION + 1} is not in 0..{MAX_REGION}",
        put("sink_tokens", MAX_REGION + 1),
    ),
    spoilt("probability_power 0.5 is not in 1..1024", power(0.5)),
    spoilt("probability_power 1e+06 is not in 1..1024", power(1e6)),
    spoilt("probability_power 1024.01 is not in 1..1024", power(1024.01)),
    spoilt("probability_power nan is not in 1..1024", power(float("nan"))),
    spoilt("probability_power -inf is not in 1..1024", power(float("-inf"))),
    spoilt("query_block 48 is not 16, 32 or 64", put("query_block", 48)),
    spoilt("query_block 0 is not 16, 32 or 64", put("query_block", 0)),
    spoilt(f"{COARSE}.query_block -1 is not in 0..1024", put(f"{COARSE}.query_block", -1)),
    spoilt(f"{COARSE}.query_block 1088 is not in 0..1024", put(f"{COARSE}.query_block", 1088)),
    spoilt(
        f"{COARSE}.query_block 96 is not a multiple of the policy's 64",
        put(f"{COARSE}.query_block", 96),
    ),
    spoilt(
        f"{STAGE}.query_block 128 does not divide the previous stage's 64",
        put(f"{STAGE}.query_block", 128),
    ),
    spoilt("query_stride 0 is not in 1..query_block 64", put("query_stride", 0)),
    spoilt("query_stride 65 is not in 1..query_block 64", put("query_stride", 65)),
    spoilt("dense_below_tokens -5 is less than 0", put("dense_below_tokens", -5)),
    spoilt(
        "prefill.rest.attention_rope.beyond_trained relative is for pruning only",
        lambda p: p.prefill.rest.attention_rope.MergeFrom(
            wire.RopeChoice(
                within_trained=wire.ROPE_STYLE_STREAMING, beyond_trained=wire.ROPE_STYLE_RELATIVE
            )
        ),
    ),
    spoilt(
        "attention_rope.within_trained relative is for pruning only",
        put("attention_rope.within_trained", wire.ROPE_STYLE_RELATIVE),
    ),
    spoilt(
        "attention_rope.beyond_trained chunk_indexed is for pruning only",
        put("attention_rope.beyond_trained", wire.ROPE_STYLE_CHUNK_INDEXED),
    ),
    spoilt("attention_rope.self_extend_group 0 is less than 1", self_extend(0, 100)),
    spoilt(
        f"attention_rope.self_extend_neighbor_tokens 0 is not in 1..{MAX_REGION}",
        self_extend(8, 0),
    ),
    spoilt(
        f"attention_rope.self_extend_neighbor_tokens {MAX_REGION + 1} is not in 1..{MAX_REGION}",
        self_extend(8, MAX_REGION + 1),
    ),
    spoilt("prefill.first_layers -2 is less than 0", put("prefill.first_layers", -2)),
    spoilt(
        f"decode.rest.window_tokens 0 is not in 1..{MAX_REGION}",
        put("decode.rest.window_tokens", 0),
    ),
    spoilt(
        f"decode.early.window_tokens {MAX_REGION + 1} is not in 1..{MAX_REGION}",
        put("decode.early.window_tokens", MAX_REGION + 1),
        "paper-3k",
    ),
    spoilt("decode.rest.stages has 0 entries, not 1..4", stages_of(0)),
    spoilt("decode.rest.stages has 5 entries, not 1..4", stages_of(5)),
    spoilt(
        "decode.rest.stages has 2 entries, middle says that there are 0",
        put("decode.rest.middle", wire.MIDDLE_DENSE),
    ),
    spoilt(
        "prefill.rest.stages has 2 entries, middle says that there are 0",
        put("prefill.rest.middle", wire.MIDDLE_NONE),
    ),
    spoilt(f"{STAGE}.chunk_tokens 0 is not in 1..{MAX_REGION}", put(f"{STAGE}.chunk_tokens", 0)),
    spoilt(
        f"{STAGE}.chunk_tokens {MAX_REGION + 1} is not in 1..{MAX_REGION}",
        put(f"{STAGE}.chunk_tokens", MAX_REGION + 1),
    ),
    spoilt(
        f"{COARSE}.chunk_tokens 32 is not 64, the only size of bounds",
        put(f"{COARSE}.chunk_tokens", 32),
    ),
    spoilt(
        f"{COARSE}.rope.within_trained chunk_indexed {FOR_BOUNDS}",
        put(f"{COARSE}.rope.within_trained", wire.ROPE_STYLE_CHUNK_INDEXED),
    ),
    spoilt(
        f"{COARSE}.rope.beyond_trained streaming {FOR_BOUNDS}",
        put(f"{COARSE}.rope.beyond_trained", wire.ROPE_STYLE_STREAMING),
    ),
    spoilt(
        f"{STAGE}.chunk_tokens 24 does not divide a page of 64 tokens",
        put(f"{STAGE}.chunk_tokens", 24),
    ),
    spoilt(f"{STAGE}.probes.probes 0 is not a power of two in 1..8", probes(0)),
    spoilt(f"{STAGE}.probes.probes 3 is not a power of two in 1..8", probes(3)),
    spoilt(f"{STAGE}.probes.probes 128 is not a power of two in 1..64", probes(128, 64)),
    spoilt(f"{STAGE}.keep_tokens 0 is less than chunk_tokens 8", put(f"{STAGE}.keep_tokens", 0)),
    spoilt(
        f"{STAGE}.keep_tokens 2047 is not a multiple of chunk_tokens 8",
        put(f"{STAGE}.keep_tokens", 2047),
    ),
    spoilt(
        f"{COARSE}.keep_tokens {MAX_REGION + 64} is more than {MAX_REGION}",
        put(f"{COARSE}.keep_tokens", MAX_REGION + 64),
    ),
    spoilt(f"{COARSE}.refresh_steps 0 is less than 1", put(f"{COARSE}.refresh_steps", 0)),
    spoilt(
        f"{STAGE}.rope.within_trained streaming is for attention only",
        put(f"{STAGE}.rope.within_trained", wire.ROPE_STYLE_STREAMING),
    ),
    spoilt(
        "decode.early.stages[2].rope.self_extend_group 0 is less than 1",
        put("decode.early.stages[2].rope.within_trained", wire.ROPE_STYLE_SELF_EXTEND),
        "paper-3k",
    ),
    spoilt(
        "decode.rest.stages[2].chunk_tokens 64 does not divide the previous stage's 32",
        put("decode.rest.stages[2].chunk_tokens", 64),
        "paper-3k",
    ),
    spoilt(
        f"{STAGE}.keep_tokens 8200 is more than the previous stage's 8192",
        put(f"{STAGE}.keep_tokens", 8200),
    ),
    spoilt(
        f"{STAGE}.refresh_steps 6 does not divide the previous stage's 16",
        put(f"{STAGE}.refresh_steps", 6),
    ),
    spoilt(
        "prefill.rest.stages[0].chunk_tokens 64 does not divide sink_tokens 100",
        put("sink_tokens", 100),
    ),
]
