#!/usr/bin/env python3
"""clang-tidy over every .cc file of ours, with the compile commands of build/release.

A file that was clean is not looked at again until it, a header that it includes or the rules change: its stamp in
the cache is a hash of all of them. .cu files are covered by nvcc's warnings: clang 14 cannot parse CUDA 13's headers.

  tests/tidy.py [FILE...]
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/release"
STAMPS = Path(os.environ.get("LONGSHORE_CACHE", Path.home() / ".cache/longshore")) / "tidy"
FUZZ_MAIN = "tests/fuzz/fuzz_main.cc"  # compiled by the fuzz preset alone, so it has no compile command here
COMMAND = ["clang-tidy-14", "--quiet", "--extra-arg=-Wthread-safety"]


def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def dependencies() -> dict[Path, set[Path]]:
    """What ninja has seen each source include, of this repository, the source itself among it."""
    found: dict[Path, set[Path]] = {}
    for block in output("ninja", "-C", str(BUILD), "-t", "deps").split("\n\n"):
        paths = {(BUILD / line.strip()).resolve() for line in block.splitlines()[1:]}
        ours = {path for path in paths if path.is_relative_to(ROOT)}
        for source in (path for path in ours if path.suffix == ".cc"):
            found.setdefault(source, set()).update(ours)
    return found


def stamp_of(source: Path, included: set[Path]) -> Path:
    digest = hashlib.sha256(" ".join(COMMAND).encode() + (ROOT / ".clang-tidy").read_bytes())
    rules = {ROOT / "tests/.clang-tidy"} if source.is_relative_to(ROOT / "tests") else set()
    for path in sorted(included | rules | {source}):
        digest.update(path.read_bytes())
    return STAMPS / digest.hexdigest()


def check(source: Path, stamp: Path) -> str:
    """What clang-tidy says; empty for a clean file."""
    command = [*COMMAND, "-p", str(BUILD), str(source)]
    if source.is_relative_to(ROOT / "tests/support"):  # clang's -Wconversion is more than gcc's; the oracle counts in int
        command.append("--extra-arg=-Wno-sign-conversion")
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode == 0:
        stamp.touch()
        return ""
    return f"{source.relative_to(ROOT)}\n{run.stdout}"


def main() -> int:
    STAMPS.mkdir(parents=True, exist_ok=True)
    included = dependencies()
    listed = sys.argv[1:] or output(
        "git", "ls-files", "engine/*.cc", "service/*.cc", "client/*.cc", "tests/*.cc", f":!{FUZZ_MAIN}"
    ).splitlines()
    sources = [(ROOT / name).resolve() for name in listed]
    stamps = {source: stamp_of(source, included.get(source, set())) for source in sources}
    changed = [source for source in sources if not stamps[source].exists()]
    print(f"clang-tidy: {len(changed)} of {len(sources)} files are new or changed", flush=True)
    broken = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for said in pool.map(lambda source: check(source, stamps[source]), changed):
            broken += bool(said)
            print(said, end="", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
