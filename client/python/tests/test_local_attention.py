"""Dense causal attention in blocks against one softmax a row."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from longshore import ModelShape, Pairing, RopeTable
from longshore.runner import LocalAttention, local_attention
from longshore.runner.local_attention import causal_attention
from longshore.runner.rope import rotate, turns


def one_layer(pairing: Pairing = Pairing.INTERLEAVED) -> ModelShape:
    return ModelShape(1, 6, 2, 8, [RopeTable.from_base(10000.0, 8, pairing, trained_tokens=64)])


def gaussian(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q [rows, 6, 8], k, v [rows, 2, 8]."""
    rng = np.random.default_rng(seed)
    sizes = ((rows, 6, 8), (rows, 2, 8), (rows, 2, 8))
    q, k, v = (rng.standard_normal(size, dtype=np.float32) for size in sizes)
    return q * 3, k, v


@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (1, 40), (40, 40), (13, 29), (5, 64)])
def test_blocks_merge_to_one_softmax(
    rows: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_attention, "QUERY_BLOCK", 5)
    monkeypatch.setattr(local_attention, "KEY_BLOCK", 7)
    q, k, v = gaussian(rows * 100 + tokens, tokens)
    q = q[-rows:]
    out = causal_attention(q, k.swapaxes(0, 1).copy(), v.swapaxes(0, 1).copy())
    for row in range(rows):
        seen = tokens - rows + row + 1
        for head in range(6):
            scores = k[:seen, head // 3].astype(np.float64) @ q[row, head] / math.sqrt(8)
            weights = np.exp(scores - scores.max())
            expected = weights / weights.sum() @ v[:seen, head // 3]
            np.testing.assert_allclose(out[row, head], expected, rtol=1e-4, atol=1e-5)


def test_pieces_and_steps_equal_one_call() -> None:
    q, k, v = gaussian(3, 30)
    whole = LocalAttention(one_layer(), 30).prefill(0, 0, q, k, v)
    attention = LocalAttention(one_layer(), 30)
    parts = [attention.prefill(0, 0, q[:16], k[:16], v[:16])]
    parts += [attention.prefill(0, 16, q[16:29], k[16:29], v[16:29])]
    parts += [attention.decode(0, 29, q[29:], k[29:], v[29:])]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-5, atol=1e-6)


def test_truncate_forgets_and_no_more() -> None:
    q, k, v = gaussian(4, 20)
    expected = LocalAttention(one_layer(), 20).prefill(0, 0, q, k, v)[12:]
    attention = LocalAttention(one_layer(), 20)
    attention.prefill(0, 0, q[:12], k[:12], v[:12])
    attention.prefill(0, 12, q[:8] + 1, k[:8] - 1, v[:8] + 1)  # other tokens, to be forgotten
    attention.truncate(12)
    out = attention.prefill(0, 12, q[12:], k[12:], v[12:])
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    attention.truncate(50)  # past the end: nothing to forget
    with pytest.raises(ValueError, match="holds 20 tokens, got position 0"):
        attention.prefill(0, 0, q[:1], k[:1], v[:1])


def test_a_wrong_position_and_too_many_tokens_are_refused() -> None:
    q, k, v = gaussian(5, 4)
    attention = LocalAttention(one_layer(), 6)
    with pytest.raises(ValueError, match="layer 0 holds 0 tokens, got position 3"):
        attention.prefill(0, 3, q, k, v)
    attention.prefill(0, 0, q, k, v)
    with pytest.raises(ValueError, match="8 tokens do not fit into max_tokens 6"):
        attention.prefill(0, 4, q, k, v)
    with pytest.raises(ValueError, match="HALVES"):
        LocalAttention(one_layer(Pairing.HALVES), 4)


@pytest.mark.parametrize(
    "unknown",
    [
        {"rope_tables": []},
        {"layer_rope_table": [-1]},
        {"softmax_scale": 0.5},
        {"logit_soft_cap": 50.0},
        {"layer_sliding_window": [4]},
        {"sink_logits": np.zeros((1, 6))},
    ],
)
def test_a_shape_that_asks_for_more_is_refused(unknown: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="LocalAttention"):
        LocalAttention(replace(one_layer(), **unknown), 4)


def test_rotation_depends_on_the_distance_only() -> None:
    (rope,) = one_layer().rope_tables
    q, k, _ = gaussian(6, 1)
    near = rotate(q, turns(rope, 10, 1))[0, 0] @ rotate(k, turns(rope, 3, 1))[0, 0]
    far = rotate(q, turns(rope, 1_000_010, 1))[0, 0] @ rotate(k, turns(rope, 1_000_003, 1))[0, 0]
    np.testing.assert_allclose(far, near, rtol=1e-5)


def test_dimensions_past_the_rotary_ones_stay() -> None:
    q, _, _ = gaussian(7, 2)
    half = RopeTable(np.array([1.0, 0.1]), Pairing.INTERLEAVED, 64)
    turned = rotate(q, turns(half, 5, 2))
    assert np.array_equal(turned[..., 4:], q[..., 4:])
    assert not np.array_equal(turned[..., :4], q[..., :4])
