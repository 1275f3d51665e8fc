"""gRPC's health protocol, which grpc_health_probe and Kubernetes speak, from start to drain."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import longshore
from conftest import Daemon, start_daemon
from load import SHAPE, rows

SERVICES = ["", "longshore.v1.Attention", "longshore.v1.Sessions", "longshore.v1.Server"]
Status = health_pb2.HealthCheckResponse.ServingStatus


class Watcher(threading.Thread):
    """Remembers what Watch says of a service until the daemon is gone; once, what gRPC repeats at the end."""

    def __init__(self, channel: grpc.Channel, service: str) -> None:
        super().__init__()
        self.said: list[str] = []
        request = health_pb2.HealthCheckRequest(service=service)
        self._answers = health_pb2_grpc.HealthStub(channel).Watch(request, wait_for_ready=True)

    def run(self) -> None:
        try:
            for answer in self._answers:
                status = Status.Name(answer.status)
                if self.said[-1:] != [status]:
                    self.said.append(status)
        except grpc.RpcError:
            pass  # the daemon is gone

    def wait_for(self, status: str) -> None:
        give_up = time.monotonic() + 20
        while self.said[-1:] != [status]:
            assert time.monotonic() < give_up, self.said
            time.sleep(0.01)


def check(channel: grpc.Channel, service: str) -> str:
    request = health_pb2.HealthCheckRequest(service=service)
    return Status.Name(health_pb2_grpc.HealthStub(channel).Check(request, timeout=20).status)


def wait_for_bulk_call(daemon: Daemon) -> None:
    """Until a prefill has begun."""
    give_up = time.monotonic() + 20
    begun = b'longshore_queue_wait_seconds_count{kind="bulk"} 1\n'
    while begun not in urlopen(f"http://{daemon.metrics}/metrics").read():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_health_follows_the_daemon_from_start_to_drain(tmp_path: Path) -> None:
    """While it loads, see tests/service/server_life_test.cc, which can hold that up."""
    daemon = start_daemon(tmp_path, "--pool-bytes=256MiB")
    with grpc.insecure_channel(daemon.target) as channel, longshore.connect(daemon.target) as client:
        watchers = [Watcher(channel, service) for service in SERVICES]
        for watcher in watchers:
            watcher.start()
        for watcher, service in zip(watchers, SERVICES, strict=True):
            watcher.wait_for("SERVING")
            assert check(channel, service) == "SERVING"

        # Work that the drain has to wait for.
        session = client.open_session(SHAPE, "dense", max_tokens=8192)
        prompt = rows(8000)
        work = threading.Thread(target=lambda: session.prefill(0, *prompt))
        work.start()
        wait_for_bulk_call(daemon)
        stopped: list[int] = []
        stop = threading.Thread(target=lambda: stopped.append(daemon.stop()))
        stop.start()
        for watcher in watchers:
            watcher.wait_for("NOT_SERVING")
        still_up = [check(channel, service) for service in SERVICES] if work.is_alive() else []
        work.join()
        stop.join()
        for watcher in watchers:
            watcher.join(20)
            begun = watcher.said[1:] if watcher.said[0] == "NOT_SERVING" else watcher.said
            assert begun == ["SERVING", "NOT_SERVING"]
    assert stopped == [0], daemon.log.read_text()
    assert set(still_up) <= {"NOT_SERVING"}


def test_a_service_that_is_not_there(daemon) -> None:
    with grpc.insecure_channel(daemon.target) as channel:
        with pytest.raises(grpc.RpcError) as error:
            check(channel, "longshore.v1.Nonsense")
        assert error.value.code() == grpc.StatusCode.NOT_FOUND
        request = health_pb2.HealthCheckRequest(service="longshore.v1.Nonsense")
        answers = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=20)
        assert Status.Name(next(answers).status) == "SERVICE_UNKNOWN"
        answers.cancel()
