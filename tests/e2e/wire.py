"""The wire as the fault tests speak it: generated stubs, small steps, and what a daemon says of itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

import longshore
from conftest import Daemon
from longshore._proto.longshore.v1 import attention_pb2 as attention
from longshore._proto.longshore.v1 import attention_pb2_grpc, server_pb2, server_pb2_grpc, session_pb2_grpc
from longshore._proto.longshore.v1 import session_pb2 as sessions
from longshore._proto.longshore.v1 import tensor_pb2

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 2, 4, 2, 64
SHAPE = longshore.ModelShape(num_layers=LAYERS, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM)
HELD = 100  # tokens of a session that has begun

Step = attention.AppendKVRequest | attention.PrefillRequest | attention.DecodeStepRequest


def tensor(rows: int, heads: int, seed: int) -> tensor_pb2.Tensor:
    """[rows, heads, HEAD_DIM] f32, Gaussian, the same for the same seed."""
    values = np.random.default_rng(seed).standard_normal((rows, heads, HEAD_DIM), dtype=np.float32)
    return tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_F32, shape=values.shape, inline_data=values.tobytes())


def step(kind: type[Step], session: int, position: int, rows: int, append_id: int = 7) -> Step:
    """A request of layer 0; its rows follow from the position."""
    item = attention.StepItem(session_id=session, position=position, rows=rows, append_id=append_id)
    keys, values = tensor(rows, KV_HEADS, position + 1), tensor(rows, KV_HEADS, position + 2)
    request = kind(layer=0, items=[item], k=keys, v=values)
    if kind is not attention.AppendKVRequest:
        request.q.CopyFrom(tensor(rows, HEADS, position + 3))
    return request


def decode(session: int, position: int) -> attention.DecodeStepRequest:
    return step(attention.DecodeStepRequest, session, position, 1)


def prefill(session: int, position: int, rows: int) -> attention.PrefillRequest:
    return step(attention.PrefillRequest, session, position, rows)


def on_stream(request: Step, tag: int) -> attention.StreamStepsRequest:
    arms = {"AppendKVRequest": "append_kv", "PrefillRequest": "prefill", "DecodeStepRequest": "decode"}
    return attention.StreamStepsRequest(tag=tag, **{arms[type(request).__name__]: request})


def open_request(
    max_tokens: int = 2000, overcommit: bool = False, open_id: int = 0, preset: str = "standard"
) -> sessions.OpenSessionRequest:
    request = sessions.OpenSessionRequest(max_tokens=max_tokens, overcommit=overcommit, open_id=open_id)
    request.model.CopyFrom(SHAPE.to_wire())
    request.policy.preset = preset
    return request


class Wire:
    """The generated stubs on a connection of their own."""

    def __init__(self, daemon: Daemon) -> None:
        self.channel = grpc.insecure_channel(daemon.target, options=[("grpc.use_local_subchannel_pool", 1)])
        self.attention = attention_pb2_grpc.AttentionStub(self.channel)
        self.sessions = session_pb2_grpc.SessionsStub(self.channel)
        self.server = server_pb2_grpc.ServerStub(self.channel)

    def call(self, method: str) -> Callable[..., Message]:
        """The stub's method of this name, whichever the service."""
        stub = self.sessions if "Session" in method else self.server if "Get" in method else self.attention
        return getattr(stub, method)

    def open(self, max_tokens: int = 2000, **options: object) -> int:
        return self.sessions.OpenSession(open_request(max_tokens, **options)).session_id

    def begun(self) -> int:
        """A session with HELD tokens in layer 0."""
        session = self.open()
        self.attention.Prefill(step(attention.PrefillRequest, session, 0, HELD, append_id=1))
        return session

    def close(self, *ids: int) -> None:
        for session in ids:
            self.sessions.CloseSession(sessions.CloseSessionRequest(session_id=session))

    def listed(self) -> set[int]:
        answer = self.sessions.ListSessions(sessions.ListSessionsRequest())
        return {session.session_id for session in answer.sessions}

    def tokens(self, session: int) -> int:
        request = sessions.DescribeSessionRequest(session_id=session)
        return self.sessions.DescribeSession(request).session.layer_tokens[0]

    def metric(self, series: str) -> float:
        """Of the daemon's own metrics, for example `longshore_pool_bytes{state="used"}`."""
        text = self.server.GetMetrics(server_pb2.GetMetricsRequest()).text
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        raise AssertionError(f"no {series} in the metrics")

    def pool_bytes(self) -> float:
        """Used and promised, as the pool itself counts them."""
        return sum(self.metric(f'longshore_pool_bytes{{state="{state}"}}') for state in ("used", "reserved"))


@dataclass
class Bystander:
    """A session that has no part in what goes wrong: its steps must give the bits that they gave before.

    Made while nothing is wrong; each test begins it anew.
    """

    wire: Wire
    steps: int = 16
    before: list[attention.DecodeStepResponse] = field(default_factory=list)
    session: int = 0
    taken: int = 0

    def __post_init__(self) -> None:
        self.begin()
        self.before = [self._step() for _ in range(self.steps)]
        self.end()

    def begin(self) -> None:
        self.wire.close(*self.wire.listed())  # of a test that failed
        self.session, self.taken = self.wire.begun(), 0

    def is_served(self) -> None:
        taken = self.taken
        assert self._step() == self.before[taken], "its bits changed"

    def end(self) -> None:
        self.wire.close(self.session)

    def _step(self) -> attention.DecodeStepResponse:
        self.taken += 1
        return self.wire.attention.DecodeStep(decode(self.session, HELD + self.taken - 1))


def details_of(error: grpc.RpcError) -> tuple[str, bool]:
    """ErrorInfo's reason, empty for gRPC's own errors, and whether there is a RetryInfo."""
    status = status_pb2.Status()
    status.ParseFromString(dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b""))
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    reasons = [info.reason for detail in status.details if detail.Unpack(info)]
    return reasons[0] if reasons else "", any(detail.Unpack(retry) for detail in status.details)


def resident_bytes(daemon: Daemon) -> int:
    for line in Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the daemon has ended")


def open_files(daemon: Daemon) -> int:
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


def until(holds: Callable[[], bool], what: str) -> None:
    """Waits for what takes the daemon a moment."""
    for _ in range(500):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError(what)
