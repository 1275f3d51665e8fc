"""The tiny model's forward pass against the float64 reference, and what is built on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reference_llama import reference_logits
from tiny_model import HEAD_DIM, TOKENS, Weights, write_tiny_model

from longshore.runner import Llama, LocalAttention, load_model
from longshore.runner.llama import pick_token

Tiny = tuple[Path, Weights]
PROMPT = [int(token) for token in np.random.default_rng(8).integers(0, len(TOKENS), 100)]


def close_to(expected: np.ndarray) -> object:
    return pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.fixture(scope="module")
def expected(tiny: Tiny) -> np.ndarray:
    """The reference's logits [100, vocabulary] of PROMPT."""
    return reference_logits(tiny[1], PROMPT)


def test_logits_of_every_row_equal_the_reference(tiny: Tiny, expected: np.ndarray) -> None:
    logits = np.concatenate(list(Llama.load(tiny[0]).prefill_logits(PROMPT)))
    assert logits.dtype == np.float32
    assert logits == close_to(expected)


def test_pieces_then_single_tokens_equal_the_reference(tiny: Tiny, expected: np.ndarray) -> None:
    model = load_model(tiny[0])
    llama = Llama(model, LocalAttention(model.shape, 100), piece=64)
    done: list[int] = []
    assert llama.prefill(PROMPT[:10]) == close_to(expected[9])
    assert llama.prefill(PROMPT[10:97], on_piece=done.append) == close_to(expected[96])
    assert done == [54, 87]  # the cut falls on position 64
    assert llama.decode(PROMPT[97]) == close_to(expected[97])
    assert llama.decode(PROMPT[98]) == close_to(expected[98])
    assert llama.position == 99


def test_a_truncated_prefix_is_used_again(tiny: Tiny, expected: np.ndarray) -> None:
    llama = Llama.load(tiny[0])
    llama.prefill([*PROMPT[:70], 5, 6, 7])
    llama.truncate(70)
    assert llama.position == 70
    assert llama.prefill(PROMPT[70:]) == close_to(expected[99])
    with pytest.raises(ValueError, match="cannot truncate 100 tokens to 101"):
        llama.truncate(101)


def test_rope_factors_of_the_file_are_used(tmp_path: Path, expected: np.ndarray) -> None:
    factors = {"rope_freqs.weight": np.linspace(1, 8, HEAD_DIM // 2, dtype=np.float32)}
    weights = write_tiny_model(tmp_path / "scaled.gguf", extra_tensors=factors)
    scaled = reference_logits(weights, PROMPT[:40])
    assert Llama.load(tmp_path / "scaled.gguf").prefill(PROMPT[:40]) == close_to(scaled[39])
    assert np.abs(scaled[39] - expected[39]).max() > 0.01  # the factors do matter here


def test_log_probs_are_those_of_the_next_tokens(tiny: Tiny, expected: np.ndarray) -> None:
    log_probs = expected - np.log(np.exp(expected).sum(axis=1, keepdims=True))
    next_tokens = [log_probs[i, PROMPT[i + 1]] for i in range(99)]
    assert Llama.load(tiny[0]).log_probs(PROMPT) == close_to(np.array(next_tokens))


def test_generate_is_greedy_and_stops_unseen(tiny: Tiny) -> None:
    llama = Llama.load(tiny[0])
    generated = list(llama.generate(llama.prefill(PROMPT[:20]), max_tokens=12))
    assert llama.position == 20 + 11  # the last token is not appended
    tokens = PROMPT[:20]
    for token in generated:
        assert token == reference_logits(tiny[1], tokens)[-1].argmax()
        tokens = [*tokens, token]
    logits = np.zeros(len(TOKENS), dtype=np.float32)
    logits[2] = 1  # <|im_end|>
    assert list(llama.generate(logits, max_tokens=12)) == []


def test_sampling_follows_the_temperature_and_the_seed() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.7], dtype=np.float32))
    rng = np.random.default_rng(1)
    assert pick_token(logits, 0.0, rng) == 2
    counts = np.bincount([pick_token(logits, 1.0, rng) for _ in range(4000)]) / 4000
    np.testing.assert_allclose(counts, [0.1, 0.2, 0.7], atol=0.03)
    first, second = np.random.default_rng(5), np.random.default_rng(5)
    for _ in range(20):
        assert pick_token(logits, 1.0, first) == pick_token(logits, 1.0, second)


def test_nothing_to_prefill_and_odd_pieces_are_refused(tiny: Tiny) -> None:
    model = load_model(tiny[0])
    with pytest.raises(ValueError, match="no tokens"):
        Llama(model, LocalAttention(model.shape, 10)).prefill([])
    for piece in (0, -64, 100):
        with pytest.raises(ValueError, match=f"piece {piece} is not a positive multiple of 64"):
            Llama(model, LocalAttention(model.shape, 10), piece)
