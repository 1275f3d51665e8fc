"""One sequence in the daemon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal, Protocol, cast, overload

import numpy as np

from longshore._proto.longshore.v1 import session_pb2
from longshore.connection import Connection
from longshore.dtypes import Array
from longshore.errors import Error, NotFound, NotRunning
from longshore.info import Limits, SessionInfo
from longshore.policy import AttentionPolicy
from longshore.policy.policy_check import query_block_of
from longshore.steps import Attended, Kind, Positions, Rows, Step, Steps, run

_MESSAGE_OVERHEAD_BYTES = 64 * 1024  # more than everything in a step's message besides its tensors


class _Attend(Protocol):
    """How Session.prefill and Session.decode are called: with want_lse they return (out, lse)."""

    @overload
    def __call__(
        self,
        layer: int,
        q: Array,
        k: Array,
        v: Array,
        position: int | None = None,
        *,
        want_lse: Literal[False] = False,
        exclude_sink_logits: bool = False,
    ) -> Array: ...

    @overload
    def __call__(
        self,
        layer: int,
        q: Array,
        k: Array,
        v: Array,
        position: int | None = None,
        *,
        want_lse: Literal[True],
        exclude_sink_logits: bool = False,
    ) -> tuple[Array, Array]: ...


class _AttendMethod(Protocol):
    def __get__(self, session: Session, owner: type[Session] | None = None) -> _Attend: ...


def _attends(method: Callable[..., Array | tuple[Array, Array]]) -> _AttendMethod:
    """The method itself, typed as _Attend: its overloads are written once for all of them."""
    return cast(_AttendMethod, method)


class Session:
    """The keys and values of one sequence. Opened by Client.open_session; not thread-safe.

    All arrays are numpy's, contiguous or not, with q and k before RoPE:

        q     [rows, heads, head_dim]     in the model's query_dtype
        k, v  [rows, kv_heads, head_dim]  in its kv_dtype or query_dtype

    bfloat16 is ml_dtypes.bfloat16, or its bits as uint16. Outputs come in q's type.

    Layers have independent lengths. A call appends at `position`, which must be the layer's length
    and which the session counts itself when it is None. A call that raises has changed nothing, but
    for one case: after Unavailable, Cancelled, DeadlineExceeded or an interrupt it may have been
    applied, and truncate() to the position that is wanted makes it certain.
    """

    def __init__(
        self,
        connection: Connection,
        steps: Steps,
        limits: Limits,
        opened: session_pb2.OpenSessionResponse,
    ) -> None:
        """For Client.open_session alone. Owns `steps`."""
        self._connection = connection
        self._steps = steps
        self._limits = limits
        self._policy = opened.policy
        self._closed = False
        self._positions = Positions(opened.session_id)

    @property
    def id(self) -> int:
        return self._positions.session_id

    @property
    def policy(self) -> AttentionPolicy:
        """The policy in full, as the daemon applies it."""
        return self._policy

    def tokens(self, layer: int) -> int:
        """Tokens that a layer holds, as counted here."""
        return self._positions.tokens(layer)

    def append(self, layer: int, k: Array, v: Array, position: int | None = None) -> None:
        """Keeps keys and values without attending."""
        self._run("append_kv", layer, Rows(self._positions, None, k, v, position))

    @_attends
    def prefill(
        self,
        layer: int,
        q: Array,
        k: Array,
        v: Array,
        position: int | None = None,
        *,
        want_lse: bool = False,
        exclude_sink_logits: bool = False,
    ) -> Array | tuple[Array, Array]:
        """Appends a piece of a prompt and attends causally: out [rows, heads, head_dim].

        want_lse             returns (out, lse): lse [rows, heads] float32, the natural logarithm of
                             the denominator of out's softmax
        exclude_sink_logits  leaves learned sinks out of both, so that partial results can be merged

        More rows than the daemon takes at once are sent in pieces; an error then leaves the pieces
        before it applied, as tokens() tells.
        """
        rows = Rows(self._positions, q, k, v, position)
        return _result(self._run("prefill", layer, rows, want_lse, exclude_sink_logits), want_lse)

    @_attends
    def decode(
        self,
        layer: int,
        q: Array,
        k: Array,
        v: Array,
        position: int | None = None,
        *,
        want_lse: bool = False,
        exclude_sink_logits: bool = False,
    ) -> Array | tuple[Array, Array]:
        """Appends the next token (or a few) and attends, with the cached selection if it is fresh.

        Arguments and result as for prefill(); never cut in pieces.
        """
        rows = Rows(self._positions, q, k, v, position)
        return _result(self._run("decode", layer, rows, want_lse, exclude_sink_logits), want_lse)

    def truncate(self, position: int) -> None:
        """Forgets all tokens at `position` and after it, in every layer that reaches it."""
        request = session_pb2.TruncateSessionRequest(session_id=self.id, position=position)
        answer: session_pb2.TruncateSessionResponse = self._connection.call(
            self._connection.sessions.TruncateSession, request
        )
        self._positions.set(answer.layer_tokens)

    def describe(self) -> SessionInfo:
        """The session as the daemon sees it."""
        request = session_pb2.DescribeSessionRequest(session_id=self.id)
        answer: session_pb2.DescribeSessionResponse = self._connection.call(
            self._connection.sessions.DescribeSession, request
        )
        return SessionInfo.from_wire(answer.session)

    def close(self) -> None:
        """Frees the keys and values. Where session or daemon are gone, there is nothing to free."""
        if self._closed:
            return
        self._closed = True
        self._steps.cancel()  # every step has been waited for, unless it was interrupted
        request = session_pb2.CloseSessionRequest(session_id=self.id)
        with suppress(NotFound, NotRunning):
            self._connection.call(self._connection.sessions.CloseSession, request)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            self.close()
        except Error:
            if kind is None:  # else the first error is the one to know of
                raise

    def rows(
        self, connection: Connection, q: Array | None, k: Array, v: Array, position: int | None
    ) -> Rows:
        """What this session brings to a call. Raises ValueError on another client's connection."""
        if connection is not self._connection:
            raise ValueError(f"session {self.id} was opened by another client")
        return Rows(self._positions, q, k, v, position)

    def _run(
        self,
        kind: Kind,
        layer: int,
        rows: Rows,
        want_lse: bool = False,
        exclude_sink_logits: bool = False,
    ) -> list[Attended]:
        """One step, or several for more rows than the daemon takes in one: what each attended."""
        position = self.tokens(layer) if rows.position is None else rows.position
        attended = []
        for cut in [slice(0, None)] if kind == "decode" else self._cuts(position, rows):
            part = rows.part(cut, position + cut.start)
            step = Step(kind, layer, [part], want_lse, exclude_sink_logits)
            attended += run(self._steps, step)
        return attended

    def _cuts(self, position: int, rows: Rows) -> Iterator[slice]:
        """The pieces in which rows at `position` fit into the daemon's limits."""
        count = rows.k.shape[0]
        nbytes = rows.k.nbytes + rows.v.nbytes + (0 if rows.q is None else rows.q.nbytes)
        message_bytes = self._limits.max_message_bytes - _MESSAGE_OVERHEAD_BYTES
        max_rows = message_bytes // max(nbytes // max(count, 1), 1)
        max_rows = min(self._limits.max_rows_per_prefill, max_rows)
        # Whole query blocks of every stage; where so many rows are too many, of what is attended together.
        whole = whole_blocks(self._policy)
        block = whole if whole <= max_rows else self._policy.query_block
        return pieces(position, count, max_rows, block)


