"""The daemon's selection against tests/bench/selection.py, which shares no code with it, by its output."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import longshore
from longshore.policy import (
    AttentionPolicy,
    DescentParams,
    Extension,
    LayerPolicy,
    Middle,
    PhasePolicy,
    Ranking,
    RopeChoice,
    RopeStyle,
    Selector,
    Stage,
)
from longshore.runner.rope import rotate, turns

sys.path.append(str(Path(__file__).parents[1] / "bench"))
import selection

SINK_TOKENS, WINDOW_TOKENS, BLOCK_ROWS = 256, 256, 64
PREFILLED, DECODED = 2048, 3
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 64
ROPE = longshore.RopeTable.from_base(10000.0, HEAD_DIM, longshore.Pairing.INTERLEAVED, 8192)
SHAPE = longshore.ModelShape(1, HEADS, KV_HEADS, HEAD_DIM, rope_tables=[ROPE])

BOUNDS_EXACT = [("bounds", 64, 512), ("exact", 8, 128)]
DESCENT = [("descent", 256, 1024), ("descent", 32, 512), ("descent", 8, 128)]
STAGES = {
    "bounds": [("bounds", 64, 256)],
    "exact": [("exact", 8, 128)],
    "tokens": [("exact", 1, 64)],
    "bounds-exact": BOUNDS_EXACT,
    "descent": DESCENT,
}


def policy(stages: list[tuple[str, int, int]], ranking: str) -> AttentionPolicy:
    """True positions, every row scored, every stage refreshed at every step."""
    true_positions = RopeChoice(
        within_trained=RopeStyle.ROPE_STYLE_TRUE_POSITIONS, beyond_trained=RopeStyle.ROPE_STYLE_TRUE_POSITIONS
    )
    descent = DescentParams(
        representative=DescentParams.REPRESENTATIVE_FIRST, score=DescentParams.SCORE_FINAL
    )
    wire = [
        Stage(
            selector=Selector.Value(f"SELECTOR_{selector.upper()}"),
            chunk_tokens=chunk,
            keep_tokens=keep,
            refresh_steps=1,
            rope=true_positions,
            descent=descent if selector == "descent" else None,
        )
        for selector, chunk, keep in stages
    ]
    layers = LayerPolicy(middle=Middle.MIDDLE_STAGES, window_tokens=WINDOW_TOKENS, stages=wire)
    return AttentionPolicy(
        sink_tokens=SINK_TOKENS,
        ranking=Ranking.Value(f"RANKING_{ranking.upper()}"),
        probability_power=2 if ranking == "probability_power" else 0,
        query_block=BLOCK_ROWS,
        query_stride=1,
        attention_rope=true_positions,
        prefill=PhasePolicy(rest=layers),
        decode=PhasePolicy(rest=layers),
        extension=Extension.EXTENSION_AT_TRAINED_LENGTH,
    )


def rows(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Heads of different size of logits, so that rankings differ."""
    random = np.random.default_rng(seed)
    tokens = PREFILLED + DECODED
    q, k, v = (random.standard_normal((tokens, heads, HEAD_DIM), dtype=np.float32) for heads in (6, 2, 2))
    return q * np.linspace(0.5, 2.5, HEADS, dtype=np.float32)[:, np.newaxis], k, v


def expected(stages: list[selection.Stage], ranking: str, first: int, end: int, qkv: tuple) -> np.ndarray:
    """Attention of the rows [first, end) of a query block: sink, what the stages keep, window."""
    q, k, v = (array.swapaxes(0, 1) for array in qkv)  # [heads, tokens, head_dim]
    q = q[:, first:end] * np.float32(HEAD_DIM**-0.5)
    middle_end = selection.middle_end(first, SINK_TOKENS, WINDOW_TOKENS, stages[0].chunk_tokens)
    selected = np.arange(0)
    if middle_end > SINK_TOKENS:
        middle = selection.Middle(q.swapaxes(0, 1), k[:, SINK_TOKENS:middle_end])
        firsts = selection.select(middle, stages, selection.Ranking(ranking, 2))[-1]
        selected = SINK_TOKENS + selection.tokens_of(firsts, stages[-1].chunk_tokens)
    attended = np.concatenate([np.arange(min(SINK_TOKENS, end)), selected, np.arange(middle_end, end)])
    group = HEADS // KV_HEADS
    out = np.empty((end - first, HEADS, HEAD_DIM))
    for head in range(HEADS):
        scores = q[head].astype(np.float64) @ k[head // group, attended].T
        scores[attended > np.arange(first, end)[:, np.newaxis]] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[head // group, attended]
    return out


@pytest.mark.parametrize("ranking", selection.RANKINGS)
@pytest.mark.parametrize("name", STAGES)
def test_the_daemon_selects_what_the_reference_selects(daemon, name: str, ranking: str) -> None:
    stages = [selection.Stage(*stage) for stage in STAGES[name]]
    q, k, v = rows(seed=len(name))
    with longshore.connect(daemon.target) as client:
        wire = policy(STAGES[name], ranking)
        with client.open_session(SHAPE, wire, max_tokens=PREFILLED + DECODED) as session:
            out = [session.prefill(0, q[:PREFILLED], k[:PREFILLED], v[:PREFILLED])]
            for row in range(PREFILLED, PREFILLED + DECODED):
                out.append(session.decode(0, q[row : row + 1], k[row : row + 1], v[row : row + 1]))
    found = np.concatenate(out)
    turn = turns(ROPE, 0, PREFILLED + DECODED)
    rotated = rotate(q, turn), rotate(k, turn), v
    blocks = [(first, first + BLOCK_ROWS) for first in range(0, PREFILLED, BLOCK_ROWS)]
    blocks += [(row, row + 1) for row in range(PREFILLED, PREFILLED + DECODED)]
    errors = [
        np.abs(found[first:end] - expected(stages, ranking, first, end, rotated)).max()
        for first, end in blocks
    ]
    # Chunks whose ranks differ by a rounding error may change places, in a block at most.
    assert sorted(errors)[-2] < 1e-4, [f"{error:.1e}" for error in errors]
