"""A real Prometheus scrapes a daemon under load and answers queries; promtool has nothing to say about what we
export and about our rules. Debian's package, unpacked where $LONGSHORE_PROMETHEUS says: tests/run.sh does that."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Daemon, start_daemon
from load import load

RULES = Path(__file__).parents[2] / "deploy/prometheus"


def tool(name: str) -> str:
    folder = os.environ.get("LONGSHORE_PROMETHEUS")
    if not folder:
        pytest.skip("SKIPPED: no Prometheus, set LONGSHORE_PROMETHEUS to the folder of its programs")
    return str(Path(folder, name))


def promtool(*arguments: str, text: str | None = None) -> str:
    """What it says, all of it; it must have been content."""
    run = subprocess.run(
        [tool("promtool"), *arguments], input=text, capture_output=True, text=True, cwd=RULES, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """A server with our own configuration and rules, only faster, of one daemon."""

    def __init__(self, folder: Path, target: str) -> None:
        for name in ("prometheus.yml", "recording.rules.yml", "alerts.rules.yml"):
            text = (RULES / name).read_text().replace("127.0.0.1:9464", target)
            (folder / name).write_text(re.sub(r"interval: 15s", "interval: 1s", text))
        self._address = f"127.0.0.1:{free_port()}"
        self._log = folder / "prometheus.log"
        self.process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self._address}",
            ],
            stderr=self._log.open("wb"),
        )

    def get(self, path: str, **parameters: str) -> dict:
        """The data of its HTTP API's answer."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            parsed = json.load(answer)
        assert parsed["status"] == "success", parsed
        return parsed["data"]

    def query(self, expression: str) -> list[float]:
        return [float(series["value"][1]) for series in self.get("query", query=expression)["result"]]

    def wait_for(self, expression: str, holds: Callable[[list[float]], bool]) -> list[float]:
        """The values of an expression once they are as they should be."""
        values: list[float] = []
        give_up = time.monotonic() + 60
        while True:
            try:
                values = self.query(expression)
                if holds(values):
                    return values
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < give_up, f"{expression}: {values}\n{self._log.read_text()}"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def own_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One that a test may stop."""
    daemon = start_daemon(tmp_path_factory.mktemp("scraped"), "--pool-bytes=1GiB", "--threads=1")
    yield daemon
    if daemon.process.poll() is None:
        assert daemon.stop() == 0, daemon.log.read_text()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, own_daemon: Daemon) -> Iterator[Prometheus]:
    server = Prometheus(tmp_path_factory.mktemp("prometheus"), own_daemon.metrics)
    yield server
    server.process.terminate()
    server.process.wait(20)


def recorded_names() -> list[str]:
    return re.findall(r"record: (\S+)", (RULES / "recording.rules.yml").read_text())


def test_promtool_has_nothing_to_say_about_what_we_export(own_daemon: Daemon) -> None:
    tool("promtool")
    with load(own_daemon.target):
        text = urllib.request.urlopen(f"http://{own_daemon.metrics}/metrics", timeout=10).read().decode()
    assert "longshore_requests_total" in text
    assert promtool("check", "metrics", text=text) == ""


def test_rules_and_alerts_are_right() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "recording.rules.yml", "alerts.rules.yml")
    promtool("test", "rules", "alerts_test.yml")


def test_every_alert_is_tested() -> None:
    alerts = re.findall(r"- alert: (\S+)", (RULES / "alerts.rules.yml").read_text())
    tested = re.findall(r"- name: (\S+)", (RULES / "alerts_test.yml").read_text())
    assert alerts and sorted(alerts) == sorted(tested)


def test_a_daemon_under_load_is_scraped(prometheus: Prometheus, own_daemon: Daemon) -> None:
    with load(own_daemon.target, ("one", "two")):
        prometheus.wait_for('up{job="longshore"}', lambda values: values == [1])
        assert prometheus.wait_for("longshore_ready", bool) == [1]
        assert prometheus.wait_for("longshore_sessions", lambda values: values == [2])
        (rate,) = prometheus.wait_for(
            'sum(rate(longshore_requests_total{method="DecodeStep",code="OK"}[20s]))',
            lambda values: bool(values) and values[0] > 1,
        )
        assert rate < 100_000
        recorded = {
            name: prometheus.wait_for(name, lambda values: any(value == value for value in values))
            for name in recorded_names()
            if "recall" not in name  # of the monitor, which samples few refreshes
        }
        (ratio,) = prometheus.query("instance:longshore_request_errors:ratio_rate5m")
        assert ratio == 0
        (p99,) = prometheus.query('instance_method:longshore_request_seconds:p99_5m{method="DecodeStep"}')
        assert 0 < p99 < 100
        assert all(0 <= value <= 1 for value in recorded["instance:longshore_pool_promised:ratio"])
        hits = prometheus.wait_for(
            'instance_stage:longshore_mask_cache_hits:ratio_rate5m{stage="prune_0"}',
            lambda values: bool(values) and values[0] > 0.8,  # by the clock, 15 of 16
        )
        assert hits[0] < 1
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > len(recorded_names())
    assert {rule["health"] for rule in rules} == {"ok"}, rules
    assert prometheus.query('ALERTS{alertstate="firing"}') == []


def test_a_daemon_that_is_gone_is_seen(prometheus: Prometheus, own_daemon: Daemon) -> None:
    prometheus.wait_for('up{job="longshore"}', lambda values: values == [1])
    assert own_daemon.stop() == 0, own_daemon.log.read_text()
    prometheus.wait_for('up{job="longshore"}', lambda values: values == [0])
    prometheus.wait_for('ALERTS{alertname="LongshoreDown"}', lambda values: values == [1])  # pending
