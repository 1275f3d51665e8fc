"""Steps of a session: shapes, dtypes, positions and replay, by calls and on a stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dense_reference import dense_attention, gaussian, to_float64
from fake_daemon import FakeDaemon, Refused
from grpc import StatusCode

import longshore
from longshore import Client, DType, ModelShape, Pairing, RopeTable, Session
from longshore import from_bfloat16_bits as from_bits
from longshore import to_bfloat16_bits as to_bits


def model_of(query_dtype: DType = DType.F32, kv_dtype: DType = DType.F32) -> ModelShape:
    rope = RopeTable.from_base(10000.0, 8, Pairing.INTERLEAVED, trained_tokens=512)
    return ModelShape(2, 4, 2, 8, [rope], query_dtype=query_dtype, kv_dtype=kv_dtype)


@pytest.fixture(params=[False, True], ids=["unary", "stream"])
def session(request: pytest.FixtureRequest, client: Client) -> Any:
    """A float32 session whose steps are calls, and one whose steps share a stream."""
    with client.open_session(model_of(), max_tokens=1000, stream=request.param) as session:
        yield session


def test_prefill_and_decode_against_the_reference(session: Session) -> None:
    q, k, v = gaussian(model_of(), 40)
    expected, expected_lse = dense_attention(model_of(), *map(to_float64, (q, k, v)))
    session.append(1, k[:5], v[:5])
    outs = [session.prefill(1, q[5:30], k[5:30], v[5:30])]
    outs += [session.decode(1, q[30:31], k[30:31], v[30:31])]
    out, lse = session.decode(1, q[31:], k[31:], v[31:], want_lse=True)
    np.testing.assert_allclose(np.concatenate([*outs, out]), expected[5:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lse, expected_lse[31:], rtol=1e-5, atol=1e-6)
    assert out.dtype == lse.dtype == np.float32 and out.flags.writeable and lse.flags.writeable
    assert (session.tokens(0), session.tokens(1)) == (0, 40)


@pytest.mark.parametrize(
    ("query_dtype", "kv_dtype", "tolerance"),
    [(DType.F16, DType.F16, 1e-3), (DType.BF16, DType.BF16, 1e-2), (DType.F32, DType.BF16, 1e-5)],
)
def test_half_types(client: Client, query_dtype: DType, kv_dtype: DType, tolerance: float) -> None:
    model = model_of(query_dtype, kv_dtype)
    q, k, v = gaussian(model, 20)
    expected, _ = dense_attention(model, *map(to_float64, (q, k, v)))
    with client.open_session(model, max_tokens=20) as session:
        out = session.prefill(0, q, k, v)
    assert out.dtype == q.dtype  # bfloat16 bits come back as bits
    np.testing.assert_allclose(to_float64(out), expected, rtol=tolerance, atol=tolerance)


def test_ml_dtypes_bfloat16_comes_back_as_itself(client: Client) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    model = model_of(DType.BF16, DType.BF16)
    q, k, v = (array.view(ml_dtypes.bfloat16) for array in gaussian(model, 3))
    with client.open_session(model, max_tokens=6) as session:
        out = session.prefill(0, q, k, v)
        assert out.dtype == ml_dtypes.bfloat16
        session.truncate(0)
        bits = session.prefill(0, *(array.view(np.uint16) for array in (q, k, v)))
    assert np.array_equal(out.view(np.uint16), bits)


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1, 1.00390625, 1.01171875, -3e38, 3.4e38, np.inf, np.nan], np.float32)
    rounded = from_bits(to_bits(values))
    np.testing.assert_allclose(rounded[:4], values[:4], rtol=2**-8)
    assert rounded[1] == 1.0 and rounded[2] == 1.015625  # ties
    assert np.isinf(rounded[4]) and np.isinf(rounded[5]) and np.isnan(rounded[6])
    ml_dtypes = pytest.importorskip("ml_dtypes")
    many = np.random.default_rng(1).standard_normal(10_000).astype(np.float32)
    assert np.array_equal(to_bits(many), many.astype(ml_dtypes.bfloat16).view(np.uint16))


def test_arrays_need_not_be_contiguous(session: Session) -> None:
    q, k, v = gaussian(model_of(), 6)
    expected = session.prefill(0, q, k, v)
    fused = np.concatenate([q, k, v], axis=1)
    views = (fused[:, :4], fused[:, 4:6], fused[:, 6:])
    assert not views[0].flags.c_contiguous
    assert np.array_equal(session.prefill(1, *views), expected)
    session.truncate(0)
    q, k, v = (np.asfortranarray(array) for array in (q, k, v))
    assert np.array_equal(session.prefill(0, q, k, v), expected)


def test_other_types_are_refused_here(session: Session) -> None:
    q, k, v = gaussian(model_of(), 1)
    with pytest.raises(TypeError, match="k is float64, not float32, float16 or bfloat16"):
        session.append(0, k.astype(np.float64), v.astype(np.float64))
    with pytest.raises(TypeError, match="q is >f4, not float32"):
        session.decode(0, q.astype(">f4"), k, v)
    assert session.tokens(0) == 0
    session.decode(0, q, k, v)


def test_a_wrong_position_is_refused_by_the_daemon(session: Session) -> None:
    q, k, v = gaussian(model_of(), 4)
    session.prefill(0, q, k, v, position=0)
    with pytest.raises(longshore.OutOfRange) as gap:
        session.decode(0, q[:1], k[:1], v[:1], position=7)
    assert (gap.value.reason, gap.value.field) == ("POSITION_GAP", "items[0].position")
    assert gap.value.metadata == {"expected_position": "4"}
    with pytest.raises(longshore.Aborted, match=r"expected position 4 \(ABORTED, POSITION_CONFL"):
        session.append(0, k, v, position=0)
    assert session.tokens(0) == 4
    session.decode(0, q[:1], k[:1], v[:1])


def test_truncate_goes_back(session: Session) -> None:
    q, k, v = gaussian(model_of(), 30)
    expected = session.prefill(0, q, k, v)[20:]
    session.append(1, k[:10], v[:10])
    session.truncate(20)
    assert (session.tokens(0), session.tokens(1)) == (20, 10)
    assert session.describe().layer_tokens == (20, 10)
    again = session.prefill(0, q[20:], k[20:], v[20:])
    np.testing.assert_allclose(again, expected, rtol=1e-6)


def test_a_lost_answer_is_replayed(session: Session, daemon: FakeDaemon) -> None:
    q, k, v = gaussian(model_of(), 5)
    session.prefill(0, q[:3], k[:3], v[:3])
    daemon.lose_answers = 1
    out = session.decode(0, q[3:4], k[3:4], v[3:4])
    assert session.tokens(0) == 4 == session.describe().layer_tokens[0]  # not appended twice
    first, second = (request.items[0] for _, request in daemon.steps_seen[-2:])
    assert first == second
    session.truncate(3)
    assert np.array_equal(session.decode(0, q[3:4], k[3:4], v[3:4]), out)

    daemon.lose_answers = 4  # more than there are replays
    with pytest.raises(longshore.Unavailable, match="Socket closed") as caught:
        session.append(0, k[4:], v[4:])
    assert caught.value.reason == ""
    assert session.tokens(0) == 4 and session.describe().layer_tokens[0] == 5  # nobody could know
    with pytest.raises(longshore.Aborted):  # so that nothing is appended twice
        session.append(0, k[4:], v[4:])
    session.truncate(4)
    session.append(0, k[4:], v[4:])


def test_append_ids_differ(session: Session, daemon: FakeDaemon) -> None:
    _, k, v = gaussian(model_of(), 1)
    for _ in range(5):
        session.append(0, k, v)
    assert len({request.items[0].append_id for _, request in daemon.steps_seen}) == 5


def test_a_daemon_that_says_unavailable_is_not_asked_again(
    session: Session, daemon: FakeDaemon
) -> None:
    _, k, v = gaussian(model_of(), 1)
    daemon.refuse_next = Refused(StatusCode.UNAVAILABLE, "the daemon is shutting down", "DRAINING")
    with pytest.raises(longshore.Unavailable, match="DRAINING"):
        session.append(0, k, v)
    assert len(daemon.steps_seen) == 1
    session.append(0, k, v)


@pytest.mark.parametrize("stream", [False, True])
def test_a_session_does_not_outlive_its_daemon(
    client: Client, daemon: FakeDaemon, stream: bool
) -> None:
    _, k, v = gaussian(model_of(), 1)
    with pytest.raises(longshore.NotFound) as caught:
        with client.open_session(model_of(), max_tokens=9, stream=stream) as session:
            session.append(0, k, v)
            daemon.restart()
            session.append(0, k, v)
    assert caught.value.reason == "SESSION_NOT_FOUND"
    with client.open_session(model_of(), max_tokens=9, stream=stream) as session:
        session.append(0, k, v)
