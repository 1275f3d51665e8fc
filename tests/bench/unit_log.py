"""Finished pieces of a long measurement, on disk one by one: a run that was stopped continues where it was."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path


class UnitLog:
    """A file of JSON lines: what is measured, then a line for each finished unit. One writer, which has lock()ed it.

    Each unit is written and synced when it is added, so whatever stops the program costs the unit in progress. A
    line that was cut short is dropped.
    """

    def __init__(self, path: Path, measured: dict[str, str]) -> None:
        """Opens or begins the log. ValueError if the log there is of something else than `measured`."""
        self.path = path
        self._units: dict[str, dict] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            self._append({"measured": measured})
        lines = whole_lines(path)
        there = lines[0]["measured"] if lines else None
        if there != measured:
            raise ValueError(f"{path} is of {there}, not of {measured}: give the run another name")
        self._units = {line["unit"]: line for line in lines[1:]}

    def lock(self) -> None:
        """Until this process ends no other may add units. ValueError if one does already."""
        self._locked = self.path.open("rb")
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{self.path} is being written by another process") from None

    def __contains__(self, unit: str) -> bool:
        return unit in self._units

    def __len__(self) -> int:
        return len(self._units)

    def get(self, unit: str) -> dict | None:
        return self._units.get(unit)

    def units(self, prefix: str) -> list[dict]:
        """Those whose names begin so, in the order in which they were added."""
        return [line for unit, line in self._units.items() if unit.startswith(prefix)]

    def add(self, unit: str, **found: object) -> None:
        if unit in self._units:
            raise ValueError(f"{unit} is in {self.path} already")
        line = {"unit": unit, **found}
        self._append(line)
        self._units[unit] = line

    def _append(self, line: dict) -> None:
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a") as out:
            out.write(("\n" if torn else "") + json.dumps(line) + "\n")
            out.flush()
            os.fsync(out.fileno())


def whole_lines(path: Path) -> list[dict]:
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:  # the program was stopped while it wrote
            continue
    return lines
