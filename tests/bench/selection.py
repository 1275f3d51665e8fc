"""The method's selection in numpy, from engine/README.md's text alone: selectors, rankings, stages, regions.

A reference to study what a selection keeps, and to draw it. It shares no code with the daemon, looks at every
score that it needs at once, and knows no rotary embedding: queries and keys come to it already rotated.

Arrays are float32. A middle's tokens are counted from its own beginning, position S.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

RANKINGS = ("probability", "probability_sum", "probability_power", "score_max")


@dataclass(frozen=True)
class Stage:
    """Scores its candidates in chunks of chunk_tokens and keeps the best keep_tokens of them."""

    selector: str
    chunk_tokens: int
    keep_tokens: int

    def __post_init__(self) -> None:
        if self.selector not in SELECTORS:
            raise ValueError(f"selector {self.selector!r} is not one of {', '.join(SELECTORS)}")
        if self.chunk_tokens < 1 or self.keep_tokens % self.chunk_tokens != 0:
            raise ValueError(
                f"keep_tokens {self.keep_tokens} is not a multiple of chunk_tokens {self.chunk_tokens}"
            )


@dataclass(frozen=True)
class Ranking:
    """How scores of all heads and rows become one score a chunk; power is probability_power's a."""

    name: str = "probability"
    power: float = 2.0

    def __post_init__(self) -> None:
        if self.name not in RANKINGS:
            raise ValueError(f"ranking {self.name!r} is not one of {', '.join(RANKINGS)}")