def whole_blocks(policy: AttentionPolicy) -> int:
    """Rows at whose absolute multiples a prompt can be cut without changing a bit: every query block of
    every stage of a prefill is whole.
    """
    layers = (policy.prefill.rest, policy.prefill.early)
    blocks = (query_block_of(policy, stage) for each in layers for stage in each.stages)
    return math.lcm(policy.query_block, *blocks)


def pieces(position: int, rows: int, max_rows: int, block: int) -> Iterator[slice]:
    """Cuts rows at `position` into slices of at most max_rows, at multiples of `block`.

    Multiples of the absolute position, that is. Where max_rows reaches none, a cut falls elsewhere.
    For 0 rows there is one slice, which is empty.
    """
    begin = 0
    while rows - begin > max(max_rows, 1):
        end = begin + max(max_rows, 1)
        aligned = end - (position + end) % block
        end = aligned if aligned > begin else end
        yield slice(begin, end)
        begin = end
    yield slice(begin, rows)


def _result(attended: list[Attended], want_lse: bool) -> Array | tuple[Array, Array]:
    """The pieces' outputs as one, with their log-sum-exp if that is wanted."""
    outs = [piece.out for piece in attended]
    out = outs[0] if len(outs) == 1 else np.concatenate(outs)
    if not want_lse:
        return out
    return out, np.concatenate([piece.lse for piece in attended if piece.lse is not None])
