"""Clients that die, stall or ask for too much: the others are served, and every session is as it may be."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

import longshore
from conftest import Daemon, start_daemon
from longshore._proto.longshore.v1 import attention_pb2 as attention
from longshore._proto.longshore.v1 import attention_pb2_grpc, session_pb2_grpc
from longshore._proto.longshore.v1 import session_pb2 as sessions
from longshore._proto.longshore.v1 import tensor_pb2
from victims import Victims, gate, kill

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 2, 4, 2, 64
SHAPE = longshore.ModelShape(
    num_layers=LAYERS, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM
)
HELD = 100  # tokens of a session before the call that fails
ROWS = 600  # of a prefill: some hundred KB each way


def tensor(rows: int, heads: int, seed: int) -> tensor_pb2.Tensor:
    values = np.random.default_rng(seed).standard_normal((rows, heads, HEAD_DIM), dtype=np.float32)
    return tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_F32, shape=values.shape, inline_data=values.tobytes())


def step(kind: type, session: int, position: int, rows: int, append_id: int = 7):
    """A request of layer 0; its rows follow from the position."""
    item = attention.StepItem(session_id=session, position=position, rows=rows, append_id=append_id)
    keys, values = tensor(rows, KV_HEADS, position + 1), tensor(rows, KV_HEADS, position + 2)
    request = kind(layer=0, items=[item], k=keys, v=values)
    if kind is not attention.AppendKVRequest:
        request.q.CopyFrom(tensor(rows, HEADS, position + 3))
    return request


class Wire:
    """The generated stubs on a connection of their own."""

    def __init__(self, daemon: Daemon) -> None:
        self.channel = grpc.insecure_channel(daemon.target, options=[("grpc.use_local_subchannel_pool", 1)])
        self.attention = attention_pb2_grpc.AttentionStub(self.channel)
        self.sessions = session_pb2_grpc.SessionsStub(self.channel)

    def open(self, max_tokens: int = 2000, overcommit: bool = False, open_id: int = 0) -> int:
        return self.sessions.OpenSession(open_request(max_tokens, overcommit, open_id)).session_id

    def close(self, session: int) -> None:
        self.sessions.CloseSession(sessions.CloseSessionRequest(session_id=session))

    def listed(self) -> dict[int, tuple[int, ...]]:
        answer = self.sessions.ListSessions(sessions.ListSessionsRequest())
        return {session.session_id: tuple(session.layer_tokens) for session in answer.sessions}

    def tokens(self, session: int) -> int:
        request = sessions.DescribeSessionRequest(session_id=session)
        return self.sessions.DescribeSession(request).session.layer_tokens[0]

    def pool_bytes(self) -> int:
        """Used and promised."""
        answer = self.sessions.ListSessions(sessions.ListSessionsRequest())
        return sum(session.page_bytes_used + session.page_bytes_reserved for session in answer.sessions)

    def begun(self) -> int:
        """A session with HELD tokens."""
        session = self.open()
        self.attention.Prefill(step(attention.PrefillRequest, session, 0, HELD, append_id=1))
        return session


def open_request(max_tokens: int, overcommit: bool, open_id: int) -> sessions.OpenSessionRequest:
    request = sessions.OpenSessionRequest(max_tokens=max_tokens, overcommit=overcommit, open_id=open_id)
    request.model.CopyFrom(SHAPE.to_wire())
    request.policy.preset = "standard"
    return request


def reason_of(error: grpc.RpcError) -> str:
    """The ErrorInfo's; empty for gRPC's own errors."""
    status = status_pb2.Status()
    status.ParseFromString(dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b""))
    info = error_details_pb2.ErrorInfo()
    return info.reason if any(detail.Unpack(info) for detail in status.details) else ""


def resident_bytes(daemon: Daemon) -> int:
    for line in Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the daemon has ended")


def open_files(daemon: Daemon) -> int:
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


def until(holds: Callable[[], bool], what: str) -> None:
    """Waits for what takes the daemon a moment."""
    for _ in range(600):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError(what)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that all these tests mistreat; it must end well."""
    daemon = start_daemon(tmp_path_factory.mktemp("faulty"), "--pool-bytes=512MiB", "--threads=1")
    yield daemon
    assert daemon.stop() == 0, daemon.log.read_text()


