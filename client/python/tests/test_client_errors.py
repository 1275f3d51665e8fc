"""Errors: the class by status code, the details that came along, and what a person reads."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np
import pytest
from fake_daemon import FakeDaemon, Refused
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

import longshore
from longshore import Client, ModelShape
from longshore.errors import from_status

MODEL = ModelShape(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=4)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (StatusCode.INVALID_ARGUMENT, longshore.InvalidArgument),
        (StatusCode.OUT_OF_RANGE, longshore.OutOfRange),
        (StatusCode.NOT_FOUND, longshore.NotFound),
        (StatusCode.FAILED_PRECONDITION, longshore.FailedPrecondition),
        (StatusCode.ABORTED, longshore.Aborted),
        (StatusCode.RESOURCE_EXHAUSTED, longshore.ResourceExhausted),
        (StatusCode.UNAVAILABLE, longshore.Unavailable),
        (StatusCode.UNIMPLEMENTED, longshore.Unimplemented),
        (StatusCode.CANCELLED, longshore.Cancelled),
        (StatusCode.DEADLINE_EXCEEDED, longshore.DeadlineExceeded),
        (StatusCode.INTERNAL, longshore.Internal),
        (StatusCode.DATA_LOSS, longshore.Error),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_each_code_has_its_class(
    client: Client, daemon: FakeDaemon, code: StatusCode, kind: type[Exception], stream: bool
) -> None:
    array = np.zeros((1, 1, 4), np.float32)
    with client.open_session(MODEL, max_tokens=4, stream=stream) as session:
        daemon.refuse_next = Refused(
            code, "k.shape[1] 3 is not 1", "SOME_REASON", "k.shape[1]", {"a": "b"}
        )
        with pytest.raises(longshore.Error) as caught:
            session.append(0, array, array)
        error = caught.value
        assert type(error) is kind
        assert error.message == "k.shape[1] 3 is not 1"
        assert (error.reason, error.field, error.metadata) == (
            "SOME_REASON",
            "k.shape[1]",
            {"a": "b"},
        )
        assert error.retry_seconds is None
        if kind is not longshore.Error:
            assert error.code is code
            assert str(error) == f"k.shape[1] 3 is not 1 ({code.name}, SOME_REASON)"


def test_retry_info_and_unknown_details() -> None:
    status = status_pb2.Status(code=8, message="the pool is full")
    status.details.add().CopyFrom(any_pb2.Any(type_url="type.googleapis.com/un.Known", value=b"x"))
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(2500)
    status.details.add().Pack(retry)
    error = from_status(status)
    assert isinstance(error, longshore.ResourceExhausted)
    assert (error.retry_seconds, error.reason, error.field, error.metadata) == (2.5, "", "", {})
    assert str(error) == "the pool is full (RESOURCE_EXHAUSTED)"


def test_an_unknown_preset_is_the_daemons_to_refuse(client: Client) -> None:
    with pytest.raises(longshore.InvalidArgument, match='"fancy" is not one of') as caught:
        client.open_session(MODEL, "fancy", max_tokens=1)
    assert caught.value.field == "policy.preset"


def test_a_socket_without_a_listener(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "left.sock"))
    left.close()  # a daemon that died leaves its socket behind
    with pytest.raises(longshore.NotRunning, match="start one: longshored --listen unix:/"):
        longshore.connect(f"unix:{tmp_path}/left.sock")


CONNECT_AS_NOBODY = """
import os, sys, longshore
longshore.Client("unix:/nowhere").close()  # loads what root alone may read
if os.getuid() == 0:
    os.setuid(65534)
try:
    longshore.connect(sys.argv[1])
except longshore.NotRunning as error:
    print(error)
"""


def test_a_socket_of_somebody_else(tmp_path: Path, daemon: FakeDaemon) -> None:
    (tmp_path / "longshored.sock").chmod(0)
    for folder in [tmp_path, *tmp_path.parents][:3]:
        folder.chmod(0o755)  # so that nobody may get as far as the socket
    command = [sys.executable, "-c", CONNECT_AS_NOBODY, daemon.target]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"no permission to open {daemon.target}: its owner and group may")


def test_something_else_than_a_daemon(tmp_path: Path) -> None:
    other = grpc.server(futures.ThreadPoolExecutor(1))
    other.add_insecure_port(f"unix:{tmp_path}/other.sock")
    other.start()
    with pytest.raises(longshore.Unimplemented, match="other.sock: Method not found"):
        longshore.connect(f"unix:{tmp_path}/other.sock")
    other.stop(None)

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "mail.sock"))
    listener.listen()

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.sendall(b"220 mail.example.org ESMTP\r\n")
            connection.close()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with pytest.raises(longshore.Unavailable, match="mail.sock"):
        longshore.connect(f"unix:{tmp_path}/mail.sock")
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.mark.parametrize("target", ["no such host:1", "unix:", "localhost:99999999"])
def test_a_target_that_is_none(target: str) -> None:
    with pytest.raises(longshore.Error) as caught:
        longshore.connect(target)
    assert target in str(caught.value)
