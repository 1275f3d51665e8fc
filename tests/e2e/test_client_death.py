"""Clients that are killed at each point of each call: applied whole or not at all, nobody else is hurt."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.protobuf.message import Message

from conftest import Daemon, start_daemon
from longshore._proto.longshore.v1 import attention_pb2 as attention
from longshore._proto.longshore.v1 import session_pb2 as sessions
from victims import DATA, HEADERS, MESSAGE_HEAD_BYTES, PREFACE, Cut, Victims, gate, kill
from wire import HELD, Bystander, Wire, decode, on_stream, open_files, open_request, prefill, step, until

ROWS = 600  # of a prefill: some hundred KB each way
LONG_ROWS = 4000  # of a prefill that others wait for
ALL_ANSWERS = Cut(DATA, 1 << 30)


@dataclass(frozen=True)
class Point:
    """Where in its call a client dies.

    requests  what the daemon has of `total` bytes of requests by then
    answers   what of `total` bytes of answers the client has
    applied   whether the call was made, if that is certain
    busy      the daemon's engine works for somebody else meanwhile
    """

    requests: Callable[[int], Cut]
    applied: bool | None = False
    answers: Callable[[int], Cut] = lambda total: ALL_ANSWERS
    busy: bool = False


def whole(total: int) -> Cut:
    return Cut(DATA, total, ends=False)


POINTS = {
    "before the preface": Point(lambda total: Cut(PREFACE, 0)),
    "within the headers": Point(lambda total: Cut(HEADERS, 40)),
    "after the headers": Point(lambda total: Cut(DATA, 0)),
    "within the message": Point(lambda total: Cut(DATA, total // 2)),
    "before the last byte": Point(lambda total: Cut(DATA, total - 1)),
    "while it waits": Point(whole, applied=None, busy=True),
    "while it runs": Point(whole, applied=None),
    "before the answer": Point(whole, applied=True, answers=lambda total: Cut(HEADERS, 0)),
    "within the answer": Point(whole, applied=True, answers=lambda total: Cut(DATA, total // 2)),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that all these tests mistreat: it must have nothing left in the end, and end well."""
    daemon = start_daemon(tmp_path_factory.mktemp("faulty"), "--pool-bytes=512MiB", "--threads=1")
    wire = Wire(daemon)
    wire.listed()
    files = open_files(daemon)
    yield daemon
    try:
        until(lambda: open_files(daemon) <= files, "connections of dead clients are still open")
        assert wire.listed() == set()
    finally:
        status = daemon.stop()
    assert status == 0, daemon.log.read_text()


@pytest.fixture(scope="module")
def unharmed(faulty: Daemon) -> Iterator[Bystander]:
    bystander = Bystander(Wire(faulty))
    yield bystander
    bystander.wire.channel.close()


@pytest.fixture()
def bystander(unharmed: Bystander) -> Iterator[Bystander]:
    """Served before, in between and after; and in the end nothing is left in the pool."""
    unharmed.begin()
    yield unharmed
    unharmed.is_served()
    unharmed.end()
    until(lambda: unharmed.wire.pool_bytes() == 0, "pages of dead clients' sessions are left")


@pytest.fixture(scope="module")
def wire(faulty: Daemon, unharmed: Bystander) -> Iterator[Wire]:
    wire = Wire(faulty)
    yield wire
    wire.channel.close()


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    running = Victims(tmp_path_factory.mktemp("victims"))
    yield running
    running.close()


@dataclass
class Scene:
    """Where clients die."""

    faulty: Daemon
    victims: Victims
    folder: Path
    wire: Wire
    bystander: Bystander

    def die(
        self, point: Point, method: str, requests: list[Message], answer_bytes: int, done: Callable[[], bool]
    ) -> None:
        """A client calls and dies at the point; if the call is certain to be made, when it is `done`."""
        messages = [request.SerializeToString() for request in requests]
        total = sum(MESSAGE_HEAD_BYTES + len(message) for message in messages)
        answers = point.answers(MESSAGE_HEAD_BYTES + answer_bytes)
        service = "Sessions" if "Session" in method else "Attention"
        self.bystander.is_served()
        if point.busy:
            other = self.wire.open(max_tokens=LONG_ROWS)
            long_work = prefill(other, 0, LONG_ROWS)
        with gate(self.folder, self.faulty.target, point.requests(total), answers) as opened:
            engine_works = self.wire.attention.Prefill.future(long_work) if point.busy else None
            pid = self.victims.start(opened.target, f"/longshore.v1.{service}/{method}", messages)
            assert opened.reached.wait(20), "the client does not come so far"
            if point.applied:
                until(done, "the call is not made")
            if not point.busy:
                self.bystander.is_served()  # while the call is half there
            kill(pid)
            if engine_works is not None:
                engine_works.result()
                self.wire.close(other)
        self.bystander.is_served()


