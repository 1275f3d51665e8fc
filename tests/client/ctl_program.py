"""longshorectl as its users have it: the program."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

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
