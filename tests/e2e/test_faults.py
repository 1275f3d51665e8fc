"""Clients that stall, come and go, or ask for too much; and a daemon that is stopped among them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from conftest import Daemon, start_daemon
from longshore._proto.longshore.v1 import attention_pb2 as attention
from longshore._proto.longshore.v1 import server_pb2 as server
from longshore._proto.longshore.v1 import session_pb2 as sessions
from wire import (
    HELD,
    Bystander,
    Wire,
    decode,
    details_of,
    on_stream,
    open_files,
    open_request,
    prefill,
    resident_bytes,
    step,
    until,
)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that these tests mistreat; it must end well."""
    daemon = start_daemon(tmp_path_factory.mktemp("faulty"), "--pool-bytes=512MiB", "--threads=1")
    yield daemon
    assert daemon.stop() == 0, daemon.log.read_text()


@pytest.fixture(scope="module")
def unharmed(faulty: Daemon) -> Bystander:
    return Bystander(Wire(faulty))


@pytest.fixture()
def bystander(unharmed: Bystander) -> Iterator[Bystander]:
    """Served before, in between and after; and in the end nothing is left in the pool."""
    unharmed.begin()
    unharmed.is_served()
    yield unharmed
    unharmed.is_served()
    unharmed.end()
    until(lambda: unharmed.wire.pool_bytes() == 0, "pages are left")


@pytest.fixture()
def wire(faulty: Daemon, bystander: Bystander) -> Iterator[Wire]:
    wire = Wire(faulty)
    yield wire
    wire.channel.close()


def refused(call: Callable[[], object]) -> tuple[grpc.StatusCode, str, bool]:
    """Code, reason, and whether it says when to try again."""
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), *details_of(error.value)


POOL_FULL = (grpc.StatusCode.RESOURCE_EXHAUSTED, "POOL_FULL", True)


def test_two_hundred_connections_come_and_go(faulty: Daemon, wire: Wire, bystander: Bystander) -> None:
    session = wire.begun()
    path = faulty.target.removeprefix("unix:")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    half_headers = bytes([0, 2, 0, 1, 4, 0, 0, 0, 1]) + b"x" * 100  # of 512
    before = open_files(faulty)
    for _ in range(3):
        peers = [socket.socket(socket.AF_UNIX) for _ in range(50)]
        for index, peer in enumerate(peers):
            peer.connect(path)
            peer.sendall((b"", preface[:10], preface, preface + half_headers)[index % 4])
        bystander.is_served()
        for peer in peers:
            peer.close()
    channels = [Wire(faulty) for _ in range(50)]
    calls = [channel.attention.DecodeStep.future(decode(session, HELD)) for channel in channels]
    bystander.is_served()
    for call, channel in zip(calls, channels, strict=True):
        call.cancel()
        channel.channel.close()
    until(lambda: open_files(faulty) <= before, "connections that were dropped are still open")
    assert wire.tokens(session) in (HELD, HELD + 1)
    wire.close(session)


class Reader:
    """A client that streams prompt pieces of half a megabyte each way and reads nothing, until told to."""

    ROWS, STEPS = 512, 300  # 300 answers are 150 MB

    def __init__(self, faulty: Daemon, session: int) -> None:
        self.wire = Wire(faulty)
        # Each piece is a replay of the first, so that they are quick.
        piece = prefill(session, 0, self.ROWS)
        self.answers = self.wire.attention.StreamSteps(on_stream(piece, tag) for tag in range(self.STEPS))

    def most_growth(self, faulty: Daemon, bystander: Bystander) -> int:
        """Of the daemon's memory, while it has time to do all that it would do for such a client."""
        before = most = resident_bytes(faulty)
        for _ in range(8):
            bystander.is_served()
            for _ in range(10):
                time.sleep(0.01)
                most = max(most, resident_bytes(faulty))
        return most - before


# 8 steps in flight, their requests and answers of half a MB each, and what sockets and the allocator keep.
STALLED_BYTES = 64 << 20


def test_a_reader_that_does_not_read_holds_back_itself_alone(
    faulty: Daemon, wire: Wire, bystander: Bystander
) -> None:
    session = wire.open(max_tokens=Reader.ROWS)
    slow = Reader(faulty, session)
    assert slow.most_growth(faulty, bystander) < STALLED_BYTES
    # When it does read, everything comes, in order.
    assert [answer.tag for answer in slow.answers] == list(range(Reader.STEPS))
    wire.close(session)


