"""Client processes that die in the middle of a call, at a byte that the test chooses."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Forks a process for each line "TARGET METHOD FILE...", which sends the files' bytes as that call's requests,
# and prints its id. gRPC does not survive a fork once it has a channel, so the parent has none.
_SCRIPT = """
import os, signal, sys
import grpc
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    target, method, *paths = line.split()
    pid = os.fork()
    if pid == 0:
        requests = [open(path, "rb").read() for path in paths]
        channel = grpc.insecure_channel(target, options=[("grpc.max_send_message_length", -1)])
        try:
            if method.endswith("StreamSteps"):
                for answer in channel.stream_stream(method)(iter(requests), wait_for_ready=True):
                    pass
            else:
                channel.unary_unary(method)(requests[0], wait_for_ready=True)
        except grpc.RpcError:
            pass
        os._exit(0)
    print(pid, flush=True)
"""


class Victims:
    """Starts processes that make one call each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, target: str, method: str, requests: list[bytes]) -> int:
        """The id of a process that now calls `method`."""
        assert self._parent.stdin is not None and self._parent.stdout is not None
        paths = [self._folder / f"request{index}" for index in range(len(requests))]
        for path, request in zip(paths, requests, strict=True):
            path.write_bytes(request)
        self._parent.stdin.write(" ".join([target, method, *map(str, paths)]) + "\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def close(self) -> None:
        self._parent.kill()
        self._parent.wait()


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it was done already


# Kinds of bytes on an HTTP/2 connection: frames' heads, what begins a connection, and payloads by frame type.
HEAD, PREFACE, DATA, HEADERS = -2, -1, 0, 1
_PREFACE_BYTES, _HEAD_BYTES = 24, 9
MESSAGE_HEAD_BYTES = 5  # gRPC's, within DATA


class Frames:
    """Follows one direction of an HTTP/2 connection: of each byte, which kind it is."""

    def __init__(self, preface: bool) -> None:
        self._kind, self._left = PREFACE, _PREFACE_BYTES if preface else 0
        self._head = b""

    def split(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        while data:
            if self._left == 0:
                piece = data[: _HEAD_BYTES - len(self._head)]
                self._head += piece
                kind = HEAD
                if len(self._head) == _HEAD_BYTES:
                    self._left, self._kind = int.from_bytes(self._head[:3], "big"), self._head[3]
                    self._head = b""
            else:
                piece, kind = data[: self._left], self._kind
                self._left -= len(piece)
            data = data[len(piece) :]
            yield kind, piece


@dataclass(frozen=True)
class Cut:
    """A place in a direction of a connection: behind the first `count` bytes of a kind.

    ends   nothing passes after it; otherwise it is only a place to wait for
    """

    kind: int
    count: int
    ends: bool = True


class _Direction:
    """Passes bytes on up to a cut, then only takes them."""

    def __init__(self, cut: Cut, preface: bool) -> None:
        self.reached = threading.Event()
        self._cut = cut
        self._frames = Frames(preface)
        self._passed = 0

    def run(self, source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(1 << 16):
            for kind, piece in self._frames.split(data):
                if self.reached.is_set() and self._cut.ends:
                    break
                if kind != self._cut.kind:
                    sink.sendall(piece)
                    continue
                here = len(piece) if not self._cut.ends else self._cut.count - self._passed
                sink.sendall(piece[:here])
                self._passed += len(piece[:here])
                if self._passed >= self._cut.count:
                    self.reached.set()


class Gate:
    """A Unix socket in front of a daemon's that takes one client and cuts both directions where it is told.

    reached is set when everything before the requests' cut has been handed to the daemon.
    """

    def __init__(self, listen: Path, daemon: Path, requests: Cut, answers: Cut) -> None:
        self.target = f"unix:{listen}"
        self._daemon = str(daemon)
        self._requests = _Direction(requests, preface=True)
        self._answers = _Direction(answers, preface=False)
        self.reached = self._requests.reached
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listen))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # closed
        daemon = socket.socket(socket.AF_UNIX)
        daemon.connect(self._daemon)
        for way, ends in ((self._requests, (client, daemon)), (self._answers, (daemon, client))):
            threading.Thread(target=self._run, args=(way.run, *ends), daemon=True).start()

    @staticmethod
    def _run(
        way: Callable[[socket.socket, socket.socket], None], source: socket.socket, sink: socket.socket
    ) -> None:
        try:
            way(source, sink)
        except OSError:
            pass  # the other direction has ended
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed already

    def close(self) -> None:
        self._listener.close()


@contextmanager
def gate(folder: Path, daemon: str, requests: Cut, answers: Cut) -> Iterator[Gate]:
    path = folder / "gate.sock"
    path.unlink(missing_ok=True)
    opened = Gate(path, Path(daemon.removeprefix("unix:")), requests, answers)
    try:
        yield opened
    finally:
        opened.close()
