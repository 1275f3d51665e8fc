"""Against the real daemon: LONGSHORED=/path/to/longshored pytest -m daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cutting_proxy import CuttingProxy
from dense_reference import dense_attention, gaussian, rounded, to_float64
from real_daemon import real_daemon

import longshore
from longshore import Client, DType, ModelShape, Pairing, RopeTable, Session
from longshore._proto.longshore.v1 import attention_pb2, tensor_pb2
from longshore.connection import Connection

pytestmark = pytest.mark.daemon

HALVES = RopeTable.from_base(10000.0, 64, Pairing.HALVES, trained_tokens=8192)
INTERLEAVED = RopeTable.from_base(500000.0, 32, Pairing.INTERLEAVED, trained_tokens=8192)


def model_of(
    rope: RopeTable | None = HALVES,
    query_dtype: DType = DType.F32,
    kv_dtype: DType = DType.F32,
    **options: Any,
) -> ModelShape:
    tables = [] if rope is None else [rope]
    options |= {"query_dtype": query_dtype, "kv_dtype": kv_dtype}
    return ModelShape(2, 6, 2, 64, tables, **options)


MODEL = model_of()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon of this module's own."""
    with real_daemon(tmp_path_factory.mktemp("daemon")) as target:
        yield target


@pytest.fixture
def client(target: str) -> Iterator[Client]:
    with longshore.connect(target) as connected:
        yield connected
        assert connected.sessions() == []  # every test closes its own


def test_info(client: Client) -> None:
    info = client.info()
    assert info.instance_id and info.version and info.backends[0].name == "cpu"
    assert {"standard", "dense", "streaming"} <= set(info.presets)
    assert info.limits.max_rows_per_prefill >= 4096


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        model_of(INTERLEAVED),
        model_of(None, softmax_scale=0.05),
        model_of(RopeTable(HALVES.inv_freq, Pairing.HALVES, 8192, attention_scaling=1.2)),
    ],
    ids=["halves", "interleaved", "no rope", "scaled"],
)
def test_dense_against_the_reference(client: Client, model: ModelShape) -> None:
    q, k, v = gaussian(model, 150)
    expected, expected_lse = dense_attention(model, *map(to_float64, (q, k, v)))
    with client.open_session(model, "dense", max_tokens=150) as session:
        out, lse = session.prefill(1, q[:147], k[:147], v[:147], want_lse=True)
        outs, lses = [out], [lse]
        for row in range(147, 150):
            part = slice(row, row + 1)
            out, lse = session.decode(1, q[part], k[part], v[part], want_lse=True)
            outs, lses = [*outs, out], [*lses, lse]
        assert session.describe().layer_tokens == (0, 150)
    np.testing.assert_allclose(np.concatenate(outs), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.concatenate(lses), expected_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("query_dtype", "kv_dtype", "tolerance"),
    [(DType.F16, DType.F16, 4e-3), (DType.BF16, DType.BF16, 3e-2), (DType.F32, DType.BF16, 2e-2)],
)
def test_half_types(client: Client, query_dtype: DType, kv_dtype: DType, tolerance: float) -> None:
    model = model_of(HALVES, query_dtype, kv_dtype)
    q, k, v = gaussian(model, 70)
    expected, _ = dense_attention(model, *map(to_float64, (q, k, v)))
    with client.open_session(model, "dense", max_tokens=140) as session:
        out = session.prefill(0, q, k, v)
        # Keys and values may come in query_dtype too: the daemon rounds them.
        wide_k, wide_v = (
            rounded(to_float64(array).astype(np.float32), query_dtype) for array in (k, v)
        )
        again = session.prefill(1, q, wide_k, wide_v)
    assert out.dtype == q.dtype
    # Rotated q and k are rounded to the storage type: more than one rounding of the result.
    np.testing.assert_allclose(to_float64(out), expected, rtol=tolerance, atol=tolerance)
    assert np.array_equal(again, out)


