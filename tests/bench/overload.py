#!/usr/bin/env python3
"""A daemon under five times its load, and how long it takes to stop under it: JSON lines for record.py.

  tests/bench/record.py service.jsonl tests/bench/overload.py [--seconds 60] [--build build/release]

Generator and daemon share this machine's cores: one thread of the daemon computes, and capacity is what the
same generator gets out of it in a closed loop.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
pool_bytes: "1GiB"
threads: 1
metrics_listen: ""
log_level: "warning"
limits { max_sessions: 400 max_queued_calls: 64 }
"""


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

    def load(self, build: Path, seconds: int) -> subprocess.Popen[str]:
        bench = build / "tests/overload_bench"
        command = [str(bench), f"unix:{self.socket}", str(self.process.pid), str(seconds)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def overload(build: Path, seconds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(build, Path(folder))
        load = daemon.load(build, seconds)
        out, err = load.communicate()
        daemon.process.send_signal(signal.SIGTERM)
        status = daemon.process.wait()
    if load.returncode != 0 or status != 0:
        raise RuntimeError(f"load ended with {load.returncode}, the daemon with {status}: {err}")
    return json.loads(out)


def drain(build: Path, seconds: int) -> dict[str, object]:
    """SIGTERM in the middle of the overload."""
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(build, Path(folder))
        load = daemon.load(build, seconds)
        assert load.stderr is not None
        while load.stderr.readline() not in ("overload begins\n", ""):
            pass
        time.sleep(min(3, seconds / 2))
        begin = time.monotonic()
        daemon.process.send_signal(signal.SIGTERM)
        status = daemon.process.wait()
        elapsed = time.monotonic() - begin
        load.kill()
        load.communicate()
    if status != 0:
        raise RuntimeError(f"the daemon ended with {status}")
    return {"id": "drain_seconds", "value": round(elapsed, 3), "unit": "s", "exit": status}


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    arguments = parser.parse_args()
    for measure in (overload, drain):
        print(json.dumps(measure(arguments.build, arguments.seconds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
