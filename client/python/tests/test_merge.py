"""Partial attention merged by log-sum-exp: by hand, and from sessions of the real daemon."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dense_reference import dense_attention, gaussian, to_float64
from real_daemon import real_daemon

import longshore
from longshore import Attended, DType, ModelShape, from_bfloat16_bits, to_bfloat16_bits


def test_two_tokens_by_hand() -> None:
    # Scores log 1 and log 3: a quarter of the first value, three quarters of the second.
    first = Attended(np.full((1, 1, 2), 8, np.float32), np.zeros((1, 1), np.float32))
    second = Attended(np.full((1, 1, 2), 4, np.float32), np.full((1, 1), np.log(3), np.float32))
    out, lse = longshore.merge([first, second])
    np.testing.assert_allclose(out, np.full((1, 1, 2), 5))
    np.testing.assert_allclose(lse, [[np.log(4)]])


def test_one_part_is_the_whole_and_large_logits_do_not_overflow() -> None:
    part = Attended(np.ones((1, 2, 3), np.float16), np.full((1, 2), 1e4, np.float32))
    out, lse = longshore.merge([part])
    np.testing.assert_array_equal(out, part.out)
    assert out.dtype == np.float16
    np.testing.assert_array_equal(lse, part.lse)
    out, lse = longshore.merge([part, part])
    np.testing.assert_array_equal(out, part.out)
    np.testing.assert_allclose(lse, 1e4 + np.log(2), rtol=1e-6)


def test_bfloat16_bits_are_numbers() -> None:
    parts = [
        Attended(to_bfloat16_bits(np.full((1, 1, 1), value, np.float32)), np.zeros((1, 1), np.float32))
        for value in (1.0, 3.0)
    ]
    assert from_bfloat16_bits(longshore.merge(parts).out).item() == 2.0


def test_what_does_not_fit_is_named() -> None:
    part = Attended(np.ones((1, 2, 3), np.float32), np.zeros((1, 2), np.float32))
    with pytest.raises(ValueError, match="parts is empty"):
        longshore.merge([])
    with pytest.raises(ValueError, match=r"parts\[1\]\.lse is None"):
        longshore.merge([part, part._replace(lse=None)])
    with pytest.raises(ValueError, match=r"parts\[1\]\.out is float32 \(2, 2, 3\), parts\[0\]\.out is"):
        longshore.merge([part, part._replace(out=np.ones((2, 2, 3), np.float32))])
    with pytest.raises(ValueError, match=r"parts\[1\]\.out is float16 \(1, 2, 3\)"):
        longshore.merge([part, part._replace(out=part.out.astype(np.float16))])
    with pytest.raises(ValueError, match=r"parts\[1\]\.lse is float16 \(1, 2\), parts\[0\]\.lse is fl"):
        longshore.merge([part, part._replace(lse=np.zeros((1, 2), np.float16))])
    for number, lse in enumerate((np.zeros((1, 3)), np.zeros((2, 1)), np.zeros(2), np.zeros((1, 2, 1)))):
        said = rf"parts\[{number}\]\.lse is \({lse.shape[0]},.*\.out \(1, 2, 3\) has \[rows, heads\] \(1, 2\)"
        with pytest.raises(ValueError, match=said):
            longshore.merge([part] * number + [part._replace(lse=lse)])


@pytest.mark.filterwarnings("error")
def test_parts_without_tokens_count_nothing() -> None:
    part = Attended(np.full((1, 2, 3), 7, np.float32), np.array([[5, -np.inf]], np.float32))
    none = Attended(np.zeros((1, 2, 3), np.float32), np.full((1, 2), -np.inf, np.float32))
    out, lse = longshore.merge([none, part._replace(out=part.out * np.float32([[[1], [0]]])), none])
    np.testing.assert_array_equal(out, [[[7, 7, 7], [0, 0, 0]]])
    np.testing.assert_array_equal(lse, part.lse)
    for parts in ([none], [none, none]):
        out, lse = longshore.merge(parts)
        np.testing.assert_array_equal(out, none.out)
        np.testing.assert_array_equal(lse, none.lse)


@pytest.mark.daemon
def test_two_sessions_give_what_one_would(tmp_path: Path) -> None:
    # No rotary embedding: a token is the same wherever it stands. Sinks count once.
    sinks = np.random.default_rng(1).standard_normal((1, 6)).astype(np.float32) + 3
    model = ModelShape(1, 6, 2, 64, [], query_dtype=DType.F32, kv_dtype=DType.F32, sink_logits=sinks)
    q, k, v = gaussian(model, 300)
    with (
        real_daemon(tmp_path) as target,
        longshore.connect(target) as client,
        client.open_session(model, "dense", max_tokens=300) as prefix,
        client.open_session(model, "dense", max_tokens=300) as suffix,
        client.open_session(model, "dense", max_tokens=300) as whole,
    ):
        prefix.append(0, k[:200], v[:200])
        suffix.append(0, k[201:299], v[201:299])
        whole.append(0, k[:299], v[:299])
        rows = q[299:]
        parts = [
            prefix.decode(0, rows, k[200:201], v[200:201], want_lse=True, exclude_sink_logits=True),
            suffix.decode(0, rows, k[299:], v[299:], want_lse=True),
        ]
        merged = longshore.merge(parts)
        expected = whole.decode(0, rows, k[299:], v[299:], want_lse=True)
        np.testing.assert_allclose(merged.out, expected[0], atol=2e-6)
        np.testing.assert_allclose(merged.lse, expected[1], atol=2e-6)


@pytest.mark.daemon
def test_requests_take_turns_with_a_prefix(tmp_path: Path) -> None:
    """As the module's docstring shows it: two requests, two layers, three steps of each."""
    model = ModelShape(2, 6, 2, 64, [])
    n, steps = 150, 3
    q, k, v = gaussian(model, n + 2 * steps)
    with (
        real_daemon(tmp_path) as target,
        longshore.connect(target) as client,
        client.open_session(model, "dense", max_tokens=n) as prefix,
        client.open_session(model, "dense", max_tokens=steps) as one,
        client.open_session(model, "dense", max_tokens=steps) as other,
    ):
        for layer in range(2):
            prefix.append(layer, k[: n - 1], v[: n - 1])
        for step in range(steps):
            for first, request in ((n, one), (n + steps, other)):
                row = slice(first + step, first + step + 1)
                seen = [*range(n), *range(first, first + step + 1)]
                past = (to_float64(k[seen]), to_float64(v[seen]))
                expected, _ = dense_attention(model, to_float64(q[row]), *past)
                for layer in range(2):
                    last = (k[n - 1 : n], v[n - 1 : n])
                    shared = prefix.decode(layer, q[row], *last, want_lse=True, exclude_sink_logits=True)
                    own = request.decode(layer, q[row], k[row], v[row], want_lse=True)
                    np.testing.assert_allclose(longshore.merge([shared, own]).out, expected, atol=1e-5)
                prefix.truncate(n - 1)


