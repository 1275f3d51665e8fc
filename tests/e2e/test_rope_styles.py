"""Every rotary style beyond the trained length, end to end on the real model.

The model is said to be trained to 1,024 tokens, so that 2,048 are beyond and the test is short; what the styles
are worth beyond its real 8,192 is measured by tests/bench/quality.py. The conformance suite judges every style
against fp64; here a style that came out wrong on the way from policy to kernel would make the text a surprise.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from longshore.daemon_attention import DaemonAttention
from longshore.policy import AttentionPolicy, RopeStyle, preset
from longshore.runner import Llama

TRAINED_TOKENS = 1024
TOKENS = 2048
JUDGED = 768  # the last ones, all beyond

# Attention, pruning.
STYLES = [
    ("STREAMING", "RELATIVE"),
    ("INFLLM", "INFLLM"),
    ("DYNAMIC_EXTEND", "DYNAMIC_EXTEND"),
    ("SELF_EXTEND", "SELF_EXTEND"),
    ("TRUE_POSITIONS", "CHUNK_INDEXED"),
    ("STREAMING", "TRUE_POSITIONS"),
]


def style(name: str) -> int:
    return RopeStyle.Value(f"ROPE_STYLE_{name}")


def small_standard(attention: str, pruning: str) -> AttentionPolicy:
    """`standard` with budgets that prune 2,048 tokens: 64 + 256 + 256 of them are attended to. Bounds have
    summaries for few styles, so both stages score keys."""
    policy = preset("standard")
    policy.sink_tokens = 64
    policy.dense_below_tokens = 0
    policy.attention_rope.beyond_trained = style(attention)
    choices = [policy.attention_rope]
    for phase in (policy.prefill, policy.decode):
        phase.rest.window_tokens = 256
        for stage, keep in zip(phase.rest.stages, (768, 256), strict=True):
            stage.selector = phase.rest.stages[1].selector
            stage.keep_tokens = keep
            stage.rope.beyond_trained = style(pruning)
            choices.append(stage.rope)
    for choice in choices:
        choice.self_extend_group = 4
        choice.self_extend_neighbor_tokens = 512
    return policy


def surprise(daemon, model, tokens: list[int], policy: str | AttentionPolicy) -> float:
    """Nats a token of the last JUDGED."""
    tables = [replace(table, trained_tokens=TRAINED_TOKENS) for table in model.shape.rope_tables]
    shape = replace(model.shape, rope_tables=tables)
    attention = DaemonAttention.connect(shape, TOKENS, target=daemon.target, policy=policy)
    with Llama(model, attention) as llama:
        return -float(np.mean(llama.log_probs(tokens)[-JUDGED:]))


@pytest.fixture(scope="module")
def tokens(model, document) -> list[int]:
    return model.tokenizer.encode(document[200_000:212_000])[:TOKENS]


@pytest.fixture(scope="module")
def dense_surprise(daemon, model, tokens) -> float:
    return surprise(daemon, model, tokens, "dense")


@pytest.mark.parametrize(("attention", "pruning"), STYLES, ids=lambda name: name.lower())
def test_text_beyond_the_trained_length_stays_expected(
    daemon, model, tokens, dense_surprise, attention, pruning
) -> None:
    got = surprise(daemon, model, tokens, small_standard(attention, pruning))
    print(f"{attention} {pruning}: {got:.3f} nats a token, dense {dense_surprise:.3f}")
    assert got < dense_surprise + 0.1