def generate(session: Session, rows: int = 40) -> list[np.ndarray[Any, Any]]:
    """A prefill of 300 rows in layer 0 and some decode steps: each one's output and log-sum-exp."""
    q, k, v = gaussian(MODEL, 300 + rows)
    results = [session.prefill(0, q[:300], k[:300], v[:300], want_lse=True)]
    for row in range(300, 300 + rows):
        part = slice(row, row + 1)
        results += [session.decode(0, q[part], k[part], v[part], want_lse=True)]
    return [array for result in results for array in result]


@pytest.mark.parametrize("policy", ["dense", "standard", "streaming"])
def test_a_stream_gives_the_bits_of_calls(client: Client, policy: str) -> None:
    outputs = []
    for stream in (False, True):
        with client.open_session(
            MODEL, policy, max_tokens=400, dense_below_tokens=0, stream=stream
        ) as session:
            outputs.append(generate(session))
    assert all(np.array_equal(a, b) for a, b in zip(*outputs, strict=True))


def test_pipelined_steps_give_the_bits_of_calls(client: Client) -> None:
    q, k, v = gaussian(MODEL, 340)
    with (
        client.open_session(MODEL, max_tokens=400) as called,
        client.open_session(MODEL, max_tokens=400) as streamed,
    ):
        expected = generate(called)
        with client.stream() as steps:
            pending = [steps.prefill(streamed, 0, q[:300], k[:300], v[:300], want_lse=True)]
            for row in range(300, 340):
                part = slice(row, row + 1)
                step = steps.decode(streamed, 0, q[part], k[part], v[part], want_lse=True)
                pending.append(step)
            outputs = [array for step in pending for array in step.result() if array is not None]
    assert all(np.array_equal(a, b) for a, b in zip(outputs, expected, strict=True))


def test_a_batch_gives_the_bits_of_single_calls(client: Client) -> None:
    with ExitStack() as opened:
        sessions = [
            opened.enter_context(client.open_session(MODEL, max_tokens=200)) for _ in range(8)
        ]
        data = [gaussian(MODEL, 40 + 7 * index, seed=index) for index in range(4)]
        for session, (q, k, v) in zip(sessions, [*data, *data], strict=True):
            session.prefill(0, q[:-1], k[:-1], v[:-1])
        steps = [(q[-1:], k[-1:], v[-1:]) for q, k, v in data]
        expected = [one.decode(0, *step) for one, step in zip(sessions[:4], steps, strict=True)]
        batch = [(one, *step) for one, step in zip(sessions[4:], steps, strict=True)]
        outs = client.decode_batch(0, batch)
        assert all(np.array_equal(a, b) for a, b in zip(outs, expected, strict=True))
        with pytest.raises(longshore.InvalidArgument) as caught:  # whole or not at all
            client.decode_batch(1, [batch[0], (sessions[0], *gaussian(MODEL, 4096))])
        assert caught.value.field == "items[1].rows"
        assert sessions[4].describe().layer_tokens[1] == 0 == sessions[4].tokens(1)


def test_cuts_at_multiples_of_64_do_not_change_a_bit(client: Client) -> None:
    q, k, v = gaussian(MODEL, 500)
    outputs = []
    for piece in (500, 64, 192):
        with client.open_session(MODEL, max_tokens=500, dense_below_tokens=0) as session:
            starts = range(0, 500, piece)
            parts = [slice(start, start + piece) for start in starts]
            outs = [session.prefill(0, q[part], k[part], v[part]) for part in parts]
            outputs.append(np.concatenate(outs))
    assert np.array_equal(outputs[0], outputs[1]) and np.array_equal(outputs[0], outputs[2])


def test_rows_past_the_limits_go_in_pieces(client: Client) -> None:
    rows = client.info().limits.max_rows_per_prefill + 100
    model = ModelShape(1, 1, 1, 64)
    k = np.zeros((rows, 1, 64), np.float32)
    with client.open_session(model, max_tokens=rows) as session:
        session.append(0, k, k)
        assert session.describe().layer_tokens == (rows,)


