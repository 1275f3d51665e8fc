"""The runner against the daemon, on a real model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from longshore.attention import Attention
from longshore.daemon_attention import DaemonAttention
from longshore.runner import Llama, LocalAttention

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from passkey import Prompts, answers  # noqa: E402

ANSWER_TOKENS = 200


def greedy(model, attention: Attention, prompt: list[int]) -> list[int]:
    with Llama(model, attention) as llama:
        return list(llama.generate(llama.prefill(prompt), ANSWER_TOKENS))


@pytest.mark.parametrize("prompt_tokens", [500, 2000, 6000])
def test_dense_gives_the_tokens_of_local_attention(daemon, model, document, prompt_tokens) -> None:
    # Raw text from the middle of the book, so that the answer does not stop early.
    tokens = model.tokenizer.encode(document[200_000:240_000])
    prompt = tokens[:prompt_tokens]
    room = prompt_tokens + ANSWER_TOKENS
    local = greedy(model, LocalAttention(model.shape, room), prompt)
    remote = greedy(
        model, DaemonAttention.connect(model.shape, room, target=daemon.target, policy="dense"), prompt
    )
    assert len(local) > 50, "the model stopped early: choose another prompt"
    assert remote == local


def test_standard_finds_a_passkey_beyond_the_trained_length(daemon, model) -> None:
    # The hardest place: a needle that lies inside the trained length and is asked for from beyond it.
    # tests/bench/passkey.py draws keys and depths; a test repeats.
    length, depth, key = 12288, 0.5, 20817
    assert length > model.shape.rope_tables[0].trained_tokens
    prompts = Prompts(model.tokenizer, length, [depth])
    attention = DaemonAttention.connect(
        model.shape, length + 64, target=daemon.target, policy="standard", dense_below_tokens=0
    )
    with Llama(model, attention, piece=4096) as llama:
        (answer,) = answers(llama, prompts, [key], set())
    assert answer.right, f"depth {depth}, key {key}: {answer.text!r}"
