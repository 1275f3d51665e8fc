"""Pipelined steps: order, failures in band, a broken connection, threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from cutting_proxy import CuttingProxy
from dense_reference import gaussian
from fake_daemon import FakeDaemon

import longshore
from longshore import Client, ModelShape, Pairing, RopeTable, Session

ROPE = RopeTable.from_base(10000.0, 8, Pairing.HALVES, trained_tokens=512)
MODEL = ModelShape(num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8, rope_tables=[ROPE])


def open_session(client: Client, **options: Any) -> Session:
    return client.open_session(MODEL, max_tokens=1000, **options)


def test_steps_are_applied_in_order_and_give_the_bits_of_calls(
    client: Client, daemon: FakeDaemon
) -> None:
    q, k, v = gaussian(MODEL, 30)
    calls, one, two = (open_session(client) for _ in range(3))
    calls.append(0, k[:10], v[:10])
    expected = [calls.prefill(0, q[10:20], k[10:20], v[10:20], want_lse=True)]
    expected += [calls.decode(0, q[20 + i :][:1], k[20 + i :][:1], v[20 + i :][:1], want_lse=True)
                 for i in range(5)]  # fmt: skip
    daemon.steps_seen.clear()
    with client.stream() as steps:
        appended = [steps.append(session, 0, k[:10], v[:10]) for session in (one, two)]
        pending = []
        for session in (one, two):
            part = slice(10, 20)
            pending += [steps.prefill(session, 0, q[part], k[part], v[part], want_lse=True)]
            for row in range(20, 25):
                part = slice(row, row + 1)
                pending += [steps.decode(session, 0, q[part], k[part], v[part], want_lse=True)]
        assert one.tokens(0) == two.tokens(0) == 25  # what was sent counts
        last = pending[-1].result()  # takes all answers before it
        assert all(step.done for step in pending)
        assert [step.result() for step in appended] == [None, None]
    for index, step in enumerate(pending):
        out, lse = step.result()
        assert np.array_equal(out, expected[index % 6][0])
        assert lse is not None and np.array_equal(lse, expected[index % 6][1])
    assert np.array_equal(last.out, expected[-1][0])
    assert [kind for kind, _ in daemon.steps_seen] == ["append_kv"] * 2 + (
        ["prefill"] + ["decode"] * 5
    ) * 2


def test_a_batch_on_a_stream(client: Client) -> None:
    sessions = [open_session(client) for _ in range(3)]
    batch = [(session, *gaussian(MODEL, 1, seed=i)) for i, session in enumerate(sessions)]
    outs = client.decode_batch(0, batch)
    with client.stream() as steps:
        attended = steps.decode_batch(1, batch).result()
    assert all(np.array_equal(a.out, out) for a, out in zip(attended, outs, strict=True))
    assert all(a.lse is None for a in attended)


def test_a_refused_step_does_not_end_the_stream(client: Client) -> None:
    q, k, v = gaussian(MODEL, 10)
    one, two = open_session(client), open_session(client)
    with client.stream() as steps:
        steps.append(one, 0, k[:4], v[:4])
        wrong = steps.decode(one, 0, q[:1], k[:1], v[:1], position=2)
        fine = steps.decode(two, 0, q[:1], k[:1], v[:1])
        assert fine.result().out.shape == (1, 4, 8)
        with pytest.raises(longshore.Aborted) as caught:
            wrong.result()
        assert caught.value.metadata == {"expected_position": "4"}
        assert one.tokens(0) == 4
        assert steps.decode(one, 0, q[4:5], k[4:5], v[4:5]).result().out.shape == (1, 4, 8)


def test_a_step_after_a_refused_one_leaves_a_gap(client: Client) -> None:
    q, k, v = gaussian(MODEL, 10)
    session = open_session(client)
    with client.stream() as steps:
        long = steps.append(session, 0, *(np.zeros((4097, 2, 8), np.float32),) * 2)
        after = steps.decode(session, 0, q[:1], k[:1], v[:1])
        with pytest.raises(longshore.OutOfRange):
            after.result()
        with pytest.raises(longshore.InvalidArgument, match="the limit is 4096"):
            long.result()
        assert session.tokens(0) == 0  # both are given back
        steps.decode(session, 0, q[:1], k[:1], v[:1]).result()


def test_a_failure_that_nobody_asked_for_is_raised_at_the_end(client: Client) -> None:
    _, k, v = gaussian(MODEL, 1)
    session = open_session(client)
    with pytest.raises(longshore.OutOfRange):
        with client.stream() as steps:
            steps.append(session, 0, k, v, position=5)
            steps.append(session, 0, k, v, position=0).result()
    with pytest.raises(ValueError, match="the stream is closed"):
        steps.append(session, 0, k, v)
    with pytest.raises(ZeroDivisionError):  # and not the failure
        with client.stream() as steps:
            steps.append(session, 0, k, v, position=5)
            raise ZeroDivisionError


def test_a_broken_stream_fails_what_has_no_answer(client: Client, daemon: FakeDaemon) -> None:
    _, k, v = gaussian(MODEL, 1)
    session = open_session(client)
    with client.stream() as steps:
        steps.append(session, 0, k, v).result()
        daemon.lose_answers = 1
        lost = [steps.append(session, layer, k, v) for layer in (0, 1, 2)]
        for pending in lost:
            with pytest.raises(longshore.Unavailable, match="Socket closed"):
                pending.result()
        assert [session.tokens(layer) for layer in range(3)] == [1, 0, 0]
        session.truncate(1)  # the daemon holds 2 tokens in layer 0
        steps.append(session, 0, k, v).result()  # connects again
        assert session.describe().layer_tokens == (2, 0, 0)


def test_threads_may_send_and_wait(client: Client) -> None:
    q, k, v = gaussian(MODEL, 20)
    sessions = [open_session(client) for _ in range(4)]
    expected = sessions[0].prefill(1, q, k, v)
    outs: dict[int, list[Any]] = {}

    def generate(index: int) -> None:
        pending = []
        for row in range(20):
            part = slice(row, row + 1)
            pending.append(steps.decode(sessions[index], 0, q[part], k[part], v[part]))
        outs[index] = [step.result().out for step in pending]

    with client.stream() as steps:
        threads = [threading.Thread(target=generate, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for rows in outs.values():
        np.testing.assert_allclose(np.concatenate(rows), expected, rtol=1e-6)


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_connection_costs_nothing(daemon: FakeDaemon, tmp_path: Any, stream: bool) -> None:
    q, k, v = gaussian(MODEL, 12)
    with CuttingProxy(tmp_path / "proxy.sock", tmp_path / "longshored.sock") as proxy:
        with longshore.connect(f"unix:{tmp_path}/proxy.sock") as client:
            with open_session(client, stream=stream) as session:
                expected = session.prefill(0, q, k, v)
                outs = []
                for row in range(12):
                    if row % 4 == 1:
                        proxy.cut_at_next_answer()
                    part = slice(row, row + 1)
                    outs.append(session.decode(1, q[part], k[part], v[part]))
                assert proxy.cuts == 3
                assert session.describe().layer_tokens == (12, 12, 0)
    np.testing.assert_allclose(np.concatenate(outs), expected, rtol=1e-6)
