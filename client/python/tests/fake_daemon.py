"""A daemon in Python: the wire contract over dense attention, with faults on demand.

It checks what the client's tests depend on and nothing else; test_client_daemon.py has the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from dense_reference import Array, dense_attention, rounded, to_float64
from google.rpc import error_details_pb2, status_pb2
from longshore._proto.longshore.v1 import attention_pb2 as steps
from longshore._proto.longshore.v1 import attention_pb2_grpc as steps_grpc
from longshore._proto.longshore.v1 import (
    policy_pb2,
    server_pb2,
    server_pb2_grpc,
    session_pb2,
    tensor_pb2,
)
from longshore._proto.longshore.v1 import session_pb2_grpc as sessions_grpc

from longshore import ModelShape

NUMPY_TYPES = {
    tensor_pb2.DTYPE_F32: np.float32,
    tensor_pb2.DTYPE_F16: np.float16,
    tensor_pb2.DTYPE_BF16: np.uint16,
}


class Refused(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        reason: str = "",
        field_path: str = "",
        metadata: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status_pb2.Status(code=code.value[0], message=message)
        if reason:
            info = error_details_pb2.ErrorInfo(
                reason=reason, domain="longshore", metadata=metadata or {}
            )
            self.status.details.add().Pack(info)
        if field_path:
            request = error_details_pb2.BadRequest()
            request.field_violations.add(field=field_path, description=message)
            self.status.details.add().Pack(request)

    def abort(self, context: grpc.ServicerContext) -> None:
        if self.status.details:
            details = self.status.SerializeToString()
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(self.code, self.status.message)


@dataclass
class Layer:
    """Keys and values [tokens, kv_heads, head_dim] float64, and the last call, to replay it."""

    keys: Array
    values: Array
    last_call: tuple[Any, ...] = ()
    last_result: tuple[Array, Array] | None = None


@dataclass
class FakeSession:
    request: session_pb2.OpenSessionRequest
    layers: list[Layer]
    model: ModelShape = field(init=False)

    def __post_init__(self) -> None:
        self.model = ModelShape.from_wire(self.request.model)

    def info(self, session_id: int) -> session_pb2.SessionInfo:
        return session_pb2.SessionInfo(
            session_id=session_id,
            name=self.request.name,
            max_tokens=self.request.max_tokens,
            overcommit=self.request.overcommit,
            layer_tokens=[len(layer.keys) for layer in self.layers],
        )


class FakeDaemon:
    """Serves at `target` until stop().

    lose_answers  so many steps are applied, and their answers lost with the connection
    refuse_next   the next step's answer
    """

    def __init__(self, target: str, **limits: int) -> None:
        self.target = target
        self.limits = server_pb2.Limits(
            **{"max_message_bytes": 64 << 20, "max_rows_per_prefill": 4096, **limits}
        )
        self.instance_id = "fake-1"
        self.loading = False
        self.sessions: dict[int, FakeSession] = {}
        self.steps_seen: list[tuple[str, Any]] = []  # kind and request, in the order of arrival
        self.lose_answers = 0
        self.refuse_next: Refused | None = None
        self.lock = threading.Lock()
        self._next_id = 1
        self._start()

    def _start(self) -> None:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)]
        )
        server_pb2_grpc.add_ServerServicer_to_server(_Server(self), self._server)
        sessions_grpc.add_SessionsServicer_to_server(_Sessions(self), self._server)
        steps_grpc.add_AttentionServicer_to_server(_Attention(self), self._server)
        self._server.add_insecure_port(self.target)
        self._server.start()

    def stop(self) -> None:
        self._server.stop(grace=None).wait()
        if self.target.startswith("unix:"):
            Path(self.target.removeprefix("unix:")).unlink(missing_ok=True)

    def restart(self) -> None:
        """Another instance at the same place: no session is left."""
        self.stop()
        self.instance_id += "'"
        self.sessions.clear()
        self._start()

    def open(self, request: session_pb2.OpenSessionRequest) -> int:
        shape = (0, request.model.num_kv_heads, request.model.head_dim)
        layers = [Layer(np.empty(shape), np.empty(shape)) for _ in range(request.model.num_layers)]
        session_id, self._next_id = self._next_id, self._next_id + 1
        self.sessions[session_id] = FakeSession(request, layers)
        return session_id

    def find(self, session_id: int) -> FakeSession:
        if session_id not in self.sessions:
            raise Refused(
                grpc.StatusCode.NOT_FOUND, f"no session {session_id}", "SESSION_NOT_FOUND"
            )
        return self.sessions[session_id]

    def step(self, kind: str, request: Any, answer: Any) -> None:
        """Applies a step to `answer`. Raises Refused, also for an answer that is to be lost."""
        self.steps_seen.append((kind, request))
        if self.refuse_next is not None:
            refused, self.refuse_next = self.refuse_next, None
            raise refused
        rows = sum(item.rows for item in request.items)
        limit = self.limits.max_rows_per_prefill
        if kind != "decode" and rows > limit:
            message = f"items have {rows} rows, the limit is {limit}"
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, message, "INVALID_FIELD", "items")
        results = []
        begin = 0
        for item in request.items:
            part = slice(begin, begin + item.rows)
            results.append(self._apply(kind, request, item, part))
            begin += item.rows
        answer.layer_tokens.extend(
            len(self.sessions[item.session_id].layers[request.layer].keys) for item in request.items
        )
        if kind != "append_kv":
            model = self.sessions[request.items[0].session_id].model
            out = np.concatenate([result[0] for result in results]).astype(np.float32)
            write(answer.out, rounded(out, model.query_dtype), model.query_dtype.to_wire())
            if request.want_log_sum_exp:
                lse = np.concatenate([result[1] for result in results]).astype(np.float32)
                write(answer.log_sum_exp, lse, tensor_pb2.DTYPE_F32)
        if self.lose_answers > 0:
            self.lose_answers -= 1
            raise ConnectionError

    def _apply(self, kind: str, request: Any, item: Any, part: slice) -> tuple[Array, Array]:
        session = self.find(item.session_id)
        layer = session.layers[request.layer]
        call = (kind, item.position, item.rows, item.append_id)
        if item.position != len(layer.keys):
            if call == layer.last_call and layer.last_result is not None:
                return layer.last_result
            gap = item.position > len(layer.keys)
            raise Refused(
                grpc.StatusCode.OUT_OF_RANGE if gap else grpc.StatusCode.ABORTED,
                f"items[0].position {item.position}: expected position {len(layer.keys)}",
                "POSITION_GAP" if gap else "POSITION_CONFLICT",
                "items[0].position",
                {"expected_position": str(len(layer.keys))},
            )
        layer.keys = np.concatenate([layer.keys, read(request.k)[part]])
        layer.values = np.concatenate([layer.values, read(request.v)[part]])
        if kind == "append_kv":
            result = (np.empty(0), np.empty(0))
        else:
            result = dense_attention(session.model, read(request.q)[part], layer.keys, layer.values)
        layer.last_call, layer.last_result = call, result
        return result


def read(tensor: tensor_pb2.Tensor) -> Array:
    dtype = NUMPY_TYPES[tensor.dtype]
    return to_float64(np.frombuffer(tensor.inline_data, dtype).reshape(tuple(tensor.shape)))


def write(tensor: tensor_pb2.Tensor, array: Array, dtype: tensor_pb2.DType) -> None:
    tensor.dtype = dtype
    tensor.shape.extend(array.shape)
    tensor.inline_data = array.tobytes()


class _Service:
    def __init__(self, daemon: FakeDaemon) -> None:
        self.daemon = daemon

    def unary(self, context: grpc.ServicerContext, body: Callable[[], Any]) -> Any:
        try:
            with self.daemon.lock:
                return body()
        except Refused as refused:
            refused.abort(context)
        except ConnectionError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


class _Server(_Service, server_pb2_grpc.ServerServicer):
    def GetServerInfo(self, request: Any, context: Any) -> Any:
        def body() -> Any:
            if self.daemon.loading:
                raise Refused(grpc.StatusCode.UNAVAILABLE, "the daemon is starting", "LOADING")
            return server_pb2.GetServerInfoResponse(
                version="0.0.0",
                instance_id=self.daemon.instance_id,
                backends=[server_pb2.BackendInfo(name="cpu", device="a fake", threads=1)],
                limits=self.daemon.limits,
                presets=["standard", "dense"],
            )

        return self.unary(context, body)


class _Sessions(_Service, sessions_grpc.SessionsServicer):
    def OpenSession(self, request: Any, context: Any) -> Any:
        def body() -> Any:
            spec = request.policy
            dense_below = spec.dense_below_tokens if spec.HasField("dense_below_tokens") else 8192
            policy = policy_pb2.AttentionPolicy(query_block=64, dense_below_tokens=dense_below)
            if spec.HasField("policy"):
                policy = spec.policy
            elif spec.preset not in ("standard", "dense"):
                message = f'policy.preset "{spec.preset}" is not one of dense, standard'
                code = grpc.StatusCode.INVALID_ARGUMENT
                raise Refused(code, message, "INVALID_FIELD", "policy.preset")
            return session_pb2.OpenSessionResponse(
                session_id=self.daemon.open(request),
                policy=policy,
                instance_id=self.daemon.instance_id,
            )

        return self.unary(context, body)

    def DescribeSession(self, request: Any, context: Any) -> Any:
        def body() -> Any:
            session = self.daemon.find(request.session_id)
            info = session.info(request.session_id)
            info.model.CopyFrom(session.request.model)
            return session_pb2.DescribeSessionResponse(session=info)

        return self.unary(context, body)

    def ListSessions(self, request: Any, context: Any) -> Any:
        def body() -> Any:
            infos = [session.info(key) for key, session in self.daemon.sessions.items()]
            return session_pb2.ListSessionsResponse(sessions=infos)

        return self.unary(context, body)

    def TruncateSession(self, request: Any, context: Any) -> Any:
        def body() -> Any:
            layers = self.daemon.find(request.session_id).layers
            for layer in layers:
                layer.keys = layer.keys[: request.position]
                layer.values = layer.values[: request.position]
                layer.last_call = ()
            tokens = [len(layer.keys) for layer in layers]
            return session_pb2.TruncateSessionResponse(layer_tokens=tokens)

        return self.unary(context, body)

    def CloseSession(self, request: Any, context: Any) -> Any:
        def body() -> Any:
            self.daemon.find(request.session_id)
            del self.daemon.sessions[request.session_id]
            return session_pb2.CloseSessionResponse()

        return self.unary(context, body)


class _Attention(_Service, steps_grpc.AttentionServicer):
    def AppendKV(self, request: Any, context: Any) -> Any:
        return self._step("append_kv", request, context, steps.AppendKVResponse())

    def Prefill(self, request: Any, context: Any) -> Any:
        return self._step("prefill", request, context, steps.PrefillResponse())

    def DecodeStep(self, request: Any, context: Any) -> Any:
        return self._step("decode", request, context, steps.DecodeStepResponse())

    def _step(self, kind: str, request: Any, context: Any, answer: Any) -> Any:
        def body() -> Any:
            self.daemon.step(kind, request, answer)
            return answer

        return self.unary(context, body)

    def StreamSteps(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for request in requests:
            answer = steps.StreamStepsResponse(tag=request.tag)
            kind = request.WhichOneof("step")
            try:
                with self.daemon.lock:
                    self.daemon.step(kind, getattr(request, kind), getattr(answer, kind))
            except Refused as refused:
                answer = steps.StreamStepsResponse(tag=request.tag, status=refused.status)
            except ConnectionError:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            yield answer
