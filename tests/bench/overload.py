#!/usr/bin/env python3
"""A daemon under five times its load, and how long it takes to stop under it: JSON lines for record.py.

  tests/bench/record.py service.jsonl tests/bench/overload.py [--seconds 60] [--build build/release]

Generator and daemon share this machine's cores: one thread of the daemon computes, and capacity is what the
same generator gets out of it in a closed loop. A refused call costs the machine a fraction of a millisecond,
so that how much of the capacity is left depends on how long a step is: two lengths are measured. others_cores
says how much of the machine somebody else had meanwhile: above a tenth of a core the share means little.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
pool_bytes: "3GiB"
threads: 1
metrics_listen: ""
log_level: "warning"
limits { max_sessions: 400 max_queued_calls: 64 }
"""
CONTEXT = 16384  # tokens: steps of some milliseconds
SHORT_CONTEXT = 4096
DRAINS = 5
# While it drains, prompt pieces of this many clients wait and run, each of a second or so.
DRAIN_CONTEXT, DRAIN_PREFILLS, DRAIN_OVERLOAD = 8192, 4, 3


class Daemon:
    def __init__(self, build: Path, folder: Path) -> None:
        config = folder / "config"
        config.write_text(CONFIG)
        self.socket = folder / "s"
        command = [str(build / "service/longshored"), f"--config={config}", f"--listen=unix:{self.socket}"]
        self.process = subprocess.Popen(command)
        while not self.socket.exists():
            if self.process.poll() is not None:
                raise RuntimeError("the daemon does not start")
            time.sleep(0.05)

    def load(self, build: Path, seconds: int, context: int, prefills: int = 0) -> subprocess.Popen[str]:
        command = [str(build / "tests/overload_bench"), f"unix:{self.socket}", str(self.process.pid)]
        command += [str(seconds), str(context), str(prefills)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def stop(self) -> float:
        """How many seconds it took."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait()
        if status != 0:
            raise RuntimeError(f"the daemon ended with {status}")
        return time.monotonic() - begin


def machine_seconds() -> float:
    """That all cores have worked since the machine started."""
    user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """That daemons and loads of ours have worked which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def overload(build: Path, seconds: int, context: int) -> dict[str, object]:
    begin, before = time.monotonic(), machine_seconds() - own_seconds()
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(build, Path(folder))
        load = daemon.load(build, seconds, context)
        out, err = load.communicate()
        daemon.stop()
    others = (machine_seconds() - own_seconds() - before) / (time.monotonic() - begin)
    if load.returncode != 0:
        raise RuntimeError(f"load ended with {load.returncode}: {err}")
    return {**json.loads(out), "others_cores": round(others, 2)}


def drain(build: Path) -> float:
    """SIGTERM in the middle of the overload."""
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(build, Path(folder))
        load = daemon.load(build, DRAIN_OVERLOAD, DRAIN_CONTEXT, DRAIN_PREFILLS)
        assert load.stderr is not None
        while line := load.stderr.readline():
            if line == "overload begins\n":
                break
        time.sleep(DRAIN_OVERLOAD / 2)
        if load.poll() is not None:
            raise RuntimeError(f"no load, it ended with {load.returncode}")
        seconds = daemon.stop()
        load.kill()
        load.communicate()
    return seconds


def drains(build: Path) -> dict[str, object]:
    seconds = sorted(drain(build) for _ in range(DRAINS))
    return {
        "id": "drain_seconds",
        "value": round(seconds[-1], 3),
        "unit": "s",
        "runs": [round(run, 3) for run in seconds],
        "exit": 0,
        "shapes": f"worst of {DRAINS}: SIGTERM under 5 times the decode steps over {DRAIN_CONTEXT} tokens, "
        f"while {DRAIN_PREFILLS} clients send prompt pieces of 1024 rows; until exit 0",
    }


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--seconds", type=int, default=60, help="of overload (60)")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--only", choices=["overload", "drain"], help="leave the rest out")
    arguments = parser.parse_args()

    def say(figure: dict[str, object]) -> None:
        print(json.dumps(figure), flush=True)

    if arguments.only != "drain":
        say(overload(arguments.build, arguments.seconds, CONTEXT))
    if arguments.only is None:
        short = overload(arguments.build, arguments.seconds, SHORT_CONTEXT)
        say({**short, "id": "overload_goodput_share_short_steps"})
    if arguments.only != "overload":
        say(drains(arguments.build))
    return 0


if __name__ == "__main__":
    sys.exit(main())
