"""longshore.policy without a daemon: presets, refusals, and numbers computed by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_policies import MAX_REGION, ROPE, SHAPE, VALUES, WRITTEN, Refused
from bad_sessions import MODELS, SIZES
from google.protobuf import text_format

import longshore
from longshore import DType, ModelShape, policy
from longshore._proto.longshore.v1 import policy_pb2 as wire
from longshore.policy.layer_step import descent_keys
from longshore.policy.table import byte_text, layer_text

ALL = [*WRITTEN, *VALUES, *MODELS, *SIZES]
ROOT = Path(__file__).parents[3]

# Llama 3 8B: a token's key of a layer has 8 x 128 bf16 numbers, 2048 bytes.
LLAMA = ModelShape(
    32,
    32,
    8,
    128,
    [longshore.RopeTable.from_base(5e5, 128, longshore.Pairing.HALVES, 131072)],
    kv_dtype=DType.BF16,
)
KEY = 2048


def test_presets_are_in_full_and_valid() -> None:
    assert policy.PRESETS[0] == "standard" and "paper-3k" in policy.PRESETS
    for name in policy.PRESETS:
        full = policy.preset(name)
        policy.validate(full, SHAPE, max_tokens=1000)
        policy.validate(name, SHAPE, max_tokens=1000, dense_below_tokens=7)
        full.sink_tokens = 0  # the caller's own
        assert policy.preset(name).sink_tokens == 256
        again = text_format.Parse(text_format.MessageToString(full), policy.AttentionPolicy())
        assert again == full


def test_standard_is_what_the_design_says() -> None:
    decode = policy.preset("standard").decode.rest
    assert [
        (stage.chunk_tokens, stage.keep_tokens, stage.refresh_steps) for stage in decode.stages
    ] == [
        (64, 8192, 16),
        (8, 2048, 4),
    ]


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.message[:70])
def test_what_is_refused(row: Refused) -> None:
    with pytest.raises(longshore.InvalidArgument) as caught:
        policy.validate(
            row.policy,
            row.shape,
            max_tokens=row.max_tokens,
            dense_below_tokens=row.dense_below_tokens,
        )
    error = caught.value
    assert (error.message, error.field, error.reason) == (row.message, row.field, "INVALID_FIELD")


@pytest.mark.parametrize(
    "source",
    [
        "service/convert_policy.cc",
        "engine/policy.cc",
        "engine/model_shape.cc",
        "engine/session_size.cc",
    ],
)
def test_every_message_of_the_daemon_has_a_row(source: str) -> None:
    """A check that is added there is a check to add here: each has words of its own."""
    path = ROOT / source
    if not path.exists():
        pytest.skip(f"NOT TESTED: {source} is not here; run in a clone")
    words = words_of_refusals(path.read_text())
    assert len(words) >= 3
    missing = [text for text in words if not any(text in row.message for row in ALL)]
    # Checks that what is checked before never lets through, and a type that Python has no name for.
    unreachable = {
        "is missing: set preset or policy",
        "is not a rotary style",
        "is not a selector",
        "f8e4m3 is not one of f32, bf16, f16",
    }
    assert set(missing) <= unreachable


def words_of_refusals(code: str) -> list[str]:
    """The longest string literal of each InvalidField(...) that is more than a field's name."""
    found = []
    for call in re.findall(r"InvalidField\(((?:[^;\"]|\"(?:[^\"\\]|\\.)*\")*?)\);", code):
        # Adjacent literals are one.
        joined = re.sub(r"\"\s*\n\s*\"", "", call)
        literals = re.findall(r"\"((?:[^\"\\]|\\.)*)\"", joined)
        texts = [text.replace('\\"', '"') for text in literals if " " in text]
        if texts:
            found.append(max(texts, key=len).strip())
    return found


def test_refusals_are_looked_for_in_the_order_of_the_daemon() -> None:
    """What is not set anywhere comes before any value, the model before the policy."""
    full = policy.preset("standard")
    full.sink_tokens = -1
    full.decode.rest.stages[1].selector = 0
    with pytest.raises(longshore.InvalidArgument, match="selector is not set"):
        policy.validate(full)
    with pytest.raises(longshore.InvalidArgument, match="head_dim 65"):
        policy.validate(full, ModelShape(1, 1, 1, 65))


