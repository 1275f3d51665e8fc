"""Writes benchmark results: one JSON object a line, the same keys in every file of results/."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def device() -> str:
    """What this machine computes on, for people."""
    model = "CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def commit() -> str:
    """The commit that was measured; marked where the tree has changes."""
    git = ["git", "-C", str(RESULTS.parent)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    dirty = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no", "--", ":/", f":!{RESULTS}"],
        capture_output=True,
        text=True,
    )
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")


def record(file: str, **entry: object) -> dict[str, object]:
    """Appends {id, value, unit, shapes, ...} to results/FILE with device, commit, command and date."""
    line = {
        **entry,
        "device": entry.get("device", device()),
        "commit": commit(),
        "command": entry.get("command", shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])),
        "date": datetime.date.today().isoformat(),
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / file).open("a") as out:
        out.write(json.dumps(line) + "\n")
    return line


def main() -> None:
    """record.py FILE COMMAND...: runs a benchmark that prints JSON objects and records each."""
    if len(sys.argv) < 3:
        sys.exit(main.__doc__)
    file, *command = sys.argv[1:]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for entry in (json.loads(line) for line in printed.splitlines()):
        entry["device"] = f"{device()}, {entry.get('device', '')}".rstrip(", ")
        print(entry["id"], record(file, **entry, command=shlex.join(command))["value"], entry["unit"])


if __name__ == "__main__":
    main()