@pytest.fixture()
def wire(faulty: Daemon) -> Wire:
    return Wire(faulty)


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    running = Victims(tmp_path_factory.mktemp("victims"))
    yield running
    running.close()


def service(name: str) -> str:
    return f"/longshore.v1.{'Sessions' if 'Session' in name else 'Attention'}/{name}"


STEPS = {
    "AppendKV": (attention.AppendKVRequest, ROWS),
    "Prefill": (attention.PrefillRequest, ROWS),
    "DecodeStep": (attention.DecodeStepRequest, 1),
}
# Where the client dies: bytes that reach the daemon, None for all of them.
POINTS = {
    "before the preface": 0,
    "within the headers": 100,
    "within the message": 1000,
    "within a long message": 300_000,
    "while it waits or runs": None,
    "before the answer is read": None,
}


@dataclass
class Scene:
    """Where clients die: at whose door, and with what."""

    faulty: Daemon
    victims: Victims
    folder: Path
    point: str

    def die(self, method: str, request: Message, done: Callable[[], bool]) -> bool | None:
        """Whether the call was made (None: nobody knows) by a client that died at the point."""
        return die(self, method, request.SerializeToString(), done)


def die(scene: Scene, method: str, request: bytes, done: Callable[[], bool]) -> bool | None:
    to_daemon = POINTS[scene.point]
    if to_daemon is not None and to_daemon > len(request):
        to_daemon = len(request) // 2
    # gRPC's preface and settings are 100 bytes, the headers of a call 200: with so many the request is there.
    with gate(scene.folder, scene.faulty.target, to_daemon, len(request) + 200) as opened:
        pid = scene.victims.start(opened.target, service(method), request)
        if to_daemon == 0:
            time.sleep(0.1)  # it waits to be let in
        else:
            assert opened.reached.wait(20), "the client sends nothing"
        if scene.point == "before the answer is read":
            until(done, "the call is not made")
        kill(pid)
    return {"while it waits or runs": None, "before the answer is read": True}.get(scene.point, False)


@pytest.fixture(params=POINTS)
def scene(request: pytest.FixtureRequest, faulty: Daemon, victims: Victims, tmp_path: Path) -> Scene:
    return Scene(faulty, victims, tmp_path, request.param)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_a_step_whose_client_dies_is_applied_or_not(scene, wire, stream, name) -> None:
    kind, rows = STEPS[name]
    session, twin, other = wire.begun(), wire.begun(), wire.begun()
    request = step(kind, session, HELD, rows)
    expected = getattr(wire.attention, name)(step(kind, twin, HELD, rows))
    method, message = name, request
    if stream:
        arm = {"AppendKV": "append_kv", "Prefill": "prefill", "DecodeStep": "decode"}[name]
        method, message = "StreamSteps", attention.StreamStepsRequest(tag=1, **{arm: request})
    made = scene.die(method, message, lambda: wire.tokens(session) == HELD + rows)

    served = wire.attention.DecodeStep(step(attention.DecodeStepRequest, other, HELD, 1))
    assert served.layer_tokens == [HELD + 1]
    assert wire.tokens(session) in {None: (HELD, HELD + rows), True: (HELD + rows,), False: (HELD,)}[made]
    # Whichever it was, the same call again answers what it would have answered.
    assert getattr(wire.attention, name)(request).SerializeToString() == expected.SerializeToString()
    assert wire.tokens(session) == HELD + rows
    after = step(attention.DecodeStepRequest, session, HELD + rows, 1)
    after_twin = step(attention.DecodeStepRequest, twin, HELD + rows, 1)
    assert wire.attention.DecodeStep(after) == wire.attention.DecodeStep(after_twin)
    for opened in (session, twin, other):
        wire.close(opened)
    assert wire.listed() == {}


