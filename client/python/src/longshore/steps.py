"""One call of one layer: what is sent, how the answer is read, and what at-most-once needs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from longshore._proto.longshore.v1 import attention_pb2 as wire
from longshore._proto.longshore.v1 import tensor_pb2
from longshore.connection import Connection
from longshore.dtypes import Array, dtype_of
from longshore.errors import NotRunning, Unavailable

Kind = Literal["append_kv", "prefill", "decode"]
# Seconds before each replay. One is not enough: it may still be given to the dying connection.
_REPLAY_PAUSES = (0.0, 0.05, 0.2)

Answer = wire.AppendKVResponse | wire.PrefillResponse | wire.DecodeStepResponse


class Attended(NamedTuple):
    """What attention gives for the rows of one session.

    out  [rows, heads, head_dim]  of q's dtype
    lse  [rows, heads] float32    natural logarithm of out's denominator; None unless asked for
    """

    out: Array
    lse: Array | None


class Positions:
    """A session's id, and the tokens that each of its layers holds, calls on their way included."""

    def __init__(self, session_id: int) -> None:
        self.session_id = session_id
        self._tokens: dict[int, int] = {}

    def tokens(self, layer: int) -> int:
        return self._tokens.get(layer, 0)

    def set(self, layer_tokens: Sequence[int]) -> None:
        self._tokens = dict(enumerate(layer_tokens))

    def claim(self, layer: int, rows: int, position: int | None) -> Claim:
        """Counts `rows` at `position`, or at the layer's end for None."""
        before = self.tokens(layer)
        claim = Claim(self, layer, before if position is None else position, rows, before)
        self.hold(claim)
        return claim

    def hold(self, claim: Claim) -> None:
        """Counts the rows of a claim that was given back."""
        self._tokens[claim.layer] = claim.position + claim.rows

    def give_back(self, claim: Claim) -> None:
        """Forgets a claim whose call failed, and with it those after it, which leave a gap now."""
        if self._tokens[claim.layer] == claim.position + claim.rows:
            self._tokens[claim.layer] = claim.before
        else:
            self._tokens[claim.layer] = min(self._tokens[claim.layer], claim.position)


class Claim(NamedTuple):
    """Positions [position, position + rows) of a layer, which held `before` tokens at the time."""

    positions: Positions
    layer: int
    position: int
    rows: int
    before: int


@dataclass(frozen=True, eq=False)
class Rows:
    """What one session brings to a call.

    q         [rows, heads, head_dim] unrotated; None for a call that only appends
    k, v      [rows, kv_heads, head_dim] k unrotated
    position  of the first row; None: the layer's end
    """

    positions: Positions
    q: Array | None
    k: Array
    v: Array
    position: int | None = None

    def part(self, cut: slice, position: int) -> Rows:
        """The rows of a slice, the first of them at `position`."""
        q = None if self.q is None else self.q[cut]
        return Rows(self.positions, q, self.k[cut], self.v[cut], position)


