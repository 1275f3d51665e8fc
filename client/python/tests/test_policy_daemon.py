"""longshore.policy against the real daemon: its refusals, and the numbers that it really has."""

from __future__ import annotations

import random
import socket
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bad_policies import ROPE, SHAPE, VALUES, WRITTEN, Refused
from bad_sessions import MODELS, SIZES
from dense_reference import gaussian
from google.protobuf.descriptor import FieldDescriptor
from real_daemon import real_daemon

import longshore
from longshore import Client, ModelShape, Session, policy
from longshore.policy import AttentionPolicy
from longshore.policy.explanation import LayerGroup, Phase

pytestmark = pytest.mark.daemon


@pytest.fixture(scope="module")
def metrics_address() -> str:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, metrics_address: str) -> Iterator[Client]:
    with real_daemon(tmp_path_factory.mktemp("daemon"), metrics_address) as target:
        with longshore.connect(target) as connected:
            yield connected


def refusal(call: Any, *arguments: Any, **options: Any) -> tuple[str, str, str, str] | None:
    """Code, message, field and reason; None if it went well. A session is closed again."""
    try:
        result = call(*arguments, **options)
    except longshore.Error as error:
        return error.code.name, error.message, error.field, error.reason
    if isinstance(result, Session):
        result.close()
    return None


def test_presets_and_limits_are_the_daemons(client: Client) -> None:
    info = client.info()
    assert info.presets == policy.PRESETS
    assert info.limits.max_tokens_per_session == policy.DEFAULT_LIMITS.max_tokens_per_session
    assert info.limits.max_rows_per_prefill == policy.DEFAULT_LIMITS.max_rows_per_prefill
    for name in info.presets:
        with client.open_session(SHAPE, name, max_tokens=1000) as session:
            assert session.policy == policy.preset(name), name


@pytest.mark.parametrize(
    "row", [*WRITTEN, *VALUES, *MODELS, *SIZES], ids=lambda row: row.message[:70]
)
def test_the_daemon_says_the_same(client: Client, row: Refused) -> None:
    said = refusal(
        client.open_session,
        row.shape,
        row.policy,
        max_tokens=row.max_tokens,
        dense_below_tokens=row.dense_below_tokens,
    )
    assert said == ("INVALID_ARGUMENT", row.message, row.field, "INVALID_FIELD")


_INTEGERS = (-5, -1, 0, 1, 2, 3, 7, 8, 16, 24, 32, 63, 64, 65, 100, 128, 256, 1024, 2048, 8192)
_LARGE = (16384, 1 << 24, (1 << 24) + 1, (1 << 24) + 64)
_FLOATS = (0.0, 0.5, 1.0, 1.5, 1024.0, 1025.0, float("nan"), float("inf"))


def spoil(message: Any, dice: random.Random) -> None:
    """Changes one field of a message, or of one below it."""
    field = dice.choice(message.DESCRIPTOR.fields)
    if field.name == "stages":
        spoil_stages(message.stages, dice)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        inner = getattr(message, field.name)
        if dice.random() < 0.1:
            message.ClearField(field.name)
        elif dice.random() < 0.1:
            inner.SetInParent()
        else:
            spoil(inner, dice)
    else:
        values: Any = _INTEGERS + _LARGE
        if field.type == FieldDescriptor.TYPE_ENUM:
            values = (-1, *field.enum_type.values_by_number, 99)
        elif field.type == FieldDescriptor.TYPE_FLOAT:
            values = _FLOATS
        setattr(message, field.name, dice.choice(values))


def spoil_stages(stages: Any, dice: random.Random) -> None:
    what = dice.random()
    if what < 0.1 or not stages:
        stages.add()
    elif what < 0.2:
        stages.add().CopyFrom(dice.choice(stages))
    elif what < 0.3:
        del stages[dice.randrange(len(stages))]
    else:
        spoil(dice.choice(stages), dice)


def test_the_daemon_says_the_same_of_policies_made_at_random(client: Client) -> None:
    """Several faults at once: it also matters which one is found first."""
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    refused = 0
    for trial in range(2000):
        full = policy.preset(dice.choice(policy.PRESETS))
        stages = [*full.decode.rest.stages, *full.decode.early.stages]
        # Spread over the policy, or all in one stage, whose checks have an order, too.
        whole = dice.choice([full, full, *stages])
        for _ in range(dice.randint(1, 4)):
            spoil(whole, dice)
        expected = refusal(policy.validate, full, SHAPE, max_tokens=700)
        said = refusal(client.open_session, SHAPE, full, max_tokens=700, overcommit=True)
        assert said == expected, f"seed {seed}, trial {trial}:\n{full}"
        refused += said is not None
    assert 200 < refused < 2000  # of both kinds


# What the daemon attends to shows in its log-sum-exp: with a query of zeros every score is 0, so
# that it is the logarithm of the number of tokens.

MODEL = ModelShape(3, 2, 1, 64, [ROPE])


def small(preset: str, **changes: int) -> AttentionPolicy:
    """A preset with budgets for short contexts, and with other fields of both phases' layers."""
    full = policy.preset(preset)
    full.sink_tokens, full.dense_below_tokens = 64, changes.pop("dense_below", 0)
    if full.decode.first_layers > 0:
        full.sink_tokens = 256  # a multiple of the first stage's chunk
    for phase in (full.prefill, full.decode):
        phase.first_layers = min(phase.first_layers, 1)
        for layers in (phase.rest, phase.early) if phase.first_layers else (phase.rest,):
            layers.window_tokens = 100
            for stage in layers.stages:
                stage.keep_tokens //= 16
    return full