def test_a_session_call_whose_client_dies_is_applied_or_not(scene, wire) -> None:
    session = wire.begun()
    truncate = sessions.TruncateSessionRequest(session_id=session, position=10)
    made = scene.die("TruncateSession", truncate, lambda: wire.tokens(session) == 10)
    assert wire.tokens(session) in {None: (HELD, 10), True: (10,), False: (HELD,)}[made]
    assert list(wire.sessions.TruncateSession(truncate).layer_tokens) == [10, 0]

    opening = open_request(500, False, open_id=0x5EED + len(scene.point))
    made = scene.die("OpenSession", opening, lambda: len(wire.listed()) == 2)
    assert made is None or len(wire.listed()) == 1 + made
    opened = wire.sessions.OpenSession(opening).session_id  # the same one, if there is one already
    assert set(wire.listed()) == {session, opened}

    close = sessions.CloseSessionRequest(session_id=session)
    made = scene.die("CloseSession", close, lambda: session not in wire.listed())
    assert made is None or (session in wire.listed()) != made
    for left in wire.listed():
        wire.close(left)
    assert wire.pool_bytes() == 0


def test_two_hundred_connections_come_and_go(faulty, wire) -> None:
    session = wire.begun()
    path = faulty.target.removeprefix("unix:")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    half_headers = bytes([0, 2, 0, 1, 4, 0, 0, 0, 1]) + b"x" * 100  # of 512
    before = open_files(faulty)
    for round_ in range(4):
        peers = [socket.socket(socket.AF_UNIX) for _ in range(50)]
        for index, peer in enumerate(peers):
            peer.connect(path)
            peer.sendall((b"", preface[:10], preface, preface + half_headers)[index % 4])
        assert wire.attention.DecodeStep(
            step(attention.DecodeStepRequest, session, HELD + round_, 1)
        ).layer_tokens == [HELD + round_ + 1]
        for peer in peers:
            peer.close()
    channels = [Wire(faulty) for _ in range(50)]
    calls = [
        channel.attention.DecodeStep.future(step(attention.DecodeStepRequest, session, HELD + 4, 1))
        for channel in channels
    ]
    for call, channel in zip(calls, channels, strict=True):
        call.cancel()
        channel.channel.close()
    until(lambda: open_files(faulty) <= before + 2, "connections that were dropped are still open")
    assert wire.tokens(session) in (HELD + 4, HELD + 5)
    wire.close(session)
    assert wire.pool_bytes() == 0


def test_a_reader_that_does_not_read_holds_back_itself_alone(faulty, wire) -> None:
    """Its steps stop at the bound; what they have answered so far is all that is kept for it."""
    rows, steps = 512, 300  # 300 answers would be 150 MB
    session, other = wire.open(max_tokens=rows * steps, overcommit=True), wire.begun()
    sent = threading.Event()

    def requests() -> Iterator[attention.StreamStepsRequest]:
        for index in range(steps):
            # A small context, so that a step is quick: each is a replay of the first.
            request = step(attention.PrefillRequest, session, 0, rows)
            yield attention.StreamStepsRequest(tag=index, prefill=request)
            if index == 2 * 8:
                sent.set()

    before = resident_bytes(faulty)
    slow = Wire(faulty)
    answers = slow.attention.StreamSteps(requests())
    most = 0
    for position in range(HELD, HELD + 200):
        wire.attention.DecodeStep(step(attention.DecodeStepRequest, other, position, 1))
        most = max(most, resident_bytes(faulty) - before)
    # 8 steps in flight, their requests and answers of half a MB each, and what sockets and allocator keep.
    assert most < 64 << 20, f"{most >> 20} MiB for a client that reads nothing"
    tags = [answer.tag for answer in answers]  # and when it does read, everything comes
    assert tags == list(range(steps))
    for opened in (session, other):
        wire.close(opened)


