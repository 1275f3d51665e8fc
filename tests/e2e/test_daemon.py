"""The daemon as a process: what it survives, what it says, how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import grpc
import numpy as np
import pytest

import longshore
from conftest import start_daemon

SHAPE = longshore.ModelShape(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=64)


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return tuple(random.standard_normal((count, heads, 64), dtype=np.float32) for heads in (4, 2, 2))


def metric(daemon, name: str) -> float:
    """The sum over all label sets of a metric."""
    text = urllib.request.urlopen(f"http://{daemon.metrics}/metrics", timeout=5).read().decode()
    lines = [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]
    assert lines, f"{name} is not exported"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_garbage_on_the_socket_hurts_nobody(daemon) -> None:
    with longshore.connect(daemon.target) as client, client.open_session(SHAPE, max_tokens=256) as session:
        with client.open_session(SHAPE, max_tokens=256) as untouched:
            expected = [untouched.prefill(0, *rows(70)), untouched.decode(0, *rows(1, seed=1))]
        out = [session.prefill(0, *rows(70))]
        for garbage in (b"\0" * 4096, b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(daemon.target.removeprefix("unix:"))
                try:
                    peer.sendall(garbage)
                except OSError:
                    pass  # it hung up on us, as it should
        out.append(session.decode(0, *rows(1, seed=1)))
        assert session.describe().layer_tokens == (71, 0)
        for got, want in zip(out, expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_garbage_in_a_message_is_an_error(daemon) -> None:
    with grpc.insecure_channel(daemon.target) as channel:
        call = channel.unary_unary("/longshore.v1.Attention/DecodeStep")
        with pytest.raises(grpc.RpcError) as error:
            call(b"\xff" * 100, timeout=5)
        assert error.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT)


def test_a_client_killed_in_mid_call_leaves_the_session_whole(daemon, tmp_path) -> None:
    with longshore.connect(daemon.target) as client:
        session = client.open_session(SHAPE, max_tokens=8192)
        script = textwrap.dedent(
            f"""
            import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
            from test_daemon import rows
            import grpc, longshore
            from longshore._proto.longshore.v1 import attention_pb2 as pb, tensor_pb2 as tensor
            q, k, v = rows(4096)
            def t(x): return tensor.Tensor(dtype=tensor.DTYPE_F32, shape=x.shape, inline_data=x.tobytes())
            item = pb.StepItem(session_id={session.id}, position=0, rows=4096, append_id=7)
            request = pb.PrefillRequest(layer=0, items=[item], q=t(q), k=t(k), v=t(v)).SerializeToString()
            channel = grpc.insecure_channel({daemon.target!r})
            future = channel.unary_unary("/longshore.v1.Attention/Prefill").future(request)
            print("sent", flush=True)
            future.result()
            print("done", flush=True)
            """
        )
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as peer:
            assert peer.stdout.readline() == b"sent\n"
            time.sleep(0.05)
            peer.send_signal(signal.SIGKILL)
        time.sleep(0.5)
        # Applied whole or not at all, and the session goes on from there.
        held = session.describe().layer_tokens[0]
        assert held in (0, 4096)
        session.truncate(0)
        out = session.prefill(0, *rows(70), position=0)
        with client.open_session(SHAPE, max_tokens=256) as fresh:
            np.testing.assert_array_equal(out, fresh.prefill(0, *rows(70)))
        session.close()


def test_metrics_count_what_was_done(daemon) -> None:
    before = metric(daemon, "longshore_tokens_appended_total")
    with longshore.connect(daemon.target) as client, client.open_session(SHAPE, max_tokens=256) as session:
        assert metric(daemon, "longshore_sessions") >= 1
        session.prefill(0, *rows(100))
        session.decode(0, *rows(1))
    assert metric(daemon, "longshore_tokens_appended_total") - before == 101
    assert metric(daemon, "longshore_requests_total") > 0


def test_sigterm_ends_with_0_and_the_socket_goes(tmp_path) -> None:
    daemon = start_daemon(tmp_path, "--pool-bytes=64MiB")
    with longshore.connect(daemon.target) as client, client.open_session(SHAPE, max_tokens=256) as session:
        session.prefill(0, *rows(10))
        begin = time.monotonic()
        assert daemon.stop() == 0, daemon.log.read_text()
        assert time.monotonic() - begin < 10  # drains in at most 5 s; the rest is this machine
    assert not Path(daemon.target.removeprefix("unix:")).exists()


def test_a_taken_socket_is_refused_with_a_reason(daemon) -> None:
    import os

    second = subprocess.run(
        [os.environ["LONGSHORED"], f"--listen={daemon.target}", "--metrics-listen="],
        capture_output=True,
        timeout=20,
    )
    assert second.returncode != 0
    assert b"in use" in second.stderr or b"taken" in second.stderr or b"listening" in second.stderr
