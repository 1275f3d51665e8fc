"""The built daemon as a fixture: $LONGSHORED, a fresh socket, killed when the tests are done."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Daemon:
    target: str
    process: subprocess.Popen[bytes]
    log: Path
    metrics: str  # host:port

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20)


def start_daemon(folder: Path, *flags: str) -> Daemon:
    binary = os.environ.get("LONGSHORED")
    if not binary:
        pytest.skip("SKIPPED: no daemon, set LONGSHORED to the built longshored")
    socket = folder / "longshored.sock"
    log = folder / "log"
    process = subprocess.Popen(
        [binary, f"--listen=unix:{socket}", "--metrics-listen=127.0.0.1:0", *flags],
        stderr=log.open("wb"),
    )
    for _ in range(100):
        metrics = re.search(r"metrics at http://([0-9.:]+)/metrics", log.read_text())
        if socket.exists() and metrics:
            return Daemon(f"unix:{socket}", process, log, metrics.group(1))
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(f"not ready within 10 s: {log.read_text()}")


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = start_daemon(tmp_path_factory.mktemp("daemon"), "--pool-bytes=4GiB")
    yield running
    assert running.stop() == 0, running.log.read_text()


@pytest.fixture(scope="session")
def model():
    """SmolLM2-135M-Instruct, or whatever Llama GGUF $LONGSHORE_MODEL names."""
    path = os.environ.get("LONGSHORE_MODEL")
    if not path:
        pytest.skip("SKIPPED: no model, set LONGSHORE_MODEL to a GGUF file")
    from longshore.runner import load_model

    return load_model(path)


@pytest.fixture(scope="session")
def document() -> str:
    """A long English text."""
    path = os.environ.get("LONGSHORE_DOCUMENT")
    if not path:
        pytest.skip("SKIPPED: no document, set LONGSHORE_DOCUMENT to a long text file")
    return Path(path).read_text()
