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


def git(*arguments: str) -> str:
    command = ["git", "-C", str(RESULTS.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def commit() -> str:
    """The commit that was measured; marked where the tree has changes."""
    dirty = git("status", "--porcelain", "--untracked-files=no", "--", ":/", f":!{RESULTS}")
    return git("rev-parse", "--short", "HEAD") + ("+changes" if dirty else "")


def measured_commit() -> str:
    """The last commit that touched what a model's answers depend on: other commits leave a long run valid."""
    code = [f":/{folder}" for folder in ("engine", "service", "proto", "client/python/src")]
    dirty = git("status", "--porcelain", "--untracked-files=no", "--", *code)
    return git("log", "-1", "--format=%h", "--", *code) + ("+changes" if dirty else "")


def record(file: str, **entry: object) -> dict[str, object]:
    """Appends {id, value, unit, shapes, ...} to results/FILE with device, commit, command and date."""
    line = {
        **entry,
        "device": entry.get("device", device()),
        "commit": entry.get("commit", commit()),
        "command": entry.get("command", shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])),
        "date": datetime.date.today().isoformat(),
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / file).open("a") as out:
        out.write(json.dumps(line) + "\n")
    return line


def latest(file: Path) -> list[dict]:
    """The last line of each id, in the order in which the ids first came."""
    by_id = {}
    if file.exists():
        for text in file.read_text().splitlines():
            line = json.loads(text)
            by_id[line["id"]] = line
    return list(by_id.values())


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