def step_request(session: Session, position: int, rows: int, append_id: int) -> Any:
    """A decode of layer 0, as it goes over the wire."""

    def tensor(array: np.ndarray[Any, Any]) -> tensor_pb2.Tensor:
        shape, data = array.shape, array.tobytes()
        return tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_F32, shape=shape, inline_data=data)

    item = attention_pb2.StepItem(
        session_id=session.id, position=position, rows=rows, append_id=append_id
    )
    q, k, v = map(tensor, gaussian(MODEL, rows, seed=position))
    return attention_pb2.DecodeStepRequest(layer=0, items=[item], q=q, k=k, v=v)


def test_a_replay_appends_nothing_and_returns_the_bits(client: Client) -> None:
    connection = Connection(client.target)
    decode = connection.attention.DecodeStep
    with client.open_session(MODEL, max_tokens=50) as session:
        for position in range(3):
            request = step_request(session, position, 1, append_id=77 + position)
            answer = connection.call(decode, request)
            for _ in range(2):
                assert connection.call(decode, request) == answer
        assert session.describe().layer_tokens == (3, 0)
        request.items[0].append_id = 5
        with pytest.raises(longshore.Aborted) as conflict:
            connection.call(decode, request)
        assert conflict.value.reason == "POSITION_CONFLICT"
        assert conflict.value.field == "items[0].position"
        assert conflict.value.metadata["expected_position"] == "3"
        request.items[0].position = 9
        with pytest.raises(longshore.OutOfRange) as gap:
            connection.call(decode, request)
        assert gap.value.reason == "POSITION_GAP"
        assert session.describe().layer_tokens == (3, 0)
    connection.close()


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_a_cut_connection_costs_nothing(
    client: Client, target: str, tmp_path: Path, stream: bool
) -> None:
    with client.open_session(MODEL, max_tokens=400) as session:
        expected = generate(session)
    q, k, v = gaussian(MODEL, 340)
    with CuttingProxy(tmp_path / "proxy.sock", Path(target.removeprefix("unix:"))) as proxy:
        with longshore.connect(f"unix:{tmp_path}/proxy.sock") as through:
            with through.open_session(MODEL, max_tokens=400, stream=stream) as session:
                outputs = [session.prefill(0, q[:300], k[:300], v[:300])]
                for row in range(300, 340):
                    if row % 8 == 3:
                        proxy.cut_at_next_answer()
                    part = slice(row, row + 1)
                    outputs.append(session.decode(0, q[part], k[part], v[part]))
                assert session.describe().layer_tokens == (340, 0)
    assert proxy.cuts == 5
    assert all(np.array_equal(a, b) for a, b in zip(outputs, expected[::2], strict=True))


def test_an_open_whose_answer_is_lost_opens_one_session(
    client: Client, target: str, tmp_path: Path
) -> None:
    before = len(client.sessions())
    with CuttingProxy(tmp_path / "proxy.sock", Path(target.removeprefix("unix:"))) as proxy:
        with longshore.connect(f"unix:{tmp_path}/proxy.sock") as through:
            proxy.cut_at_next_answer()
            session = through.open_session(MODEL, max_tokens=400)
            assert proxy.cuts == 1
            assert len(client.sessions()) == before + 1
            session.close()
    assert len(client.sessions()) == before