def attended(group: LayerGroup, layer: int, context: int) -> int:
    """Tokens of a decode step that makes a layer `context` long, by the layer's clock."""
    values = group.step.attended.values
    return int(values[(context - 1 + layer) % len(values)])


def group_of(phase: Phase, layer: int) -> LayerGroup:
    return next(group for group in phase.groups if layer in group.layers)


def tokens_seen(lse: np.ndarray[Any, Any]) -> int:
    count = np.exp(lse[-1].astype(np.float64))
    np.testing.assert_allclose(count, np.round(count[0]), rtol=1e-4)
    return round(float(count[0]))


POLICIES = {
    "standard": small("standard"),
    "flash": small("flash"),
    "paper-3k": small("paper-3k"),
    "paper-3k-5k": small("paper-3k-5k"),
    "paper-16k": small("paper-16k"),
    "streaming": small("streaming"),
    "dense": small("dense"),
    "dense below": small("standard", dense_below=1400),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("max_tokens", [2000, 9000], ids=["trained length", "extended"])
def test_the_daemon_attends_to_as_many_tokens(
    client: Client, metrics_address: str, name: str, max_tokens: int
) -> None:
    full, prompt, steps = POLICIES[name], 1301, 200
    _, k, v = gaussian(MODEL, prompt + steps)
    q = np.zeros((prompt + steps, MODEL.num_heads, MODEL.head_dim), np.float32)
    with client.open_session(MODEL, full, max_tokens=max_tokens) as session:
        for layer in range(MODEL.num_layers):
            part = slice(0, prompt)
            _, lse = session.prefill(layer, q[part], k[part], v[part], want_lse=True)
            it = policy.explain(full, MODEL, prompt, max_tokens=max_tokens)
            assert tokens_seen(lse) == group_of(it.prefill, layer).step.attended.fresh
        before, expected = lookups(metrics_address), Counter[tuple[int, str]]()
        for context in range(prompt + 1, prompt + steps + 1):
            it = policy.explain(full, MODEL, context, max_tokens=max_tokens)
            for layer in range(MODEL.num_layers):
                part = slice(context - 1, context)
                _, lse = session.decode(layer, q[part], k[part], v[part], want_lse=True)
                group = group_of(it.decode, layer)
                # A prefill, or the first step that is not dense, leaves a mask of its own: the
                # clock counts from the first refresh on.
                masked_from = max(prompt, full.dense_below_tokens if group.step.stages else 0)
                if context > masked_from + len(group.step.attended.values):
                    assert tokens_seen(lse) == attended(group, layer, context), (context, layer)
                for stage, reads in enumerate(group.step.stages):
                    runs = (context - 1 + layer) % reads.refresh_steps == 0
                    expected[stage, "refreshed" if runs else "cached"] += 1
        after = lookups(metrics_address)
        for key, count in after.items():
            # Once more in each layer where prefill's masks do not serve decode, or it was dense.
            assert abs(count - before[key] - expected[key]) <= MODEL.num_layers, key
        info = session.describe()
        assert info.page_bytes_used + info.page_bytes_reserved == it.memory.page_bytes


def lookups(address: str) -> dict[tuple[int, str], int]:
    """(stage, refreshed or cached): query blocks, of all layers since the daemon started."""
    counts = {}
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("longshore_mask_cache_lookups_total{"):
                labels, value = line.split("{")[1].split("} ")
                pairs = dict(pair.split("=") for pair in labels.split(","))
                stage = int(pairs["stage"].strip('"').removeprefix("prune_"))
                counts[stage, pairs["result"].strip('"')] = int(float(value))
    assert counts
    return counts


@pytest.mark.parametrize("name", policy.PRESETS)
def test_tables_are_as_large_as_the_daemon_says(client: Client, name: str) -> None:
    """It says so only of those that it refuses: 1024 layers of 16Mi tokens."""
    short = longshore.RopeTable(ROPE.inv_freq[:10], longshore.Pairing.HALVES, 1000)
    shape = ModelShape(
        *(1024, 16, 1, 64),
        rope_tables=[ROPE, short],
        layer_rope_table=[0, 1, -1, 0] * 256,
        layer_sliding_window=[0, 0, 512, 0] * 256,  # no masks there
        sink_logits=np.zeros((1024, 16)),
    )
    longest = policy.DEFAULT_LIMITS.max_tokens_per_session
    said = refusal(client.open_session, shape, name, max_tokens=longest, overcommit=True)
    assert said is not None and "bytes of tables" in said[1]
    assert said == refusal(policy.validate, name, shape, max_tokens=longest)
    limits = replace(policy.DEFAULT_LIMITS, max_table_bytes=1 << 40, max_score_bytes=1 << 40)
    it = policy.explain(name, shape, longest, limits=limits)
    assert f"needs {it.memory.table_bytes} bytes of tables" in said[1]


def test_sliding_windows(client: Client) -> None:
    windows = [0, 70, 0]
    shape = ModelShape(3, 2, 1, 64, [ROPE], layer_sliding_window=windows)
    _, k, v = gaussian(shape, 400)
    q = np.zeros((400, shape.num_heads, shape.head_dim), np.float32)
    with client.open_session(shape, small("standard"), max_tokens=100_000) as session:
        for context in (10, 69, 70, 71, 200):
            it = policy.explain(small("standard"), shape, context, max_tokens=100_000)
            part = slice(session.tokens(1), context)
            _, lse = session.prefill(1, q[part], k[part], v[part], want_lse=True)
            assert tokens_seen(lse) == it.decode.groups[1].step.attended.fresh
        info = session.describe()
        assert info.page_bytes_used + info.page_bytes_reserved == it.memory.page_bytes
