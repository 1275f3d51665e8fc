"""longshorectl as its users have it: the program, and a daemon of its own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BUILD = Path(__file__).parents[2] / "build/release"
CTL = Path(os.environ.get("LONGSHORECTL", BUILD / "client/cpp/longshorectl"))
LONGSHORED = Path(os.environ.get("LONGSHORED", BUILD / "service/longshored"))


class Ctl:
    """Runs longshorectl; commands that ask a daemon ask `target`."""

    def __init__(self, target: str | None = None) -> None:
        self.target = target

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [str(CTL), *map(str, arguments)]
        if self.target is not None:
            command.append(f"--target={self.target}")
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    def text(self, *arguments: object) -> str:
        """What it prints; it must succeed."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def json(self, *arguments: object) -> Any:
        return json.loads(self.text(*arguments, "--json"))


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