def test_without_a_shape_the_policy_alone_is_looked_at() -> None:
    policy.validate("standard")
    with pytest.raises(longshore.InvalidArgument) as caught:
        policy.validate("standard", max_tokens=0)
    assert caught.value.field == "max_tokens"
    with pytest.raises(longshore.InvalidArgument):
        policy.preset("standrd")


def test_limits_of_a_daemon_can_be_given() -> None:
    limits = policy.SessionLimits(500, 100, 1000, 1 << 30)
    with pytest.raises(longshore.InvalidArgument, match="501 is not in 1..500"):
        policy.validate("dense", SHAPE, max_tokens=501, limits=limits)
    with pytest.raises(longshore.InvalidArgument, match="the limit is 1000"):
        policy.validate("dense", SHAPE, max_tokens=500, limits=limits)


def test_standard_at_a_million() -> None:
    it = policy.explain("standard", LLAMA, 1_000_000)
    (group,) = it.decode.groups
    step = group.step
    assert (group.layers, group.middle, group.rope) == (tuple(range(32)), "stages", "streaming")
    # (1000000 - 1024 - 256) / 64 = 15605 chunks; 2 rows of each. 8192 / 8 = 1024 pieces of 8 keys.
    coarse, fine = step.stages
    assert (coarse.candidates, coarse.kept_chunks, coarse.rope) == (15605, 128, "relative")
    assert coarse.read_bytes == 15605 * 2 * KEY
    assert (fine.candidates, fine.kept_chunks) == (1024, 256)
    assert fine.read_bytes == 8192 * KEY
    # The middle ends at 256 + 15605 * 64 = 998976, exactly W before the end.
    assert (step.sink.fresh, step.selected.fresh, step.window.fresh) == (256, 2048, 1024)
    # One step ago it ended a chunk earlier, and so it does until 15 steps ago.
    assert (step.window.cached, step.attended.cached) == (1088, 256 + 2048 + 1088)
    assert step.read_bytes.cached == 2 * KEY * 3392
    assert step.read_bytes.fresh == 2 * KEY * 3328 + coarse.read_bytes + fine.read_bytes
    # 15 chunks of 15604 candidates are not read: stage 0 runs at age 0 only.
    average = 2 * KEY * (3328 + 15 * 3392) / 16 + coarse.read_bytes / 16 + fine.read_bytes / 4
    assert step.read_bytes.average == average
    assert group.dense_bytes == 2 * KEY * 1_000_000
    assert it.decode.average_bytes == 32 * average
    # 15625 pages of 64 tokens, keys and values.
    assert it.memory.page_bytes == 32 * 15625 * 64 * 2 * KEY
    assert "15,605" in str(it) and "22.1 MB on average" in str(it)


def test_a_stage_that_keeps_everything_reads_nothing() -> None:
    it = policy.explain("standard", LLAMA, 256 + 1024 + 8192 + 10, dense_below_tokens=0)
    coarse, fine = it.decode.groups[0].step.stages
    assert (coarse.candidates, coarse.kept_chunks, coarse.read_bytes) == (128, 128, 0)
    assert (fine.candidates, fine.kept_chunks, fine.read_bytes) == (1024, 256, 8192 * KEY)
    assert it.decode.groups[0].rope == "true_positions"  # fits the trained length
    # The chunk that fills 10 steps ago was in the window before: 127 candidates at ages 11 to 15.
    window = it.decode.groups[0].step.window.values
    assert list(window) == [1034] * 11 + [1098] * 5


@pytest.mark.parametrize("context", [1, 63, 255, 256, 257, 1280, 1343, 1344])
def test_short_contexts_are_attended_whole(context: int) -> None:
    for name in ("standard", "streaming", "paper-3k"):
        it = policy.explain(name, LLAMA, context, dense_below_tokens=0)
        expected = min(context, 1280) if name == "streaming" else context
        assert {group.step.attended.fresh for group in it.decode.groups} == {expected}, name


