"""A daemon, and the sessions that are opened there."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Literal, overload

from longshore._proto.longshore.v1 import server_pb2, session_pb2
from longshore.connection import Connection, default_target
from longshore.dtypes import Array
from longshore.errors import NotRunning, Unavailable
from longshore.info import ServerInfo, SessionInfo
from longshore.model_shape import ModelShape
from longshore.policy import AttentionPolicy, policy_spec
from longshore.session import Session
from longshore.step_stream import StepStream
from longshore.steps import Step, Steps, UnarySteps, run

_POLL_SECONDS = 0.1


def connect(target: str | None = None, *, wait_seconds: float = 0.0) -> Client:
    """Connects to a daemon.

    target        unix:/path or host:port; None: where longshored listens unless told otherwise
    wait_seconds  how long to wait for a daemon that is not there yet, or still starts

    Raises NotRunning, which says how to start one, if nothing listens there.
    """
    client = Client(target or default_target())
    give_up = time.monotonic() + wait_seconds
    while True:
        try:
            client.info()
            return client
        except BaseException as error:
            starting = isinstance(error, Unavailable) and error.reason in ("", "LOADING")
            if not starting or time.monotonic() >= give_up:
                client.close()
                raise
        time.sleep(_POLL_SECONDS)


class Client:
    """A connection to a daemon; see connect(). Thread-safe. Sessions end with it or before."""

    def __init__(self, target: str) -> None:
        """Does not connect yet: the first call does."""
        self._connection = Connection(target)
        self._steps = UnarySteps(self._connection)
        self._info: ServerInfo | None = None

    @property
    def target(self) -> str:
        return self._connection.target

    def info(self) -> ServerInfo:
        """Version, backends, limits and presets of the daemon."""
        answer: server_pb2.GetServerInfoResponse = self._connection.call(
            self._connection.server.GetServerInfo, server_pb2.GetServerInfoRequest()
        )
        self._info = ServerInfo.from_wire(answer)
        return self._info

    def open_session(
        self,
        model: ModelShape,
        policy: str | AttentionPolicy = "standard",
        *,
        max_tokens: int,
        overcommit: bool = False,
        name: str = "",
        dense_below_tokens: int | None = None,
        lease_seconds: float = 0,
        stream: bool = False,
    ) -> Session:
        """Opens a session: one sequence, whose longest layer may become max_tokens.

        policy              a preset's name (see info().presets) or a policy in full
        overcommit          reserves no memory, so that a full pool shows in the steps, not here
        name                a label for people
        dense_below_tokens  replaces the preset's: shorter contexts are attended whole
        lease_seconds       the daemon closes the session when no call names it for so long;
                            0: info().limits.default_lease_seconds
        stream              sends steps over a stream of the session's own, not as calls: the same
                            bits, less work for the daemon, about the same latency in Python
        """
        request = session_pb2.OpenSessionRequest(
            model=model.to_wire(),
            policy=policy_spec(policy, dense_below_tokens),
            max_tokens=max_tokens,
            overcommit=overcommit,
            name=name,
            lease_seconds=lease_seconds,
            open_id=secrets.randbits(64) or 1,
        )
        opened: session_pb2.OpenSessionResponse = self._open(request)
        info = self._info
        if info is None or info.instance_id != opened.instance_id:
            info = self.info()  # another daemon, other limits
        steps: Steps = StepStream(self._connection) if stream else self._steps
        return Session(self._connection, steps, info.limits, opened)

    def _open(self, request: session_pb2.OpenSessionRequest) -> session_pb2.OpenSessionResponse:
        """Once more if the connection broke: with its open_id the request opens one session."""
        open_session = self._connection.sessions.OpenSession
        try:
            return self._connection.call(open_session, request)
        except Unavailable as error:
            if error.reason or isinstance(error, NotRunning):
                raise  # the daemon's own word, or there is none
            return self._connection.call(open_session, request)

    def sessions(self) -> list[SessionInfo]:
        """This host's sessions, those of other clients too; over the Unix socket all of the daemon's.

        Without model and policy.
        """
        answer: session_pb2.ListSessionsResponse = self._connection.call(
            self._connection.sessions.ListSessions, session_pb2.ListSessionsRequest()
        )
        return [SessionInfo.from_wire(session) for session in answer.sessions]

    @overload
    def decode_batch(
        self,
        layer: int,
        batch: Sequence[tuple[Session, Array, Array, Array]],
        *,
        want_lse: Literal[False] = False,
        exclude_sink_logits: bool = False,
    ) -> list[Array]: ...

    @overload
    def decode_batch(
        self,
        layer: int,
        batch: Sequence[tuple[Session, Array, Array, Array]],
        *,
        want_lse: Literal[True],
        exclude_sink_logits: bool = False,
    ) -> list[tuple[Array, Array]]: ...

    def decode_batch(
        self,
        layer: int,
        batch: Sequence[tuple[Session, Array, Array, Array]],
        *,
        want_lse: bool = False,
        exclude_sink_logits: bool = False,
    ) -> list[Array] | list[tuple[Array, Array]]:
        """Session.decode of one layer for several sessions of equal shape in one call.

        batch  (session, q, k, v) of each, as for Session.decode; rows may differ

        The same bits as one call each. Applies as a whole or not at all: an error's `field` names
        the item.
        """
        rows = [session.rows(self._connection, q, k, v, None) for session, q, k, v in batch]
        attended = run(self._steps, Step("decode", layer, rows, want_lse, exclude_sink_logits))
        if want_lse:
            return [(one.out, one.lse) for one in attended if one.lse is not None]
        return [one.out for one in attended]

    def stream(self) -> StepStream:
        """A connection for steps that are sent without waiting for those before."""
        return StepStream(self._connection)

    def close(self) -> None:
        """Calls on their way are cancelled. Sessions that are still open stay in the daemon."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