def test_a_reader_that_gives_up_leaves_nothing(faulty: Daemon, wire: Wire, bystander: Bystander) -> None:
    session = wire.open(max_tokens=Reader.ROWS)
    before = open_files(faulty)
    slow = [Reader(faulty, session) for _ in range(4)]
    assert slow[0].most_growth(faulty, bystander) < 4 * STALLED_BYTES
    for reader in slow:
        reader.answers.cancel()
        reader.wire.channel.close()
    until(lambda: open_files(faulty) <= before, "connections that were dropped are still open")
    until(lambda: wire.metric("longshore_queue_depth") == 0, "steps of nobody wait")
    wire.close(session)


def test_a_pool_that_is_full_in_the_middle_of_a_prompt(tmp_path: Path) -> None:
    daemon = start_daemon(tmp_path, "--pool-bytes=24MiB", "--threads=1")
    wire = Wire(daemon)
    reserved = wire.open(max_tokens=1000)
    hungry = wire.open(max_tokens=100_000, overcommit=True)
    outs: list[bytes] = []
    rows = 1000  # 1 MB of keys and values
    with pytest.raises(grpc.RpcError) as error:
        while True:
            answer = wire.attention.Prefill(prefill(hungry, rows * len(outs), rows))
            outs.append(answer.out.inline_data)
    assert (error.value.code(), *details_of(error.value)) == POOL_FULL
    position = rows * len(outs)
    assert len(outs) > 10, "the pool holds more than that"
    assert wire.tokens(hungry) == position, "what was there stays, and no part of the failed piece"
    # On a stream it is that piece's answer, those behind it find a gap, and the stream goes on.
    pieces = [prefill(hungry, position, rows), prefill(hungry, position + rows, rows), decode(reserved, 0)]
    stream = wire.attention.StreamSteps(on_stream(piece, tag) for tag, piece in enumerate(pieces))
    codes = [answer.status.code for answer in stream]
    expected = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.OK)
    assert codes == [code.value[0] for code in expected]
    # A session that opened with its pages reserved has them.
    for begin in range(1, 1000, 333):
        wire.attention.Prefill(prefill(reserved, begin, 333))
    # Once it has gone, a piece that was refused is taken.
    assert refused(lambda: wire.attention.Prefill(prefill(hungry, position, rows))) == POOL_FULL
    assert refused(lambda: wire.open(max_tokens=100_000)) == POOL_FULL
    wire.close(reserved)
    resumed = wire.attention.Prefill(prefill(hungry, position, rows // 2))
    assert list(resumed.layer_tokens) == [position + rows // 2]
    wire.close(hungry)
    assert wire.pool_bytes() == 0
    # Nothing was lost on the way: a session that never met the limit gives the same bits.
    fresh = wire.open(max_tokens=100_000, overcommit=True)
    for index, out in enumerate(outs):
        assert wire.attention.Prefill(prefill(fresh, index * rows, rows)).out.inline_data == out
    assert wire.attention.Prefill(prefill(fresh, position, rows // 2)) == resumed
    wire.close(fresh)
    assert wire.pool_bytes() == 0
    assert daemon.stop() == 0, daemon.log.read_text()


class Hurried:
    """Calls with a deadline of a millisecond, and how often that was too little."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.late = 0

    def call(self, method: str, request: Message) -> None:
        try:
            if method == "StreamSteps":
                list(self._wire.attention.StreamSteps(iter([request]), timeout=0.001))
            else:
                self._wire.call(method)(request, timeout=0.001)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error
            self.late += 1


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_one_millisecond_for_everything(wire: Wire, bystander: Bystander, busy: bool) -> None:
    """Calls end in time or too late; those may have been applied, and the same call again says so."""
    hurried = Hurried(wire)
    session, twin, other = wire.open(), wire.open(), wire.open(max_tokens=4000)
    position = 0
    for turn, (method, rows) in enumerate([("Prefill", 20), ("DecodeStep", 1), ("AppendKV", 5)] * 6):
        kind = getattr(attention, f"{method}Request")
        request = step(kind, session, position, rows, append_id=turn + 1)
        expected = wire.call(method)(step(kind, twin, position, rows, append_id=turn + 1))
        work = wire.attention.Prefill.future(prefill(other, 0, 2000)) if busy else None
        hurried.call(method, request)
        hurried.call("StreamSteps", on_stream(request, turn))
        opening = open_request(500, open_id=1000 + turn)
        hurried.call("OpenSession", opening)
        hurried.call("DescribeSession", sessions.DescribeSessionRequest(session_id=session))
        hurried.call("ListSessions", sessions.ListSessionsRequest())
        hurried.call("GetServerInfo", server.GetServerInfoRequest())
        hurried.call("GetMetrics", server.GetMetricsRequest())
        if work is not None:
            work.result()
        assert wire.call(method)(request) == expected
        position += rows
        truncate = sessions.TruncateSessionRequest(session_id=session, position=position)
        hurried.call("TruncateSession", truncate)
        assert wire.tokens(session) == position
        opened = wire.sessions.OpenSession(opening).session_id
        hurried.call("CloseSession", sessions.CloseSessionRequest(session_id=opened))
        if opened in wire.listed():
            wire.close(opened)
    assert not busy or hurried.late > 0, "nothing was late"
    bystander.is_served()
    wire.close(session, twin, other)


class Callers:
    """Threads that call until the daemon refuses, and what they were refused with."""

    def __init__(self, daemon: Daemon, body: Callable[[Wire], None], count: int) -> None:
        self.refusals: list[tuple[str, str]] = []
        self._daemon, self._body = daemon, body
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        try:
            self._body(Wire(self._daemon))
        except grpc.RpcError as error:
            self.refusals.append((error.code().name, details_of(error)[0]))

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        assert len(self.refusals) == len(self._threads), "some were not answered"


# By the daemon with a reason, or because its socket is closed.
STOPPED = {("UNAVAILABLE", "DRAINING"), ("UNAVAILABLE", "")}


def prefill_for_ever(wire: Wire) -> None:
    session = wire.open(max_tokens=100_000, overcommit=True)
    for position in range(0, 100_000, 200):
        wire.attention.Prefill(prefill(session, position, 200))


def ask_for_ever(wire: Wire) -> None:
    while True:
        wire.listed()


def stream_for_ever(wire: Wire) -> None:
    session = wire.open()
    request = prefill(session, 0, 200)  # replays
    for answer in wire.attention.StreamSteps(on_stream(request, tag) for tag in range(1 << 20)):
        assert answer.status.code in (0, grpc.StatusCode.UNAVAILABLE.value[0]), answer.status


def test_sigterm_under_load_answers_everyone(tmp_path: Path, record_property: Callable) -> None:
    daemon = start_daemon(tmp_path, "--pool-bytes=512MiB", "--threads=1")
    loads = [Callers(daemon, body, 4) for body in (prefill_for_ever, ask_for_ever, stream_for_ever)]
    until(lambda: Wire(daemon).metric("longshore_queue_depth") > 2, "nothing waits")
    begin = time.monotonic()
    assert daemon.stop() == 0, daemon.log.read_text()
    record_property("drain_seconds", time.monotonic() - begin)
    for load in loads:
        load.join()
        assert set(load.refusals) <= STOPPED, load.refusals
    assert not Path(daemon.target.removeprefix("unix:")).exists()


def test_sigterm_does_not_wait_for_a_step_longer_than_the_drain(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("drain_seconds: 0.3\n")
    daemon = start_daemon(tmp_path, f"--config={config}", "--pool-bytes=512MiB", "--threads=1")
    wire = Wire(daemon)
    session = wire.open(max_tokens=150_000, overcommit=True, preset="dense")
    for position in range(0, 120_000, 4000):
        wire.attention.AppendKV(step(attention.AppendKVRequest, session, position, 4000))
    begun = 'longshore_queue_wait_seconds_count{kind="bulk"}'
    before = wire.metric(begun)
    long = wire.attention.Prefill.future(prefill(session, 120_000, 4000))  # some tens of seconds
    until(lambda: wire.metric(begun) > before, "the prefill does not begin")
    waiting = wire.attention.DecodeStep.future(decode(session, 124_000))
    until(lambda: wire.metric("longshore_queue_depth") == 1, "the decode step does not wait")
    assert daemon.stop() == 0, daemon.log.read_text()
    assert refused(waiting.result) == (grpc.StatusCode.UNAVAILABLE, "DRAINING", True)
    assert refused(long.result) == (grpc.StatusCode.UNAVAILABLE, "", False)
    assert "a call still runs" in daemon.log.read_text()
