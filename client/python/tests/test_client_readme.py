"""The examples that people copy, run as they are written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_reference import dense_attention, to_float64
from fake_daemon import FakeDaemon
from real_daemon import real_daemon

PACKAGE = Path(__file__).parents[1]


def example(readme: Path, heading: str = "") -> str:
    """The first block of Python after a heading."""
    text = readme.read_text().split(heading, 1)[1] if heading else readme.read_text()
    return text[text.index("```python") + len("```python") :].split("```")[0]


def run_example(readme: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Runs it against the daemon whose socket is in `folder`; the variables that it leaves."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    code = example(readme)
    variables: dict[str, Any] = {}
    exec(compile(code, str(readme), "exec"), variables)
    return variables


def test_the_example(
    daemon: FakeDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert len(example(PACKAGE / "README.md").strip().splitlines()) <= 11
    left = run_example(PACKAGE / "README.md", tmp_path, monkeypatch)
    assert capsys.readouterr().out == "(201, 0)\n"
    model, q, k, v = (left[name] for name in ("model", "q", "k", "v"))
    keys, values = (to_float64(np.concatenate([x, x[:1]])) for x in (k, v))
    out, lse = dense_attention(model, to_float64(q[:1]), keys, values)
    np.testing.assert_allclose(left["out"], out, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(left["lse"], lse, rtol=1e-5, atol=1e-6)


def test_the_example_of_policies(capsys: pytest.CaptureFixture[str]) -> None:
    heading = "\n## Policies\n"
    exec(compile(example(PACKAGE / "README.md", heading), "README.md", "exec"), {})
    *table, average = capsys.readouterr().out.splitlines()
    assert float(average) > 0
    printed = (PACKAGE / "README.md").read_text().split(heading)[1].split("```\n")[1]
    shown = [line.removeprefix("    ") for line in printed.splitlines() if line.startswith("    ")]
    begin = table.index(shown[0])
    end = shown.index("python -m longshore.policy list")
    assert table[begin : begin + end] == shown[:end]


@pytest.mark.daemon
def test_the_examples_with_the_real_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readmes = [PACKAGE / "README.md", PACKAGE.parents[1] / "README.md"]
    with real_daemon(tmp_path):
        for readme in readmes:
            left = run_example(readme, tmp_path, monkeypatch)
            assert np.isfinite(np.asarray(left["out"])).all(), os.fspath(readme)
