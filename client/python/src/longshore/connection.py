"""One gRPC channel to a daemon, and where the daemon is."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import grpc

from longshore._proto.longshore.v1 import (
    attention_pb2,
    attention_pb2_grpc,
    server_pb2_grpc,
    session_pb2_grpc,
)
from longshore.errors import Error, FailedPrecondition, from_rpc_error

Request = TypeVar("Request")
Answer = TypeVar("Answer")

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    (
        "grpc.max_send_message_length",
        -1,
    ),  # the daemon says what it takes, and refuses with a reason
    ("grpc.enable_http_proxy", 0),  # a proxy for the web is none for a daemon on this host
    # A connection of its own, so that one client's failed attempts do not delay another's.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


_TMP = "/tmp"


def default_target() -> str:
    """Where longshored listens unless told otherwise.

    longshored.sock in XDG_RUNTIME_DIR, in /run for root, or in /tmp/longshored-UID.
    """
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime_dir.startswith("/"):
        return f"unix:{runtime_dir}/longshored.sock"
    if os.getuid() == 0:
        return "unix:/run/longshored.sock"
    return f"unix:{_private_directory()}/longshored.sock"


def _private_directory() -> str:
    return f"{_TMP}/longshored-{os.getuid()}"


def _check_private(target: str) -> None:
    """Anybody may write to /tmp: a directory there that is not this user's alone may be a trap."""
    directory = _private_directory()
    if not target.startswith(f"unix:{directory}/"):
        return
    try:
        found = os.lstat(directory)
    except OSError:
        return  # nothing listens there; the first call says so
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and mode == 0o700:
        return
    raise FailedPrecondition(
        f"{directory} belongs to user {found.st_uid} with mode {mode:04o}, not to user "
        f"{os.getuid()} with mode 0700: remove it, or name a target"
    )


class StepAnswers(Protocol):
    """The answers of a StreamSteps call, as they come."""

    def __next__(self) -> attention_pb2.StreamStepsResponse:
        """Waits for an answer. Raises StopIteration at the end, grpc.RpcError if the call fails."""
        ...

    def cancel(self) -> bool: ...


class Connection:
    """The calls of the wire contract; every failure is a longshore.Error. Thread-safe.

    attention, sessions, server   the generated stubs; their methods go through call()
    """

    def __init__(self, target: str) -> None:
        """Does not connect yet: the first call does.

        Raises FailedPrecondition if the target is in /tmp/longshored-UID and that is not private.
        """
        _check_private(target)
        self.target = target
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self.attention = attention_pb2_grpc.AttentionStub(self._channel)
        self.sessions = session_pb2_grpc.SessionsStub(self._channel)
        self.server = server_pb2_grpc.ServerStub(self._channel)

    def call(self, method: Callable[[Request], Answer], request: Request) -> Answer:
        """Calls a stub's unary method."""
        try:
            return method(request)
        except grpc.RpcError as error:
            raise self.error(error) from None

    def stream_steps(self, requests: Iterator[attention_pb2.StreamStepsRequest]) -> StepAnswers:
        """Opens StreamSteps; `requests` is iterated in a thread of gRPC's."""
        answers: StepAnswers = self.attention.StreamSteps(requests)
        return answers

    def error(self, error: grpc.RpcError) -> Error:
        """What `error` means for a caller."""
        command = "longshored"
        if self.target != default_target():
            command += f" --listen {self.target}"
        return from_rpc_error(error, self.target, command)

    def close(self) -> None:
        """Calls on their way are cancelled."""
        self._channel.close()
