"""A Unix socket in front of another one, which cuts connections on demand."""

from __future__ import annotations

import socket
import threading
from pathlib import Path


class CuttingProxy:
    """Forwards `listen` to `target`; after cut_at_next_answer() its next bytes are lost."""

    def __init__(self, listen: Path, target: Path) -> None:
        self._target = str(target)
        self._cut = threading.Event()
        self.cuts = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listen))
        self._listener.listen()

    def cut_at_next_answer(self) -> None:
        self._cut.set()

    def __enter__(self) -> CuttingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            for source, sink, cuts in ((client, server, False), (server, client, True)):
                arguments = (source, sink, cuts)
                threading.Thread(target=self._forward, args=arguments, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, cuts: bool) -> None:
        try:
            while data := source.recv(1 << 20):
                if cuts and self._cut.is_set():
                    self._cut.clear()
                    self.cuts += 1
                    break
                sink.sendall(data)
        except OSError:
            pass  # the other direction has ended
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed already
