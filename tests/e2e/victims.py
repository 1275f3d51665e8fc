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
from pathlib import Path

# Forks a process for each line "TARGET METHOD FILE", which sends the file's bytes as that call's request, and
# prints its id. gRPC does not survive a fork once it has a channel, so the parent has none.
_SCRIPT = """
import os, signal, sys
import grpc
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    target, method, path = line.split()
    pid = os.fork()
    if pid == 0:
        request = open(path, "rb").read()
        channel = grpc.insecure_channel(target, options=[("grpc.max_send_message_length", -1)])
        if method.endswith("StreamSteps"):
            for answer in channel.stream_stream(method)(iter([request])):
                pass
        else:
            try:
                channel.unary_unary(method)(request, wait_for_ready=True)
            except grpc.RpcError:
                pass
        os._exit(0)
    print(pid, flush=True)
"""


class Victims:
    """Starts processes that make one call each."""

    def __init__(self, folder: Path) -> None:
        self._request = folder / "request"
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, target: str, method: str, request: bytes) -> int:
        """The id of a process that now calls `method`."""
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._request.write_bytes(request)
        self._parent.stdin.write(f"{target} {method} {self._request}\n")
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


class Gate:
    """A Unix socket in front of a daemon's that lets so many bytes of one client through, and then no more.

    to_daemon    bytes that reach the daemon; None: all
    hold_answer  once so many bytes have reached the daemon, nothing comes back
    reached      set when to_daemon bytes have, or hold_answer
    answering    set when the daemon has answered something that was held back
    """

    def __init__(self, listen: Path, daemon: Path, to_daemon: int | None, hold_answer: int) -> None:
        self.target = f"unix:{listen}"
        self.reached = threading.Event()
        self.answering = threading.Event()
        self._daemon = str(daemon)
        self._to_daemon = to_daemon
        self._hold_answer = hold_answer
        self._passed = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listen))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        daemon = socket.socket(socket.AF_UNIX)
        daemon.connect(self._daemon)
        for way in (self._send, self._answer):
            threading.Thread(target=self._run, args=(way, client, daemon), daemon=True).start()

    @staticmethod
    def _run(
        way: Callable[[socket.socket, socket.socket], None], client: socket.socket, daemon: socket.socket
    ) -> None:
        try:
            way(client, daemon)
        except OSError:
            pass  # the other direction has ended
        for end in (client, daemon):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed already

    def _send(self, client: socket.socket, daemon: socket.socket) -> None:
        while data := client.recv(1 << 16):
            if self._to_daemon is not None:
                data = data[: self._to_daemon - self._passed]
            daemon.sendall(data)
            self._passed += len(data)
            if self._passed >= self._hold_answer or self._passed == self._to_daemon:
                self.reached.set()

    def _answer(self, client: socket.socket, daemon: socket.socket) -> None:
        while data := daemon.recv(1 << 16):
            if self._passed >= self._hold_answer:
                self.answering.set()
            else:
                client.sendall(data)

    def close(self) -> None:
        self._listener.close()


@contextmanager
def gate(folder: Path, daemon: str, to_daemon: int | None, hold_answer: int) -> Iterator[Gate]:
    path = folder / "gate.sock"
    path.unlink(missing_ok=True)
    opened = Gate(path, Path(daemon.removeprefix("unix:")), to_daemon, hold_answer)
    try:
        yield opened
    finally:
        opened.close()
