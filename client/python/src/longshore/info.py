"""What the daemon tells about itself and about its sessions."""

from __future__ import annotations

from dataclasses import dataclass

from longshore._proto.longshore.v1 import server_pb2, session_pb2
from longshore.model_shape import ModelShape
from longshore.policy import AttentionPolicy


@dataclass(frozen=True)
class BackendInfo:
    """What computes. device_bytes is 0 for the CPU."""

    name: str
    device: str
    threads: int
    device_bytes: int


@dataclass(frozen=True)
class Limits:
    """What a call may ask for; the daemon refuses more before anything changes."""

    max_message_bytes: int
    max_rows_per_prefill: int
    max_rows_per_decode_item: int
    max_items_per_call: int
    max_sessions: int
    max_tokens_per_session: int
    max_queued_calls: int
    max_steps_in_flight: int
    pool_bytes: int
    max_queued_bytes: int
    max_table_bytes: int
    max_score_bytes: int
    default_lease_seconds: float
    max_lease_seconds: float


@dataclass(frozen=True)
class ServerInfo:
    """A running daemon. instance_id is new at every start, and sessions do not outlive it."""

    version: str
    instance_id: str
    backends: tuple[BackendInfo, ...]
    limits: Limits
    presets: tuple[str, ...]
    extensions: tuple[str, ...]
    uptime_seconds: float

    @classmethod
    def from_wire(cls, wire: server_pb2.GetServerInfoResponse) -> ServerInfo:
        limits = wire.limits
        return cls(
            version=wire.version,
            instance_id=wire.instance_id,
            backends=tuple(
                BackendInfo(backend.name, backend.device, backend.threads, backend.device_bytes)
                for backend in wire.backends
            ),
            limits=Limits(
                max_message_bytes=limits.max_message_bytes,
                max_rows_per_prefill=limits.max_rows_per_prefill,
                max_rows_per_decode_item=limits.max_rows_per_decode_item,
                max_items_per_call=limits.max_items_per_call,
                max_sessions=limits.max_sessions,
                max_tokens_per_session=limits.max_tokens_per_session,
                max_queued_calls=limits.max_queued_calls,
                max_steps_in_flight=limits.max_steps_in_flight,
                pool_bytes=limits.pool_bytes,
                max_queued_bytes=limits.max_queued_bytes,
                max_table_bytes=limits.max_table_bytes,
                max_score_bytes=limits.max_score_bytes,
                default_lease_seconds=limits.default_lease_seconds,
                max_lease_seconds=limits.max_lease_seconds,
            ),
            presets=tuple(wire.presets),
            extensions=tuple(wire.extensions),
            uptime_seconds=wire.uptime_seconds,
        )


@dataclass(frozen=True, eq=False)
class SessionInfo:
    """A session as the daemon sees it; a list of sessions leaves model and policy out.

    layer_tokens         [num_layers] tokens that each layer holds
    page_bytes_used      host memory of the pages in use
    page_bytes_reserved  and of those promised but not yet in use
    failure              empty, or why the session is of no use any more
    lease_seconds        it is closed when no call names it for so long
    idle_seconds         since the last call on it ended; 0 while another waits or runs
    owner                whom it belongs to: "local" (the Unix socket) or "host:ADDRESS"
    """

    session_id: int
    name: str
    max_tokens: int
    overcommit: bool
    layer_tokens: tuple[int, ...]
    page_bytes_used: int
    page_bytes_reserved: int
    failure: str
    lease_seconds: float
    idle_seconds: float
    owner: str
    model: ModelShape | None
    policy: AttentionPolicy | None

    @classmethod
    def from_wire(cls, wire: session_pb2.SessionInfo) -> SessionInfo:
        return cls(
            session_id=wire.session_id,
            name=wire.name,
            max_tokens=wire.max_tokens,
            overcommit=wire.overcommit,
            layer_tokens=tuple(wire.layer_tokens),
            page_bytes_used=wire.page_bytes_used,
            page_bytes_reserved=wire.page_bytes_reserved,
            failure=wire.failure.message,
            lease_seconds=wire.lease_seconds,
            idle_seconds=wire.idle_seconds,
            owner=wire.owner,
            model=ModelShape.from_wire(wire.model) if wire.HasField("model") else None,
            policy=wire.policy if wire.HasField("policy") else None,
        )
