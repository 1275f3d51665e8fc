"""A daemon for the tests of longshorectl."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from ctl_program import LONGSHORED, Ctl


@pytest.fixture(scope="session")
def ctl() -> Ctl:
    """For what needs no daemon."""
    return Ctl()


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ctl]:
    """longshorectl with a daemon to ask."""
    folder = tmp_path_factory.mktemp("daemon")
    target = f"unix:{folder}/d.sock"
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [LONGSHORED, f"--listen={target}", "--pool-bytes=512MiB", "--threads=1", "--metrics-listen="],
            stderr=out,
        )
    try:
        for _ in range(300):
            if "] ready, instance" in log.read_text():
                break
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield Ctl(target)
    finally:
        process.terminate()
        process.wait(20)