def test_a_session_without_calls_expires(client: Client) -> None:
    session = client.open_session(MODEL, max_tokens=400, lease_seconds=0.2)
    assert session.describe().lease_seconds == 0.2
    assert session.describe().owner == "local"
    while any(info.session_id == session.id for info in client.sessions()):
        time.sleep(0.02)
    with pytest.raises(longshore.NotFound) as caught:
        session.describe()
    assert caught.value.reason == "SESSION_EXPIRED"
    assert caught.value.metadata == {"lease_seconds": "0.2"}
    session.close()  # nothing is left to close


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"inline_data": b"\0" * 100}, ".inline_data"),
        ({"inline_data": b""}, ".inline_data"),
        ({"shape": [1, 64]}, ".shape"),
        ({"shape": [2, 2, 64]}, ".shape[0]"),
        ({"shape": [1, 0, 64]}, ".shape[1]"),
        ({"shape": [-1, 2, 64]}, ".shape[0]"),
        ({"shape": [1, 2**31, 2**31]}, ".shape"),
        ({"dtype": tensor_pb2.DTYPE_UNSPECIFIED}, ".dtype"),
        ({"dtype": 99}, ".dtype"),
    ],
)
def test_a_tensor_of_the_wrong_size_is_refused(
    client: Client, name: str, change: dict[str, Any], field: str
) -> None:
    connection = Connection(client.target)
    with client.open_session(MODEL, max_tokens=50) as session:
        request = step_request(session, 0, 1, append_id=1)
        good = attention_pb2.DecodeStepRequest.FromString(request.SerializeToString())
        tensor = getattr(request, name)
        if "shape" in change:
            del tensor.shape[:]
        tensor.MergeFrom(tensor_pb2.Tensor(**change))
        if change.get("dtype") == tensor_pb2.DTYPE_UNSPECIFIED:
            tensor.dtype = tensor_pb2.DTYPE_UNSPECIFIED
        with pytest.raises(longshore.InvalidArgument) as caught:
            connection.call(connection.attention.DecodeStep, request)
        assert caught.value.field == name + field
        assert caught.value.reason == "INVALID_FIELD"
        assert session.describe().layer_tokens == (0, 0)
        connection.call(connection.attention.DecodeStep, good)  # unharmed
    connection.close()


def test_not_a_number_is_refused(client: Client) -> None:
    q, k, v = gaussian(MODEL, 10)
    k[4, 1, 3] = np.nan
    with client.open_session(MODEL, max_tokens=50) as session:
        with pytest.raises(longshore.InvalidArgument) as caught:
            session.prefill(0, q, k, v)
        assert caught.value.reason == "NON_FINITE"
        assert session.describe().layer_tokens == (0, 0)


def test_truncate_and_go_on(client: Client) -> None:
    q, k, v = gaussian(MODEL, 200)
    with client.open_session(MODEL, max_tokens=200, dense_below_tokens=0) as session:
        expected = session.prefill(0, q, k, v)
        session.append(1, k[:100], v[:100])
        session.truncate(128)
        assert session.describe().layer_tokens == (128, 100)
        assert np.array_equal(session.prefill(0, q[128:], k[128:], v[128:]), expected[128:])
        with pytest.raises(longshore.OutOfRange) as caught:
            session.truncate(201)
        assert caught.value.reason == "TRUNCATE_PAST_END"


def test_a_policy_in_full(client: Client) -> None:
    with client.open_session(MODEL, "standard", max_tokens=10) as session:
        policy = session.policy
    policy.decode.rest.window_tokens = 512
    with client.open_session(MODEL, policy, max_tokens=10) as session:
        assert session.policy == policy
        described = session.describe()
        assert described.policy == policy
        assert described.model is not None and described.model.num_heads == 6


def test_what_cannot_be_opened(client: Client) -> None:
    with pytest.raises(longshore.InvalidArgument, match="head_dim") as caught:
        client.open_session(ModelShape(1, 1, 1, 65), max_tokens=10)
    assert caught.value.field == "model.head_dim"
    with pytest.raises(longshore.InvalidArgument, match="standard") as caught:
        client.open_session(MODEL, "fancy", max_tokens=10)
    assert caught.value.field == "policy.preset"
    with pytest.raises(longshore.ResourceExhausted) as full:
        client.open_session(MODEL, max_tokens=10_000_000)
    assert full.value.reason == "POOL_FULL"
