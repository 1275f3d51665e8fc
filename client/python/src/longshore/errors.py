"""What a call raises: one class for each status code, with the details that the daemon sends."""

from __future__ import annotations

from typing import ClassVar

import grpc
from google.rpc import error_details_pb2, status_pb2

_DETAILS_KEY = "grpc-status-details-bin"


class Error(Exception):
    """The daemon, or the way to it, had no result. Catch a subclass to tell what went wrong.

    code           status code
    message        what, where and the two numbers
    reason         the daemon's word for it, for programs to compare (POSITION_GAP); empty if the
                   answer did not come from the daemon, as when a connection is lost
    field          path in the request of what is to blame (items[2].position); empty if nothing is
    metadata       values to act on ({"expected_position": "128"})
    retry_seconds  when the same call may succeed; None: waiting alone is no help
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        reason: str = "",
        field: str = "",
        metadata: dict[str, str] | None = None,
        retry_seconds: float | None = None,
    ) -> None:
        words = ", ".join(word for word in (self.code.name, reason) if word)
        super().__init__(f"{message} ({words})")
        self.message = message
        self.reason = reason
        self.field = field
        self.metadata = metadata or {}
        self.retry_seconds = retry_seconds


class InvalidArgument(Error):
    """The call asks for something that no daemon could do."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class OutOfRange(Error):
    """A position past the end (POSITION_GAP, TRUNCATE_PAST_END) or past max_tokens (MAX_TOKENS)."""

    code = grpc.StatusCode.OUT_OF_RANGE


class NotFound(Error):
    """No such session: closed (SESSION_NOT_FOUND), its lease has ended (SESSION_EXPIRED), or the daemon
    has been started anew (INSTANCE_CHANGED)."""

    code = grpc.StatusCode.NOT_FOUND


class FailedPrecondition(Error):
    """The wrong moment for this call."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Aborted(Error):
    """The position is taken: another call has filled it (POSITION_CONFLICT)."""

    code = grpc.StatusCode.ABORTED


class ResourceExhausted(Error):
    """No memory, no session or no place in the queue is left."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Unavailable(Error):
    """The daemon starts, stops or has lost its device (see `reason`), or the connection is lost."""

    code = grpc.StatusCode.UNAVAILABLE


class NotRunning(Unavailable):
    """No daemon listens at the target."""


class Unimplemented(Error):
    """The wire contract knows this, the daemon at the other end does not."""

    code = grpc.StatusCode.UNIMPLEMENTED


class Cancelled(Error):
    """The call was cancelled; it may have been applied."""

    code = grpc.StatusCode.CANCELLED


class DeadlineExceeded(Error):
    """The call took too long; it may have been applied."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Internal(Error):
    """A bug at the other end."""

    code = grpc.StatusCode.INTERNAL


_BY_CODE: dict[int, type[Error]] = {
    kind.code.value[0]: kind
    for kind in (InvalidArgument, OutOfRange, NotFound, FailedPrecondition, Aborted)
    + (ResourceExhausted, Unavailable, Unimplemented, Cancelled, DeadlineExceeded, Internal)
}


def from_status(status: status_pb2.Status) -> Error:
    """The error that a google.rpc.Status with its details stands for."""
    info = error_details_pb2.ErrorInfo()
    request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    retry_seconds = None
    for detail in status.details:
        detail.Unpack(info) or detail.Unpack(request)
        if detail.Unpack(retry):
            retry_seconds = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    field = request.field_violations[0].field if request.field_violations else ""
    kind = _BY_CODE.get(status.code, Error)
    return kind(status.message, info.reason, field, dict(info.metadata), retry_seconds)


def from_rpc_error(error: grpc.RpcError, target: str, start_hint: str) -> Error:
    """The error of a call to `target`. `start_hint` is the command that starts a daemon there."""
    assert isinstance(error, grpc.Call)  # what grpcio raises is always both
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return from_status(status_pb2.Status.FromString(value))
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith("failed to connect"):
        if "Permission denied" in details:
            return NotRunning(f"no permission to open {target}: its owner and group may")
        return NotRunning(f"no daemon listens at {target}; start one: {start_hint}")
    kind = _BY_CODE.get(code.value[0], Error)
    return kind(f"{target}: {details}")