def test_where_a_policy_is_dense() -> None:
    def middle(context: int, max_tokens: int) -> str:
        it = policy.explain("standard", LLAMA, context, max_tokens=max_tokens)
        return it.decode.groups[0].middle

    assert middle(8192, 131072) == "dense_below"
    assert middle(8193, 131072) == "stages"
    assert middle(8192, 131073) == "stages"  # extended from its first token
    later = policy.preset("standard")
    later.extension = wire.EXTENSION_AT_TRAINED_LENGTH
    ropes = [
        policy.explain(later, LLAMA, context, max_tokens=200_000).decode.groups[0].rope
        for context in (131072, 131073)
    ]
    assert ropes == ["true_positions", "streaming"]


def test_layers_that_do_the_same_are_a_group() -> None:
    it = policy.explain("paper-3k", LLAMA, 500_000)
    early, rest = it.decode.groups
    assert (early.layers, rest.layers) == ((0, 1, 2), tuple(range(3, 32)))
    assert (early.step.stages[2].rope, rest.step.stages[2].rope) == ("chunk_indexed", "relative")
    assert (early.step.selected.fresh, rest.step.selected.fresh) == (4096, 2048)
    # Stage 0: 1 + log2(256) keys of each of 32 heads; a chunk of 8 has less than 4 keys of 32.
    assert rest.step.stages[0].candidates == (500_000 - 1280) // 256
    assert rest.step.stages[0].read_bytes == (500_000 - 1280) // 256 * 9 * 32 * 256
    assert rest.step.stages[2].read_bytes == 1024 * min(4 * 32 * 256, 8 * KEY)
    phases = policy.explain("paper-3k-5k", LLAMA, 500_000)
    assert [
        phase.groups[0].step.stages[0].chunk_tokens for phase in (phases.prefill, phases.decode)
    ] == [
        256,
        64,
    ]


def test_tables_of_other_lengths_make_other_groups() -> None:
    short = longshore.RopeTable.from_base(1e4, 64, longshore.Pairing.HALVES, 1000)
    shape = ModelShape(4, 4, 2, 64, [ROPE, short], layer_rope_table=[0, 1, 0, -1])
    it = policy.explain("standard", shape, 5000)
    assert [(g.layers, g.trained_tokens, g.middle) for g in it.decode.groups] == [
        ((0, 2), 8192, "dense_below"),
        ((1,), 1000, "stages"),
        ((3,), None, "dense_below"),
    ]