class Step:
    """One call of one layer over some sessions: its positions are claimed, its append ids chosen.

    Sent once more it is a replay: the daemon does not append twice.
    """

    def __init__(
        self,
        kind: Kind,
        layer: int,
        batch: Sequence[Rows],
        want_lse: bool = False,
        exclude_sink_logits: bool = False,
    ) -> None:
        """Copies the arrays. Raises TypeError for a dtype that the wire does not know."""
        if not batch:
            raise ValueError("the batch is empty")
        self.kind: Kind = kind
        # The request lives in the stream's envelope: moving it there later would copy its tensors.
        self.envelope = wire.StreamStepsRequest()
        request = getattr(self.envelope, kind)
        request.layer = layer
        _pack(request.k, "k", [rows.k for rows in batch])
        _pack(request.v, "v", [rows.v for rows in batch])
        self._out_dtype: np.dtype[np.generic] | None = None
        if kind != "append_kv":
            queries = [rows.q for rows in batch if rows.q is not None]
            _pack(request.q, "q", queries)
            self._out_dtype = queries[0].dtype
            request.want_log_sum_exp = want_lse
            request.exclude_sink_logits = exclude_sink_logits
        self._claims = [
            rows.positions.claim(layer, rows.k.shape[0], rows.position) for rows in batch
        ]
        self._held = True
        for claim in self._claims:
            request.items.add(
                session_id=claim.positions.session_id,
                position=claim.position,
                rows=claim.rows,
                append_id=secrets.randbits(64),
            )

    def attended(self, answer: Answer) -> list[Attended]:
        """The answer's tensors, apart by session; nothing for a call that only appended."""
        if isinstance(answer, wire.AppendKVResponse) or self._out_dtype is None:
            return []
        out = _unpack(answer.out, self._out_dtype)
        lse = None
        if answer.HasField("log_sum_exp"):
            lse = _unpack(answer.log_sum_exp, np.dtype(np.float32))
        result, begin = [], 0
        for claim in self._claims:
            part = slice(begin, begin + claim.rows)
            # Copies, because the memory of a message cannot be written to.
            result.append(Attended(out[part].copy(), None if lse is None else lse[part].copy()))
            begin += claim.rows
        return result

    def hold(self) -> None:
        """Counts the positions as taken again, for a replay."""
        if not self._held:
            for claim in self._claims:
                claim.positions.hold(claim)
            self._held = True

    def give_back(self) -> None:
        """The step failed: as far as one can tell, the layer is where it was."""
        if self._held:
            for claim in reversed(self._claims):
                claim.positions.give_back(claim)
            self._held = False


class Steps(Protocol):
    """A way to the daemon for steps."""

    def call(self, step: Step) -> Answer:
        """Sends a step and waits for its answer. Raises longshore.Error."""
        ...

    def cancel(self) -> None:
        """Leaves without waiting for anything."""
        ...


class UnarySteps:
    """Every step is a call of its own. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        stub = connection.attention
        self._methods = {
            "append_kv": stub.AppendKV,
            "prefill": stub.Prefill,
            "decode": stub.DecodeStep,
        }

    def call(self, step: Step) -> Answer:
        request = getattr(step.envelope, step.kind)
        answer: Answer = self._connection.call(self._methods[step.kind], request)
        return answer

    def cancel(self) -> None:
        """Nothing is kept open."""


def run(steps: Steps, step: Step) -> list[Attended]:
    """Sends a step and waits for its answer; replays it if the connection is lost meanwhile.

    Only then: a daemon that answers UNAVAILABLE itself gives a reason, and one that is gone has
    taken the sessions with it.
    """
    try:
        for pause in _REPLAY_PAUSES:
            try:
                return step.attended(steps.call(step))
            except Unavailable as error:
                if error.reason or isinstance(error, NotRunning):
                    raise
            time.sleep(pause)
            step.hold()
        return step.attended(steps.call(step))
    except BaseException:
        step.give_back()
        raise


def _pack(tensor: tensor_pb2.Tensor, name: str, arrays: Sequence[Array]) -> None:
    """Puts arrays [rows, ...] one after the other into `tensor`, contiguous or not."""
    first = arrays[0]
    for array in arrays:
        if array.dtype != first.dtype or array.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"{name} is {array.dtype} {array.shape} in one session of the batch and "
                f"{first.dtype} {first.shape} in another"
            )
    tensor.dtype = dtype_of(first, name).to_wire()
    tensor.shape.extend((sum(array.shape[0] for array in arrays), *first.shape[1:]))
    data = [array.tobytes() for array in arrays]
    tensor.inline_data = data[0] if len(data) == 1 else b"".join(data)


def _unpack(tensor: tensor_pb2.Tensor, dtype: np.dtype[np.generic]) -> Array:
    """A read-only view of a tensor's bytes in the tensor's shape."""
    return np.frombuffer(tensor.inline_data, dtype).reshape(tuple(tensor.shape))
