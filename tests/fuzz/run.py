#!/usr/bin/env python3
"""Fuzzes every target for a time, several at once, and says what was found.

  tests/fuzz/run.py --seconds 600 --workers 16 --out /tmp/fuzz   of build/fuzz, or of what was packed
  tests/fuzz/run.py --pack DIRECTORY   binary, its libraries, corpus and this script, for another machine

Prints a JSON line for each target (tests/bench/record.py takes them) and one for all of them; ends with 1 if
there is a finding. What led to it lies in OUT/TARGET/findings; the bytes alone repeat it:
longshore_fuzz --target=TARGET FILE. Needs nothing but Python's own library.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
BINARY = HERE.parents[1] / "build/fuzz/tests/longshore_fuzz"
# Entropic scheduling would take a third of the time, with so many edges in one run.
FLAGS = ["-entropic=0", "-timeout=20", "-rss_limit_mb=2048", "-malloc_limit_mb=512", "-max_len=32768"]
FLAGS += ["-print_final_stats=1"]
# In glibc, ld.so and the kernel: of the machine that it runs on.
SYSTEM_LIBRARIES = re.compile(r"ld-linux|/lib(c|m|dl|pthread|rt|resolv)\.so")


@dataclass
class Outcome:
    """What the processes that fuzzed one target have seen together."""

    executions: int = 0
    edges: int = 0
    seconds: float = 0
    findings: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.executions += other.executions
        self.edges = max(self.edges, other.edges)
        self.seconds += other.seconds
        self.findings += other.findings


def fuzz(binary: Path, target: str, worker: int, seconds: int, out: Path) -> Outcome:
    """One process on one target. Several on one share a corpus, which each reads again now and then."""
    corpus, findings = out / target / "corpus", out / target / "findings"
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    words = HERE / "config.dict"
    command = [str(binary), f"--target={target}", *FLAGS, f"-max_total_time={seconds}", f"-seed={worker + 1}"]
    command += ["-reload=30", f"-artifact_prefix={findings}/"]
    command += [f"-dict={words}"] if target == "config_file" else []
    log = out / target / f"log{worker}"
    environment = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": "detect_leaks=1"}
    begin = time.monotonic()
    with log.open("wb") as stream:
        command += [str(corpus), str(HERE / "corpus" / target)]
        run = subprocess.run(command, stdout=stream, stderr=stream, env=environment)
    said = log.read_text(errors="replace")
    executions = re.findall(r"stat::number_of_executed_units:\s*(\d+)", said)
    executions = executions or re.findall(r"^#(\d+)", said, re.M)
    edges = re.findall(r"cov: (\d+)", said)
    outcome = Outcome(
        executions=int(executions[-1]) if executions else 0,
        edges=int(edges[-1]) if edges else 0,
        seconds=time.monotonic() - begin,
    )
    if run.returncode != 0:
        what = re.findall(r"(?:FINDING|SUMMARY|ERROR|runtime error)[^\n]*", said)
        outcome.findings.append(f"{target}: {what[0] if what else f'exit {run.returncode}'} (see {log})")
    return outcome


def fuzz_all(binary: Path, targets: list[str], seconds: int, workers: int, out: Path) -> dict[str, Outcome]:
    """Every target on its share of the workers, for `seconds` each."""
    share = max(1, workers // len(targets))
    outcomes = {target: Outcome() for target in targets}
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        runs = {
            pool.submit(fuzz, binary, target, worker, seconds, out): target
            for worker in range(share)
            for target in targets
        }
        for run in concurrent.futures.as_completed(runs):
            outcomes[runs[run]].add(run.result())
    return outcomes


def line_of(name: str, outcome: Outcome) -> dict[str, object]:
    return {
        "id": name,
        "value": round(outcome.seconds / 60, 2),
        "unit": "minutes",
        "executions": outcome.executions,
        "edges": outcome.edges,
        "findings": len(outcome.findings),
    }


def pack(binary: Path, folder: Path) -> None:
    """Binary without debug information, the shared libraries that Debian gave it, corpus and this script."""
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    shutil.copytree(HERE / "corpus", folder / "corpus", dirs_exist_ok=True)
    for name in ("run.py", "config.dict"):
        shutil.copy(HERE / name, folder / name)
    subprocess.run(["strip", "--strip-debug", "-o", str(folder / binary.name), str(binary)], check=True)
    listed = subprocess.run(["ldd", str(binary)], check=True, capture_output=True, text=True).stdout
    for library in re.findall(r"=> (/\S+)", listed):
        if not SYSTEM_LIBRARIES.search(library):
            shutil.copy(library, folder / "lib")


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    packed = HERE / "longshore_fuzz"
    parser.add_argument("--binary", type=Path, default=packed if packed.exists() else BINARY)
    parser.add_argument("--seconds", type=int, default=30, help="for each process (30)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at once (one a core)")
    parser.add_argument("--target", action="append", help="this one alone; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("/tmp/longshore-fuzz"))
    parser.add_argument("--pack", type=Path, metavar="DIRECTORY")
    arguments = parser.parse_args()
    if arguments.pack:
        pack(arguments.binary, arguments.pack)
        return 0
    if (HERE / "lib").is_dir():
        os.environ["LD_LIBRARY_PATH"] = str(HERE / "lib")
    listed = subprocess.run([str(arguments.binary), "--list"], check=True, capture_output=True, text=True)
    targets = arguments.target or listed.stdout.split()
    outcomes = fuzz_all(arguments.binary, targets, arguments.seconds, arguments.workers, arguments.out)
    total = Outcome()
    for target, outcome in outcomes.items():
        print(json.dumps(line_of(f"fuzz_minutes/{target}", outcome)), flush=True)
        total.add(outcome)
    print(json.dumps(line_of("fuzz_minutes", total)), flush=True)
    for finding in total.findings:
        print(finding, file=sys.stderr)
    return 1 if total.findings else 0


if __name__ == "__main__":
    sys.exit(main())