def test_a_pool_that_is_full_in_the_middle_of_a_prompt(tmp_path) -> None:
    daemon = start_daemon(tmp_path, "--pool-bytes=24MiB", "--threads=1")
    wire = Wire(daemon)
    reserved = wire.open(max_tokens=1000)
    twin_of_hungry: list[bytes] = []
    hungry = wire.open(max_tokens=100_000, overcommit=True)
    position, piece = 0, 1000
    with pytest.raises(grpc.RpcError) as error:
        while True:  # a piece is 1 MB of keys and values
            answer = wire.attention.Prefill(step(attention.PrefillRequest, hungry, position, piece))
            twin_of_hungry.append(answer.out.inline_data)
            position += piece
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reason_of(error.value) == "POOL_FULL"
    assert position > 10 * piece, "the pool holds more than that"
    assert wire.tokens(hungry) == position, "what was there stays, and no part of the failed piece"
    # A session that opened with its pages reserved goes on.
    for begin in range(0, 1000, 500):
        wire.attention.Prefill(step(attention.PrefillRequest, reserved, begin, 500))
    # Once another has gone, the very same call succeeds.
    refused = step(attention.PrefillRequest, hungry, position, 500)
    with pytest.raises(grpc.RpcError):
        wire.attention.Prefill(step(attention.PrefillRequest, hungry, position, piece))
    wire.close(reserved)
    resumed = wire.attention.Prefill(refused)
    assert list(resumed.layer_tokens) == [position + 500]
    wire.close(hungry)
    assert wire.pool_bytes() == 0
    # Nothing was lost on the way: a session that never met the limit gives the same bits.
    fresh = wire.open(max_tokens=100_000, overcommit=True)
    for index, out in enumerate(twin_of_hungry):
        answer = wire.attention.Prefill(step(attention.PrefillRequest, fresh, index * piece, piece))
        assert answer.out.inline_data == out
    again = wire.attention.Prefill(step(attention.PrefillRequest, fresh, position, 500))
    assert again.out.inline_data == resumed.out.inline_data
    assert daemon.stop() == 0, daemon.log.read_text()


def test_one_millisecond_for_everything(faulty, wire) -> None:
    """Calls end in time or too late; those may have been applied, and the same call again says so."""
    session, twin = wire.open(), wire.open()
    position, late = 0, 0
    for turn in range(60):
        kind, rows, method = [
            (attention.PrefillRequest, 20, "Prefill"),
            (attention.DecodeStepRequest, 1, "DecodeStep"),
            (attention.AppendKVRequest, 5, "AppendKV"),
        ][turn % 3]
        request = step(kind, session, position, rows, append_id=turn + 1)
        expected = getattr(wire.attention, method)(step(kind, twin, position, rows, append_id=turn + 1))
        answer = None
        for timeout in (0.001, 0.001, None):
            try:
                answer = getattr(wire.attention, method)(request, timeout=timeout)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error
                late += 1
        assert answer == expected
        position += rows
        for call, asked in (
            (wire.sessions.DescribeSession, sessions.DescribeSessionRequest(session_id=session)),
            (wire.sessions.ListSessions, sessions.ListSessionsRequest()),
            (
                wire.sessions.TruncateSession,
                sessions.TruncateSessionRequest(session_id=session, position=position),
            ),
        ):
            try:
                call(asked, timeout=0.001)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error
                late += 1
    assert wire.tokens(session) == position
    for opened in (session, twin):
        wire.close(opened)
    until(lambda: wire.pool_bytes() == 0, "pages are left")


def test_sigterm_under_load_answers_everyone(tmp_path) -> None:
    daemon = start_daemon(tmp_path, "--pool-bytes=512MiB", "--threads=1")
    outcomes: list[str] = []

    def load(index: int) -> None:
        wire = Wire(daemon)
        try:
            session = wire.open(max_tokens=20_000, overcommit=True)
            for position in range(0, 20_000, 200):
                wire.attention.Prefill(step(attention.PrefillRequest, session, position, 200))
        except grpc.RpcError as error:
            outcomes.append(f"{error.code().name} {reason_of(error)}")

    threads = [threading.Thread(target=load, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    assert daemon.stop() == 0, daemon.log.read_text()
    for thread in threads:
        thread.join()
    assert len(outcomes) == len(threads)
    # Refused by the daemon with a reason, or by its closed socket.
    assert set(outcomes) <= {"UNAVAILABLE DRAINING", "UNAVAILABLE "}, outcomes
    assert not Path(daemon.target.removeprefix("unix:")).exists()
