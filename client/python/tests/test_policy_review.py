"""Findings of a review of issue 4 about longshore.policy: each fails until it is fixed."""

from __future__ import annotations

import pytest

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
