"""Five seconds of overload: what is refused is refused as it should be, and memory stays where it is.

The minute, and how much is served in it, is tests/bench/overload.py: a figure, not a test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_overload_refuses_properly_and_within_its_memory() -> None:
    daemon = os.environ.get("LONGSHORED")
    if not daemon:
        pytest.skip("SKIPPED: no daemon, set LONGSHORED to the built longshored")
    build = Path(daemon).resolve().parents[1]
    if not (build / "tests/overload_bench").exists():
        pytest.skip("SKIPPED: overload_bench is not built")
    command = [sys.executable, str(ROOT / "tests/bench/overload.py"), "--seconds=5", f"--build={build}"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    load, drain = (json.loads(line) for line in run.stdout.splitlines())
    assert load["other"] == 0, load
    assert load["value"] > 0 and load["queue_full"] > 0, f"it was no overload: {load}"
    # 64 calls wait, of 5 KB each; the tokens that were appended are a few MB more.
    assert load["rss_growth_mib"] < 64, load
    assert drain["exit"] == 0
