"""Fixtures: a tiny model's file, the real model's path where there is one, a daemon in Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon
from tiny_model import Weights, write_tiny_model

import longshore


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Weights]:
    """The tiny model's file and its weights."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return path, write_tiny_model(path)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as a GGUF; a test that needs it is skipped without."""
    path = os.environ.get("LONGSHORE_MODEL")
    if path is None:
        pytest.skip(
            "NOT TESTED on a real model: set LONGSHORE_MODEL to SmolLM2-135M-Instruct's GGUF"
        )
    assert Path(path).is_file(), f"LONGSHORE_MODEL names {path}, which is no file"
    return Path(path)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    """A daemon in Python that attends densely."""
    fake = FakeDaemon(f"unix:{tmp_path}/longshored.sock")
    yield fake
    fake.stop()


@pytest.fixture
def client(daemon: FakeDaemon) -> Iterator[longshore.Client]:
    """Connected to `daemon`."""
    with longshore.connect(daemon.target) as connected:
        yield connected
