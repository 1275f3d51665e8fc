"""SmolLM2-135M-Instruct itself: run with LONGSHORE_MODEL=SmolLM2-135M-Instruct.Q4_1.gguf."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from longshore.runner import Llama
from longshore.runner.chat import chat_prompt

pytestmark = pytest.mark.model

ENGLISH = """\
It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of
foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of
Light, it was the season of Darkness, it was the spring of hope, it was the winter of despair, we
had everything before us, we had nothing before us, we were all going direct to Heaven, we were all
going direct the other way."""


@pytest.fixture(scope="module")
def llama(smollm2_path: Path) -> Llama:
    return Llama.load(smollm2_path, max_tokens=1024)


def answer(llama: Llama, prompt: list[int], max_tokens: int) -> str:
    llama.truncate(0)
    return llama.tokenizer.decode(llama.generate(llama.prefill(prompt), max_tokens))


def test_it_knows_a_capital(llama: Llama) -> None:
    prompt = chat_prompt(llama.tokenizer, "What is the capital of France?")
    assert answer(llama, prompt, 20) == "The capital of France is Paris."


def test_it_counts_on(llama: Llama) -> None:
    assert answer(llama, llama.tokenizer.encode("one, two, three, four,"), 4) == " five, six,"


def test_english_is_likely_and_shuffled_english_is_not(llama: Llama) -> None:
    tokens = llama.tokenizer.encode(ENGLISH)
    shuffled = [int(token) for token in np.random.default_rng(1).permutation(tokens)]
    perplexities = []
    for text in (tokens, shuffled):
        llama.truncate(0)
        perplexities.append(np.exp(-llama.log_probs(text).mean()))
    assert perplexities[0] < 10 and perplexities[1] > 100


def test_the_tokens_are_those_of_the_published_tokenizer(llama: Llama) -> None:
    # checked against Hugging Face's `tokenizers`
    text = "Hello  world, it's 2024!\n\n  Ünïcödé 👍"
    assert llama.tokenizer.encode(text) == EXPECTED
    assert llama.tokenizer.decode(EXPECTED) == text


# fmt: off
EXPECTED = [
    19556, 216, 905, 28, 357, 506, 216, 34, 32, 34, 36, 17,
    8866, 5549, 246, 94, 25972, 83, 7466, 84, 2756, 15107, 235, 231,
]
# fmt: on