def middle_end(first_position: int, sink_tokens: int, window_tokens: int, chunk_tokens: int) -> int:
    """M = S + floor((L - W - S) / c) c with L = first_position + 1, and S where that is smaller."""
    older = first_position + 1 - window_tokens - sink_tokens
    return sink_tokens + max(0, older // chunk_tokens) * chunk_tokens


class Middle:
    """What one query block sees of the tokens between sink and window.

    queries  [rows, heads, head_dim]         rotated, and scaled by 1 / sqrt(head_dim)
    keys     [kv_heads, tokens, head_dim]    rotated
    logits   [heads, rows, tokens]           q.k of every pair
    """

    def __init__(self, queries: Floats, keys: Floats) -> None:
        rows, heads, head_dim = queries.shape
        kv_heads = len(keys)
        if heads % kv_heads != 0 or keys.shape[2] != head_dim:
            raise ValueError(f"queries {queries.shape} do not fit keys {keys.shape}")
        self._keys = keys
        # Heads of one KV head lie side by side: a product a KV head.
        self._queries = queries.swapaxes(0, 1).reshape(kv_heads, heads // kv_heads * rows, head_dim)
        self._by_head = (heads, rows, -1)
        self.logits = self._times(keys)
        self._scores: dict[tuple[str, int], Floats] = {}

    @property
    def tokens(self) -> int:
        return self.logits.shape[2]

    def scores(self, selector: str, chunk_tokens: int) -> Floats:
        """Of all whole chunks: [heads, rows, chunks]. Here no chunk's score depends on the others."""
        key = (selector, chunk_tokens)
        if key not in self._scores:
            if self.tokens % chunk_tokens != 0:
                raise ValueError(f"{self.tokens} tokens are not whole chunks of {chunk_tokens}")
            self._scores[key] = SELECTORS[selector](self, chunk_tokens)
        return self._scores[key]

    @cached_property
    def probabilities(self) -> Floats:
        """exp(logit) / sum over the middle of exp(logit): [heads, rows, tokens]."""
        return np.exp(self.logits - log_sum_exp(self.logits, axis=2, keepdims=True))

    def in_chunks(self, chunk_tokens: int) -> Floats:
        """The logits as [heads, rows, chunks, chunk_tokens]."""
        return self.logits.reshape(*self.logits.shape[:2], -1, chunk_tokens)

    def bounds(self, chunk_tokens: int) -> Floats:
        """sum over dims of max(q_d min_d, q_d max_d): a positive q_d meets the maximum, else the minimum."""
        chunks = self._keys.reshape(len(self._keys), -1, chunk_tokens, self._keys.shape[2])
        low, high = chunks.min(axis=2), chunks.max(axis=2)
        return self._times(high, np.maximum(self._queries, 0)) + self._times(
            low, np.minimum(self._queries, 0)
        )

    def _times(self, keys: Floats, queries: Floats | None = None) -> Floats:
        product = (self._queries if queries is None else queries) @ keys.swapaxes(1, 2)
        return product.reshape(self._by_head)


def exact(middle: Middle, chunk_tokens: int) -> Floats:
    """max over the chunk's keys of q.k."""
    return middle.in_chunks(chunk_tokens).max(axis=3)


def mean(middle: Middle, chunk_tokens: int) -> Floats:
    """q . the chunk's mean key, which is the mean of q.k."""
    return middle.in_chunks(chunk_tokens).mean(axis=3)


def mass(middle: Middle, chunk_tokens: int) -> Floats:
    """log sum over the chunk's keys of exp(q.k): no selector can do better under `probability_sum`.

    With that ranking a chunk's score is the log of its true summed probability, so that the kept set is the
    best possible set of chunks on average over heads and rows; of tokens with chunks of one token.
    """
    return log_sum_exp(middle.in_chunks(chunk_tokens), axis=3)


def descent(middle: Middle, chunk_tokens: int) -> Floats:
    """InfiniteHiP's SelectRep (arXiv 2502.08910), one way down a chunk for each head and query block.

    Tokens [first, last] are halved at m = floor((first + last) / 2): branches [first, m - 1] and [m, last].
    A branch's score is the maximum over the block's rows of q.k(its first token); a tie goes left. Where the
    left branch is empty the way ends, and each row's score is its q.k of the token that is left.
    """
    best = middle.logits.max(axis=1)  # [heads, tokens]
    heads, tokens = best.shape
    first = np.tile(np.arange(0, tokens, chunk_tokens), (heads, 1))  # [heads, chunks]
    last = first + chunk_tokens - 1
    while True:
        half = (first + last) // 2
        goes_on = half > first
        if not goes_on.any():
            return np.take_along_axis(middle.logits, first[:, np.newaxis, :], axis=2)
        left = np.take_along_axis(best, first, axis=1) >= np.take_along_axis(best, half, axis=1)
        last = np.where(goes_on & left, half - 1, last)
        first = np.where(goes_on & ~left, half, first)


SELECTORS: dict[str, Callable[[Middle, int], Floats]] = {
    "bounds": Middle.bounds,
    "exact": exact,
    "descent": descent,
    "mean": mean,
    "mass": mass,
}


def log_sum_exp(x: Floats, axis: int | tuple[int, ...], keepdims: bool = False) -> Floats:
    peak = x.max(axis=axis, keepdims=True)
    total = np.log(np.exp(x - peak).sum(axis=axis, keepdims=True)) + peak
    return total if keepdims else np.squeeze(total, axis=axis)


def rank(scores: Floats, ranking: Ranking) -> Floats:
    """Scores [heads, rows, candidates] -> one a candidate: [candidates].

    With l = score - log-sum-exp of the (head, row)'s scores over the candidates, over heads and rows:

      probability        max l
      probability_sum    log sum exp(l)
      probability_power  log sum exp(a l)
      score_max          max score
    """
    if ranking.name == "score_max":
        return scores.max(axis=(0, 1))
    log_probabilities = scores - log_sum_exp(scores, axis=2, keepdims=True)
    if ranking.name == "probability":
        return log_probabilities.max(axis=(0, 1))
    power = ranking.power if ranking.name == "probability_power" else 1.0
    return log_sum_exp(np.float32(power) * log_probabilities, axis=(0, 1))


def keep_best(ranks: Floats, keep: int) -> Ints:
    """Indices of the `keep` highest ranks, ascending; of equal ones the lower."""
    return np.sort(np.argsort(-ranks, kind="stable")[:keep])


def select(middle: Middle, stages: Sequence[Stage], ranking: Ranking) -> list[Ints]:
    """First tokens of the chunks that each stage keeps, ascending, coarse to fine.

    The first stage chooses among all chunks of the middle, a later one among the pieces of what was kept.
    """
    kept: list[Ints] = []
    for number, stage in enumerate(stages):
        if number == 0:
            candidates = np.arange(0, middle.tokens, stage.chunk_tokens)
        else:
            coarse = stages[number - 1].chunk_tokens
            if coarse % stage.chunk_tokens != 0:
                raise ValueError(f"chunk_tokens {stage.chunk_tokens} does not divide {coarse}")
            candidates = (kept[-1][:, np.newaxis] + np.arange(0, coarse, stage.chunk_tokens)).ravel()
        keep = stage.keep_tokens // stage.chunk_tokens
        if keep < len(candidates):
            scores = middle.scores(stage.selector, stage.chunk_tokens)
            chunks = candidates // stage.chunk_tokens
            candidates = candidates[keep_best(rank(scores[:, :, chunks], ranking), keep)]
        kept.append(candidates)
    return kept


def tokens_of(firsts: Ints, chunk_tokens: int) -> Ints:
    """All tokens of the chunks that begin at `firsts`."""
    return (firsts[:, np.newaxis] + np.arange(chunk_tokens)).ravel()


def mass_kept(middle: Middle, tokens: Ints) -> Floats:
    """Share of each (head, row)'s attention to the middle that falls on `tokens`: [heads, rows]."""
    return middle.probabilities[:, :, tokens].sum(axis=2)
