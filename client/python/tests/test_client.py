"""Connecting, sessions, batches and pieces, against a daemon in Python."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from dense_reference import dense_attention, gaussian, to_float64
from fake_daemon import FakeDaemon, Refused
from grpc import StatusCode

import longshore
from longshore import Client, DType, ModelShape, Pairing, RopeTable
from longshore.policy import AttentionPolicy, LayerPolicy, Middle, PhasePolicy, Ranking
from longshore.session import pieces, whole_blocks

ROPE = RopeTable.from_base(10000.0, 8, Pairing.HALVES, trained_tokens=512)
MODEL = ModelShape(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, rope_tables=[ROPE])


def test_the_default_target_is_the_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert longshore.default_target() == "unix:/run/user/7/longshored.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "not/absolute")
    monkeypatch.setattr("os.getuid", lambda: 0)
    assert longshore.default_target() == "unix:/run/longshored.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("os.getuid", lambda: 1000)
    assert longshore.default_target() == "unix:/tmp/longshored-1000/longshored.sock"


def test_a_default_target_that_somebody_else_may_have_put_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.getuid() or 1000
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("os.getuid", lambda: uid)
    monkeypatch.setattr("longshore.connection._TMP", str(tmp_path))
    with pytest.raises(longshore.NotRunning):  # no directory, nobody there
        longshore.connect()
    directory = tmp_path / f"longshored-{uid}"
    directory.mkdir(mode=0o700)
    os.chown(directory, uid, -1)
    with pytest.raises(longshore.NotRunning):
        longshore.connect()
    directory.chmod(0o770)
    with pytest.raises(longshore.FailedPrecondition, match="mode 0770, not to user"):
        longshore.connect()
    directory.chmod(0o700)
    monkeypatch.setattr("os.getuid", lambda: uid + 1)
    directory.rename(tmp_path / f"longshored-{uid + 1}")
    with pytest.raises(longshore.FailedPrecondition, match=f"belongs to user {uid} "):
        longshore.connect()
    (tmp_path / f"longshored-{uid + 1}").rename(tmp_path / "elsewhere")
    (tmp_path / f"longshored-{uid + 1}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(longshore.FailedPrecondition):
        longshore.connect()


def test_nothing_listening_says_how_to_start_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = f"unix:{tmp_path}/longshored.sock"
    with pytest.raises(longshore.NotRunning) as caught:
        longshore.connect(target)
    command = f"start one: longshored --listen {target}"
    assert caught.value.message == f"no daemon listens at {target}; {command}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(longshore.NotRunning, match=r"start one: longshored \(UNAVAILABLE\)$"):
        longshore.connect()
    with pytest.raises(longshore.NotRunning, match="no daemon listens at 127.0.0.1:1"):
        longshore.connect("127.0.0.1:1")


def test_connect_waits_for_a_daemon_that_starts(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/longshored.sock"
    daemons = []

    def start() -> None:
        time.sleep(0.3)
        daemons.append(FakeDaemon(target))
        daemons[0].loading = True
        time.sleep(0.3)
        daemons[0].loading = False

    thread = threading.Thread(target=start)
    thread.start()
    with longshore.connect(target, wait_seconds=30) as client:
        assert client.info().instance_id == "fake-1"
    thread.join()
    daemons[0].loading = True
    with pytest.raises(longshore.Unavailable, match="LOADING") as caught:
        longshore.connect(target)
    assert caught.value.reason == "LOADING"
    daemons[0].stop()


def test_info(client: Client) -> None:
    info = client.info()
    assert (info.version, info.presets) == ("0.0.0", ("standard", "dense"))
    assert info.backends[0].device == "a fake"
    assert info.limits.max_rows_per_prefill == 4096


def test_a_session_is_listed_described_and_closed(client: Client, daemon: FakeDaemon) -> None:
    with client.open_session(MODEL, max_tokens=100, name="mine", overcommit=True) as session:
        (listed,) = client.sessions()
        assert (listed.session_id, listed.name, listed.max_tokens) == (session.id, "mine", 100)
        assert listed.overcommit and listed.layer_tokens == (0, 0) and listed.model is None
        described = session.describe().model
        assert described is not None
        assert described.to_wire() == MODEL.to_wire()
        session.close()
        assert client.sessions() == []
        session.close()  # nothing to do, and so for the end of `with`
    with client.open_session(MODEL, max_tokens=1):
        daemon.sessions.clear()  # nothing to free

    def refuse(session_id: int) -> NoReturn:
        raise Refused(StatusCode.INTERNAL, "a bug")

    daemon.find = refuse  # type: ignore[method-assign]
    with pytest.raises(longshore.Internal, match="a bug"):
        with client.open_session(MODEL, max_tokens=1):
            pass
    with pytest.raises(ZeroDivisionError):  # not the failure of close()
        with client.open_session(MODEL, max_tokens=1):
            raise ZeroDivisionError


def test_the_whole_shape_goes_over_the_wire() -> None:
    sinks = np.arange(8, dtype=np.float32).reshape(2, 4)
    model = ModelShape(
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        rope_tables=[ROPE, RopeTable([1.0, 0.5], Pairing.INTERLEAVED, 64, attention_scaling=1.5)],
        layer_rope_table=[1, -1],
        query_dtype=DType.BF16,
        kv_dtype=DType.F16,
        softmax_scale=0.25,
        logit_soft_cap=30,
        layer_sliding_window=[0, 128],
        sink_logits=sinks,
    )
    back = ModelShape.from_wire(model.to_wire())
    assert back.to_wire() == model.to_wire()
    assert np.array_equal(back.sink_logits if back.sink_logits is not None else [], sinks)
    assert back.rope_tables[1].attention_scaling == 1.5
    np.testing.assert_allclose(ROPE.inv_freq, [1, 0.1, 0.01, 0.001])


def test_a_policy_is_a_name_or_in_full(client: Client, daemon: FakeDaemon) -> None:
    with client.open_session(MODEL, max_tokens=1, dense_below_tokens=0) as session:
        spec = daemon.sessions[session.id].request.policy
        assert (spec.preset, spec.dense_below_tokens) == ("standard", 0)
        assert session.policy.dense_below_tokens == 0
    layer = LayerPolicy(middle=Middle.MIDDLE_DENSE, window_tokens=64)
    phase = PhasePolicy(rest=layer)
    policy = AttentionPolicy(ranking=Ranking.RANKING_PROBABILITY, prefill=phase, decode=phase)
    with client.open_session(MODEL, policy, max_tokens=1) as session:
        assert session.policy == policy
        assert not daemon.sessions[session.id].request.policy.HasField("dense_below_tokens")


def test_a_batch_is_what_single_calls_are(client: Client, daemon: FakeDaemon) -> None:
    sessions = [client.open_session(MODEL, max_tokens=100) for _ in range(6)]
    alone, together = sessions[:3], sessions[3:]
    steps = [gaussian(MODEL, rows, seed=rows) for rows in (1, 3, 2)]
    for session, (q, k, v) in zip([*alone, *together], [*steps, *steps], strict=True):
        session.append(1, k, v)
    expected = [one.decode(1, *step, want_lse=True) for one, step in zip(alone, steps, strict=True)]
    batch = [(one, *step) for one, step in zip(together, steps, strict=True)]
    outs = client.decode_batch(1, batch)
    assert [out.shape[0] for out in outs] == [1, 3, 2]
    for out, (alone_out, _) in zip(outs, expected, strict=True):
        assert np.array_equal(out, alone_out)
    assert [one.tokens(1) for one in together] == [2, 6, 4]

    with_lse = client.decode_batch(0, batch, want_lse=True)
    assert [lse.shape for _, lse in with_lse] == [(1, 4), (3, 4), (2, 4)]

    together[1].close()
    with pytest.raises(longshore.NotFound):
        client.decode_batch(1, batch)
    assert [one.tokens(1) for one in together] == [2, 6, 4]  # nothing was counted
    assert len(daemon.sessions[together[0].id].layers[1].keys) == 3  # the fake applies item by item
    with pytest.raises(ValueError, match="the batch is empty"):
        client.decode_batch(0, [])
    with longshore.connect(client.target) as other:  # whose sessions might be of another daemon
        with pytest.raises(ValueError, match="was opened by another client"):
            other.decode_batch(1, batch)
    with pytest.raises(ValueError, match=r"k is float16 .* in one session of the batch"):
        q, k, v = steps[0]
        client.decode_batch(0, [batch[0], (together[2], q, k.astype(np.float16), v)])


def test_rows_past_the_limits_are_sent_in_pieces(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/longshored.sock"
    row_bytes = 4 * (4 + 2 + 2) * 8
    daemon = FakeDaemon(
        target, max_rows_per_prefill=150, max_message_bytes=64 * 1024 + 100 * row_bytes
    )
    q, k, v = gaussian(MODEL, 400)
    with longshore.connect(target) as client, client.open_session(MODEL, max_tokens=400) as session:
        session.append(0, k[:10], v[:10])
        out, lse = session.prefill(0, q[10:], k[10:], v[10:], want_lse=True)
        whole_out, whole_lse = dense_attention(MODEL, *map(to_float64, (q[10:], k, v)))
        np.testing.assert_allclose(out, whole_out, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(lse, whole_lse, rtol=1e-5, atol=1e-6)
        session.append(1, k, v)  # fewer bytes a row: 150 rows
        assert session.tokens(0) == session.tokens(1) == 400
    ends = [item.position + item.rows for _, request in daemon.steps_seen for item in request.items]
    assert ends == [10, 64, 128, 192, 256, 320, 400, 128, 256, 400]
    daemon.stop()


@pytest.mark.parametrize(
    ("position", "rows", "max_rows", "ends"),
    [
        (0, 1, 4096, [1]),
        (0, 4096, 4096, [4096]),
        (0, 4097, 4096, [4096, 4097]),
        (60, 200, 100, [68, 132, 200]),
        (0, 100, 40, [40, 64, 100]),
        (10, 130, 64, [54, 118, 130]),
        (0, 3, 0, [1, 2, 3]),
        (0, 0, 10, [0]),
    ],
)
def test_pieces(position: int, rows: int, max_rows: int, ends: list[int]) -> None:
    cuts = list(pieces(position, rows, max_rows, block=64))
    assert [cut.stop for cut in cuts] == ends
    assert [cut.start for cut in cuts] == [0, *ends[:-1]]


def test_a_prompt_is_cut_where_every_stage_is_whole() -> None:
    policy = longshore.policy.preset("standard")
    assert whole_blocks(policy) == 64
    policy.prefill.rest.stages[0].query_block = 256
    assert whole_blocks(policy) == 256
    policy.prefill.first_layers = 2
    policy.prefill.early.CopyFrom(policy.prefill.rest)
    policy.prefill.early.stages[0].query_block = 192
    assert whole_blocks(policy) == 768
    cuts = pieces(100, 2000, 1000, whole_blocks(policy))
    assert [100 + cut.stop for cut in cuts] == [768, 1536, 2100]
    assert whole_blocks(longshore.policy.preset("dense")) == 64