@pytest.mark.daemon
def test_sliding_window_layers_see_their_last_tokens_and_free_the_rest(tmp_path: Path) -> None:
    model = ModelShape(2, 6, 2, 64, [], layer_sliding_window=(100, 0))
    q, k, v = gaussian(model, 700)
    page = 2 * 64 * 2 * 64 * 4
    with (
        real_daemon(tmp_path) as target,
        longshore.connect(target) as client,
        client.open_session(model, "dense", max_tokens=700) as session,
    ):
        for layer, window in ((0, 100), (1, 0)):
            for begin, end in ((0, 130), (130, 640), (640, 699), (699, 700)):
                rows = slice(begin, end)
                out = session.prefill(layer, q[rows], k[rows], v[rows])
                past = (to_float64(k[:end]), to_float64(v[:end]))
                expected, _ = dense_attention(model, to_float64(q[rows]), *past, window=window)
                np.testing.assert_allclose(out, expected, atol=1e-5)
        # The last call saw 600..699: of layer 0 the pages from 576 on are there, of layer 1 all.
        assert session.describe().page_bytes_used == (2 + 11) * page
        with pytest.raises(longshore.OutOfRange, match="position 500 is below 675") as error:
            session.truncate(500)
        assert error.value.reason == "TOKENS_EXPIRED"
        # As the README says: from there on, or from 0.
        assert error.value.metadata == {"earliest_position": "675"}
        session.truncate(675)
        assert session.describe().layer_tokens == (675, 675)
        session.truncate(0)
        assert session.describe().page_bytes_used == 0
