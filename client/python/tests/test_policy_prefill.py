"""explain of a prefill: which query blocks share what a stage keeps, and its cost."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from dense_reference import gaussian
from real_daemon import real_daemon

import longshore
from longshore import DType, ModelShape, Pairing, RopeTable, policy
from longshore.policy import AttentionPolicy, Explanation, Extension

LLAMA = ModelShape(
    *(32, 32, 8, 128), [RopeTable.from_base(5e5, 128, Pairing.HALVES, 131072)], kv_dtype=DType.BF16
)
KEY = 2048  # bytes of a token's key of a layer: 8 x 128 bf16 numbers

SMALL = ModelShape(1, 2, 1, 64, [RopeTable.from_base(10000.0, 64, Pairing.HALVES, 600)])


def test_a_prefill_block_selects_for_its_first_row() -> None:
    it = policy.explain("standard", LLAMA, 20_000, max_tokens=200_000)
    step = it.prefill.groups[0].step
    assert it.prefill.rows == 20_000 - 19_968
    assert step.stages[0].candidates == (19_969 - 1280) // 64
    assert step.window.fresh == 20_000 - 256 - (19_969 - 1280) // 64 * 64
    assert [stage.shared_rows for stage in step.stages] == [64, 64]
    # Nobody shares the choice of its stages: it pays for them alone, as a whole block would.
    stages = sum(stage.read_bytes for stage in step.stages)
    assert step.read_bytes.fresh == stages + 2 * KEY * step.attended.fresh


def with_query_blocks(*rows: int) -> AttentionPolicy:
    full = policy.preset("standard")
    for stage, stage_rows in zip(full.prefill.rest.stages, rows, strict=True):
        stage.query_block = stage_rows
    return full


def test_blocks_that_share_a_choice_share_its_cost() -> None:
    it = policy.explain(with_query_blocks(1024, 256), LLAMA, 1_000_000)
    step = it.prefill.groups[0].step
    coarse, fine = step.stages
    assert (coarse.shared_rows, fine.shared_rows) == (1024, 256)
    # 999936 is in the coarse stage's block 976, whose first row is 999424.
    assert coarse.candidates == (999_424 + 1 - 1280) // 64
    assert coarse.read_bytes == coarse.candidates * 2 * KEY  # of one run, for 16 query blocks
    assert fine.read_bytes == 8192 * KEY  # for 4
    shares = coarse.read_bytes // 16 + fine.read_bytes // 4
    assert step.read_bytes.fresh == 2 * KEY * step.attended.fresh + shares
    rows = [line for line in str(it).split("prefill: ")[1].splitlines() if "  every " in line]
    assert ["every 1024 rows" in row for row in rows] == [True, False]
    assert "every 256 rows" in rows[1]
    # Decode's stages have query blocks of one row, whatever is written.
    assert [stage.shared_rows for stage in it.decode.groups[0].step.stages] == [1, 1]


def test_larger_query_blocks_cost_less() -> None:
    costs = [
        policy.explain(with_query_blocks(rows, 64), LLAMA, 1_000_000).prefill.average_bytes
        for rows in (64, 128, 256, 512, 1024)
    ]
    assert costs == sorted(costs, reverse=True) and costs[0] > 2 * costs[-1]


def small(**changes: int) -> AttentionPolicy:
    """Stages of one query block of 256 rows, in contexts short enough for a test."""
    full = policy.preset("paper-16k")
    full.extension = Extension.EXTENSION_AT_TRAINED_LENGTH
    full.dense_below_tokens = changes.get("dense_below", 0)
    for phase in (full.prefill, full.decode):
        phase.first_layers = 0
        phase.ClearField("early")
        phase.rest.window_tokens = 64
        for stage in phase.rest.stages:
            stage.keep_tokens = 64
            stage.query_block = 256
    return full


def explained(full: AttentionPolicy, context: int, max_tokens: int = 1500) -> Explanation:
    return policy.explain(full, SMALL, context, max_tokens=max_tokens)


def test_blocks_of_other_styles_share_nothing() -> None:
    """512..575 choose with the styles within 600 tokens, 576..767 with those beyond."""
    (group,) = explained(small(), 621).prefill.groups
    assert group.step.stages[0].shared_rows == 192
    # The middle ends at 256 + floor((577 - 320) / 32) 32 = 512: the window holds 109 tokens.
    assert group.step.attended.fresh == 256 + 64 + 109 == 429
    (group,) = explained(small(), 570).prefill.groups
    assert group.step.stages[0].shared_rows == 256 and group.rope == "true_positions"


def test_blocks_that_are_dense_share_nothing() -> None:
    """Up to 330 tokens a block is whole, so that 320..383 is the first of 256..511 to choose."""
    whole, first = (explained(small(dense_below=330), context) for context in (330, 331))
    assert (whole.prefill.groups[0].middle, first.prefill.groups[0].middle) == (
        "dense_below",
        "stages",
    )
    assert first.prefill.groups[0].step.stages[0].shared_rows == 192


def test_the_rows_of_a_block_attend_to_more_than_each() -> None:
    shape = ModelShape(1, 2, 1, 64, [], layer_sliding_window=[512])
    it = policy.explain("dense", shape, 100_000)
    decode, prefill = str(it).split("prefill: ")
    assert "    attends to 512 tokens" in decode
    assert "    its rows together attend to 543 tokens" in prefill


@pytest.mark.daemon
def test_the_daemon_attends_to_as_many_tokens_in_prefill(tmp_path: Path) -> None:
    """A query of zeros: log-sum-exp is the logarithm of the number of tokens."""
    contexts = [257, 320, 330, 331, 384, 385, 449, 451, 512, 513, 575, 600]
    beyond = [601, 621, 640, 641, 767, 768, 769, 1000]
    _, k, v = gaussian(SMALL, max(beyond))
    q = np.zeros((len(k), SMALL.num_heads, SMALL.head_dim), np.float32)
    with real_daemon(tmp_path) as target, longshore.connect(target) as client:
        for extension, dense_below, max_tokens in product(
            (Extension.EXTENSION_AT_TRAINED_LENGTH, Extension.EXTENSION_FROM_START),
            (0, 330, 450, 9999),
            (600, 1500),
        ):
            full = small(dense_below=dense_below)
            full.extension = extension
            session = client.open_session(SMALL, full, max_tokens=max_tokens)
            for context in contexts + (beyond if max_tokens > 600 else []):
                session.truncate(0)
                part = slice(0, context)
                _, lse = session.prefill(0, q[part], k[part], v[part], want_lse=True)
                count = round(float(np.exp(lse[-1, 0].astype(np.float64))))
                (group,) = explained(full, context, max_tokens).prefill.groups
                where = (context, dense_below, max_tokens, extension)
                assert count == group.step.attended.fresh, where
            session.close()
