"""The daemon that LONGSHORED names, as a process of a test's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import longshore


@contextmanager
def real_daemon(folder: Path, metrics_listen: str = "") -> Iterator[str]:
    """Runs it at folder/longshored.sock; yields that target. Skips the test without LONGSHORED."""
    path = os.environ.get("LONGSHORED")
    if path is None:
        pytest.skip("NOT TESTED against the real daemon: set LONGSHORED to the built longshored")
    target = f"unix:{folder}/longshored.sock"
    flags = [f"--listen={target}", "--pool-bytes=256MiB", f"--metrics-listen={metrics_listen}"]
    with (folder / "log").open("wb") as log, subprocess.Popen([path, *flags], stderr=log) as daemon:
        try:
            longshore.connect(target, wait_seconds=20).close()
            yield target
        finally:
            daemon.terminate()
            status = daemon.wait(20)
    assert status == 0, (folder / "log").read_text()
