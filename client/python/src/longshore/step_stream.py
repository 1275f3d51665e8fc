"""Steps on one connection, sent without waiting for the answers to those before."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc

from longshore._proto.longshore.v1 import attention_pb2 as wire
from longshore.connection import Connection, StepAnswers
from longshore.dtypes import Array
from longshore.errors import Error, Internal, Unavailable, from_status
from longshore.steps import Answer, Attended, Step

if TYPE_CHECKING:
    from longshore.session import Session

Result = TypeVar("Result")


class Pending(Generic[Result]):
    """A step that was sent. Its answer comes after those to all steps sent before it."""

    def __init__(
        self,
        stream: StepStream,
        tag: int,
        step: Step,
        read: Callable[[list[Attended]], Result],
    ) -> None:
        self._stream = stream
        self.tag = tag
        self.step = step
        self._read = read
        self._outcome: Answer | Error | None = None
        self.seen = False  # somebody has asked for the outcome

    @property
    def done(self) -> bool:
        """True once result() would not wait."""
        return self._outcome is not None

    def settle(self, outcome: Answer | Error) -> None:
        """For the stream alone."""
        self._outcome = outcome

    def answer(self) -> Answer:
        """As result(), but the answer as it came."""
        self._stream.wait(self)
        self.seen = True
        if isinstance(self._outcome, Error):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def result(self) -> Result:
        """Waits. Raises longshore.Error if the step was refused or its stream broke."""
        return self._read(self.step.attended(self.answer()))


class StepStream:
    """One StreamSteps call of the wire: steps are applied and answered in the order of sending.

        with client.stream() as steps:
            a = steps.decode(session_a, layer, q_a, k_a, v_a)
            b = steps.decode(session_b, layer, q_b, k_b, v_b)  # sent while the daemon computes a
            out_a, out_b = a.result().out, b.result().out

    A refused step does not end the stream; those sent after it to the same layer leave a gap and
    are refused too. If the connection breaks, the steps without an answer fail, though they may
    have been applied; the next step connects again. Threads may send and wait at the same time.
    """

    def __init__(self, connection: Connection) -> None:
        """Connects with the first step."""
        self._connection = connection
        self._tags = itertools.count(1)
        self._reading = threading.Lock()  # one thread at a time takes answers off the connection
        self._sending = threading.Lock()  # guards what follows
        self._requests: queue.SimpleQueue[wire.StreamStepsRequest | None] = queue.SimpleQueue()
        self._answers: StepAnswers | None = None
        self._unanswered: deque[Pending[Any]] = deque()
        self._failed: list[Pending[Any]] = []
        self._closed = False

    def append(
        self, session: Session, layer: int, k: Array, v: Array, position: int | None = None
    ) -> Pending[None]:
        """See Session.append; never cut in pieces."""
        step = Step("append_kv", layer, [session.rows(self._connection, None, k, v, position)])
        return self._send(step, lambda attended: None)

    def prefill(
        self,
        session: Session,
        layer: int,
        q: Array,
        k: Array,
        v: Array,
        position: int | None = None,
        *,
        want_lse: bool = False,
        exclude_sink_logits: bool = False,
    ) -> Pending[Attended]:
        """See Session.prefill; never cut in pieces."""
        rows = session.rows(self._connection, q, k, v, position)
        step = Step("prefill", layer, [rows], want_lse, exclude_sink_logits)
        return self._send(step, lambda attended: attended[0])

    def decode(
        self,
        session: Session,
        layer: int,
        q: Array,
        k: Array,
        v: Array,
        position: int | None = None,
        *,
        want_lse: bool = False,
        exclude_sink_logits: bool = False,
    ) -> Pending[Attended]:
        """See Session.decode."""
        rows = session.rows(self._connection, q, k, v, position)
        step = Step("decode", layer, [rows], want_lse, exclude_sink_logits)
        return self._send(step, lambda attended: attended[0])

    def decode_batch(
        self,
        layer: int,
        batch: Sequence[tuple[Session, Array, Array, Array]],
        *,
        want_lse: bool = False,
        exclude_sink_logits: bool = False,
    ) -> Pending[list[Attended]]:
        """See Client.decode_batch."""
        rows = [session.rows(self._connection, q, k, v, None) for session, q, k, v in batch]
        step = Step("decode", layer, rows, want_lse, exclude_sink_logits)
        return self._send(step, lambda attended: attended)

    def call(self, step: Step) -> Answer:
        """Sends a step and waits for its answer. Raises longshore.Error."""
        return self._send(step, lambda attended: None).answer()

    def wait(self, pending: Pending[Result]) -> None:
        """Takes answers off the connection up to the one to `pending`."""
        while not pending.done:
            with self._reading:
                if not pending.done:
                    self._read_one()

    def close(self) -> None:
        """Waits for all answers, then raises the first failure that nobody has asked for."""
        with self._sending:
            self._closed = True
            self._requests.put(None)
        with self._reading:
            while self._unanswered:
                self._read_one()
        for pending in self._failed:
            if not pending.seen:
                pending.answer()

    def cancel(self) -> None:
        """Does not wait: steps without an answer may or may not be applied."""
        with self._sending:
            self._closed = True
            self._requests.put(None)
            if self._answers is not None and self._unanswered:
                self._answers.cancel()

    def __enter__(self) -> StepStream:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.cancel()

    def _send(self, step: Step, read: Callable[[list[Attended]], Result]) -> Pending[Result]:
        with self._sending:
            if self._closed:
                raise ValueError("the stream is closed")
            if self._answers is None:
                self._requests = queue.SimpleQueue()
                self._answers = self._connection.stream_steps(iter(self._requests.get, None))
            pending = Pending(self, next(self._tags), step, read)
            step.envelope.tag = pending.tag
            self._unanswered.append(pending)
            self._requests.put(step.envelope)
        return pending

    def _read_one(self) -> None:
        """Takes the next answer off the connection, or fails all steps that wait for one."""
        assert self._answers is not None  # opened by the step that is waited for
        try:
            message = next(self._answers)
        except StopIteration:
            self._break(Unavailable(f"{self._connection.target}: the stream was ended"))
            return
        except grpc.RpcError as error:
            self._break(self._connection.error(error))
            return
        pending = self._unanswered[0]
        if message.tag != pending.tag:
            self._break(Internal(f"an answer to step {message.tag} came instead of {pending.tag}"))
            return
        self._unanswered.popleft()
        if message.status.code != 0:
            self._fail(pending, from_status(message.status))
        else:
            pending.settle(getattr(message, pending.step.kind))

    def _fail(self, pending: Pending[Any], error: Error) -> None:
        pending.step.give_back()
        self._failed = [other for other in self._failed if not other.seen] + [pending]
        pending.settle(error)

    def _break(self, error: Error) -> None:
        """The connection is of no use any more."""
        with self._sending:
            self._requests.put(None)  # gRPC's thread waits for a request
            self._answers = None
            while self._unanswered:
                self._fail(self._unanswered.popleft(), error)
