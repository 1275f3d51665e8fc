"""Findings of a review of issue 4 about longshore.policy: each fails until it is fixed."""

from __future__ import annotations

import pytest

from longshore import DType, ModelShape, Pairing, RopeTable, policy
from longshore.policy.__main__ import main

MODEL = ["--layers", "4", "--heads", "8", "--kv-heads", "2", "--head-dim", "64"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "\udcff"],
        ["check", "standard", "--layers", "99999999999", "--heads", "8", "--head-dim", "64"],
        ["explain", "standard", "--context", "100", *MODEL, "--trained-tokens", "99999999999999999999"],
        ["explain", "standard", "--context", "100", *MODEL, "--sliding-window", "99999999999999999999"],
        ["explain", "standard", "--context", "100", *MODEL, "--dense-below", "99999999999999999999"],
        ["explain", "standard", "--context", "100", *MODEL, "--sliding-window", "9", "--sliding-layers", "3-1"],
        ["check", "standard", "--sliding-window", "9"],  # of no model: without effect
    ],
)
def test_what_is_wrong_is_a_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1


def test_larger_query_blocks_of_stages_cost_less() -> None:
    shape = ModelShape(32, 32, 8, 128, [], kv_dtype=DType.BF16)
    full = policy.preset("paper-3k")
    alone = policy.explain(full, shape, 1_000_000).prefill.average_bytes
    for layers in (full.prefill.rest, full.prefill.early):
        for stage in layers.stages:
            stage.query_block = 1024
    assert policy.explain(full, shape, 1_000_000).prefill.average_bytes < alone


def test_blocks_of_other_styles_share_nothing() -> None:
    """The daemon attends to 429 tokens here: 576..620 are the first block beyond, and choose alone."""
    rope = RopeTable.from_base(10000.0, 64, Pairing.HALVES, trained_tokens=600)
    shape = ModelShape(1, 2, 1, 64, [rope])
    full = policy.preset("paper-16k")
    full.extension = policy.Extension.EXTENSION_AT_TRAINED_LENGTH
    for phase in (full.prefill, full.decode):
        phase.first_layers = 0
        phase.ClearField("early")
        phase.rest.window_tokens = 64
        phase.rest.stages[0].keep_tokens = 64
        phase.rest.stages[0].query_block = 256
    it = policy.explain(full, shape, 621, max_tokens=1500)
    assert it.prefill.groups[0].step.attended.fresh == 429