def test_sliding_windows_have_groups_of_their_own() -> None:
    windows = [512, 512, 0, 512]
    shape = ModelShape(4, 4, 2, 64, [ROPE], layer_sliding_window=windows)
    it = policy.explain("standard", shape, 100_000)
    sliding, full = it.decode.groups
    assert (sliding.layers, sliding.middle, full.layers) == ((0, 1, 3), "sliding_window", (2,))
    assert sliding.step.attended.fresh == 512 and sliding.step.stages == ()
    assert sliding.dense_bytes == sliding.step.read_bytes.fresh == 512 * 2 * 512
    # A prefill block of 100000 - 99968 = 32 rows sees what its first row does, and its own.
    assert it.prefill.rows == 32
    assert it.prefill.groups[0].step.attended.fresh == 512 + 31
    # Reserved: the window and two calls, in the other layer all of it.
    pages = 3 * (-(-(512 + 2 * 32768) // 64) + 1) + -(-100_000 // 64)
    assert it.memory.page_bytes == pages * 64 * 2 * 512
    assert policy.explain("standard", shape, 100).decode.groups[0].step.attended.fresh == 100


def test_probes_and_descent_read_few_keys() -> None:
    full = policy.preset("paper-3k")
    full.decode.first_layers = 0
    full.decode.ClearField("early")
    stage = full.decode.rest.stages[0]
    stage.descent.representative = wire.DescentParams.REPRESENTATIVE_MIDDLE
    stage.descent.score = wire.DescentParams.SCORE_FINAL
    last = full.decode.rest.stages[2]
    last.selector = wire.SELECTOR_PROBES
    last.probes.probes = 2
    coarse, _, fine = policy.explain(full, LLAMA, 300_000).decode.groups[0].step.stages
    assert coarse.read_bytes == coarse.candidates * 16 * 32 * 256  # 2 keys at each of 8 levels
    assert fine.read_bytes == 1024 * 2 * KEY
    keys = [descent_keys(wire.Stage(chunk_tokens=chunk)) for chunk in (1, 2, 4, 8, 32, 64, 256)]
    assert keys == [1, 1, 3, 4, 6, 7, 9]


@pytest.mark.parametrize("middle", [False, True], ids=["first", "middle"])
def test_no_way_down_a_chunk_meets_more_keys(middle: bool) -> None:
    """Every way of the design's halving: m = floor((first + last) / 2), [first, m - 1], [m, last]."""

    def stands_for(first: int, last: int) -> int:
        return (first + last) // 2 if middle else first

    def most_keys(first: int, last: int, met: frozenset[int]) -> int:
        met |= {stands_for(first, last)} if not middle or last - first < 2 else set()
        if last - first < 2:
            return len(met)
        halves = [(first, (first + last) // 2 - 1), ((first + last) // 2, last)]
        met |= {stands_for(*half) for half in halves}
        return max(most_keys(*half, met) for half in halves)

    kind = wire.DescentParams
    representative = kind.REPRESENTATIVE_MIDDLE if middle else kind.REPRESENTATIVE_FIRST
    for chunk in (*range(1, 34), 64, 100, 256):
        stage = wire.Stage(chunk_tokens=chunk)
        stage.descent.representative = representative
        most = most_keys(0, chunk - 1, frozenset())
        assert most == descent_keys(stage) or (middle and most < descent_keys(stage)), chunk


def test_a_context_past_the_session_is_refused() -> None:
    with pytest.raises(
        longshore.InvalidArgument, match="context_tokens 11 is not in 1..max_tokens 10"
    ):
        policy.explain("standard", SHAPE, 11, max_tokens=10)
    for context in (0, MAX_REGION + 1):
        said = f"^context_tokens {context} is not in 1..{MAX_REGION}"
        with pytest.raises(longshore.InvalidArgument, match=said):
            policy.explain("standard", SHAPE, context)
    with pytest.raises(longshore.InvalidArgument, match="^max_tokens 0 is not in"):
        policy.explain("standard", SHAPE, 1, max_tokens=0)
    with pytest.raises(TypeError):
        policy.explain("standard", SHAPE, 1.5, max_tokens=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_tokens": 1.5}, TypeError),
        ({"max_tokens": True}, TypeError),
        ({"max_tokens": 1 << 63}, ValueError),
        ({"dense_below_tokens": 1.5}, TypeError),
        ({"dense_below_tokens": 1 << 63}, ValueError),
        ({"policy": "\udcff"}, ValueError),
        ({"model": ModelShape(1 << 31, 1, 1, 64)}, ValueError),
        # Before anything that the daemon would refuse.
        ({"policy": "standrd", "max_tokens": 1.5}, TypeError),
    ],
)
def test_what_no_request_can_hold(
    client: longshore.Client, options: dict[str, Any], error: type[Exception]
) -> None:
    given = {"model": SHAPE, "policy": "standard", "max_tokens": 10} | options
    with pytest.raises(error) as opened:
        client.open_session(**given)
    given["shape"] = given.pop("model")
    with pytest.raises(error) as validated:
        policy.validate(**given)
    assert type(validated.value) is type(opened.value)
    assert str(validated.value) == str(opened.value)


def test_numbers_of_numpy_are_numbers() -> None:
    policy.validate("standard", SHAPE, max_tokens=np.int64(5))  # type: ignore[arg-type]
    assert policy.explain("standard", SHAPE, np.int32(5)).as_dict()["max_tokens"] == 5  # type: ignore[arg-type]


def test_numbers_and_layers_as_text() -> None:
    assert [byte_text(count) for count in (0, 999, 1000, 12_345, 999_600, 1.5e9, 1e18)] == [
        "0 bytes",
        "999 bytes",
        "1.00 kB",
        "12.3 kB",
        "1.00 MB",
        "1.50 GB",
        "1000 PB",
    ]
    assert layer_text((0, 1, 2, 5, 7, 8)) == "0-2, 5, 7-8"