@pytest.fixture()
def scene(faulty: Daemon, victims: Victims, tmp_path: Path, wire: Wire, bystander: Bystander) -> Scene:
    return Scene(faulty, victims, tmp_path, wire, bystander)


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
@pytest.mark.parametrize("method", ["AppendKV", "Prefill", "DecodeStep"])
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_a_step_is_applied_or_not(scene: Scene, wire: Wire, stream: bool, method: str, point: Point) -> None:
    kind = getattr(attention, f"{method}Request")
    rows = 1 if method == "DecodeStep" else ROWS
    session, twin = wire.begun(), wire.begun()
    request = step(kind, session, HELD, rows)
    expected = wire.call(method)(step(kind, twin, HELD, rows))
    sent = ("StreamSteps", [on_stream(request, 1)]) if stream else (method, [request])
    scene.die(point, *sent, expected.ByteSize(), lambda: wire.tokens(session) == HELD + rows)

    allowed = {None: {HELD, HELD + rows}, True: {HELD + rows}, False: {HELD}}[point.applied]
    assert wire.tokens(session) in allowed
    # Whichever it was, the same call again answers what it would have answered, and so does the next one.
    assert wire.call(method)(request) == expected
    assert wire.tokens(session) == HELD + rows
    position = HELD + rows
    assert wire.attention.DecodeStep(decode(session, position)) == wire.attention.DecodeStep(
        decode(twin, position)
    )
    wire.close(session, twin)


def test_a_stream_that_ends_within_its_third_step(scene: Scene, wire: Wire) -> None:
    session, twin = wire.begun(), wire.begun()
    steps = [on_stream(prefill(session, HELD + 200 * index, 200), index) for index in range(3)]
    for index in range(2):
        wire.attention.Prefill(prefill(twin, HELD + 200 * index, 200))
    third = MESSAGE_HEAD_BYTES + steps[2].ByteSize()
    point = Point(lambda total: Cut(DATA, total - third // 2), applied=True)
    scene.die(point, "StreamSteps", steps, 1 << 30, lambda: wire.tokens(session) == HELD + 400)
    assert wire.tokens(session) == HELD + 400, "half a step was applied"
    again, expected = (wire.attention.Prefill(prefill(own, HELD + 400, 200)) for own in (session, twin))
    assert again == expected
    wire.close(session, twin)


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_a_session_call_is_applied_or_not(scene: Scene, wire: Wire, point: Point) -> None:
    session = wire.begun()
    own = {session, scene.bystander.session}
    truncate = sessions.TruncateSessionRequest(session_id=session, position=10)
    scene.die(point, "TruncateSession", [truncate], 4, lambda: wire.tokens(session) == 10)
    assert wire.tokens(session) in {None: {HELD, 10}, True: {10}, False: {HELD}}[point.applied]
    assert list(wire.sessions.TruncateSession(truncate).layer_tokens) == [10, 0]

    opening = open_request(500, open_id=int.from_bytes(os.urandom(4), "big"))
    scene.die(point, "OpenSession", [opening], 8, lambda: len(wire.listed()) == 3)
    assert len(wire.listed()) - 2 in {None: {0, 1}, True: {1}, False: {0}}[point.applied]
    opened = wire.sessions.OpenSession(opening).session_id  # the same one, if there is one already
    assert wire.listed() == own | {opened}

    close = sessions.CloseSessionRequest(session_id=session)
    scene.die(point, "CloseSession", [close], 0, lambda: session not in wire.listed())
    closed = (own | {opened}) - {session}
    left = {None: [own | {opened}, closed], True: [closed], False: [own | {opened}]}[point.applied]
    assert wire.listed() in left
    wire.close(*wire.listed() & {session, opened})


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_a_question_changes_nothing(scene: Scene, wire: Wire, point: Point) -> None:
    session = wire.begun()
    describe = sessions.DescribeSessionRequest(session_id=session)
    for method, request in (("DescribeSession", describe), ("ListSessions", sessions.ListSessionsRequest())):
        answer = wire.call(method)(request)
        scene.die(point, method, [request], answer.ByteSize(), lambda: True)
        assert wire.tokens(session) == HELD
        assert wire.listed() == {session, scene.bystander.session}
    wire.close(session)
