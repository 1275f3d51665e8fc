#!/usr/bin/env python3
"""How much of the middle's attention does a selection keep, at an equal budget of tokens?

Every method of choosing looks at the model's own queries and keys of 8192 tokens of real text, at true
positions, in numpy (selection.py): a reference for the daemon, which it does not use. One selection serves
all heads. Of a (head, row)'s attention to the middle, i.e. the softmax over the middle alone, the share on
selected tokens is averaged over rows, heads and layers:

  prefill  a block of 64 rows selects for itself
  decode   one row selects, for itself and for the rows 3, 7, 15 and 95 steps later; the middle stays

The independent units are the 16 places of the text that are looked at: 95 % intervals are a bootstrap over
them, and the difference of each method from `bounds_exact` under `probability` is paired. Beside the mean
stands the 5th percentile of the 270 heads, each averaged over places. Lines in results/attention_mass.jsonl,
a table on stdout.

  tests/bench/attention_mass.py --model FILE.gguf --text FILE.txt [--state FOLDER]

FOLDER keeps the captured queries and keys and what is done of the study, which goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mass_table
import numpy as np
import numpy.typing as npt
import selection
from capture import Capture, capture
from record import record
from selection import Floats, Middle, Ranking, Stage

from longshore.model_shape import ModelShape
from longshore.runner import LocalAttention, load_model
from longshore.runner.model import Model
from longshore.runner.rope import rotate, turns

TOKENS = 8192
SINK_TOKENS, WINDOW_TOKENS, BLOCK_ROWS = 64, 256, 64
BUDGETS = (256, 512, 1024)
AGES = (0, 3, 7, 15, 95)  # steps since the selection; each a preset's refresh interval less one
FIRST_POSITION = 4096
# Where the middle is whole chunks of 256, the coarsest of any method, it is the same for all methods.
COARSEST_CHUNK, FINEST_FIRST_CHUNK = 256, 64
ROWS_A_BLOCK = 4  # decode positions in each of the places where prefill blocks lie
RESAMPLES = 10_000


@dataclass(frozen=True)
class Method:
    """Stages as (selector, chunk_tokens, times the budget), and the rankings to try them with."""

    name: str
    stages: tuple[tuple[str, int, int], ...]
    rankings: tuple[str, ...]
    query_stride: int = 1
    style: str = "true_positions"  # of the rotary ids while pruning; the mass is that of true positions

    def at(self, budget_tokens: int) -> list[Stage]:
        return [Stage(selector, chunk, times * budget_tokens) for selector, chunk, times in self.stages]


BOUNDS_EXACT = (("bounds", 64, 4), ("exact", 8, 1))  # standard: 8192 -> 2048
METHODS = (
    Method("bounds_exact", BOUNDS_EXACT, selection.RANKINGS),
    Method("bounds_exact_stride4", BOUNDS_EXACT, ("probability",), query_stride=4),
    Method("bounds_exact_relative", BOUNDS_EXACT, ("probability", "probability_sum"), style="relative"),
    Method("exact", (("exact", 8, 1),), selection.RANKINGS),
    Method("bounds", (("bounds", 64, 1),), ("probability", "probability_sum", "score_max")),
    # paper-3k: 32768 -> 8192 -> 2048
    Method(
        "descent",
        (("descent", 256, 16), ("descent", 32, 4), ("descent", 8, 1)),
        ("score_max", "probability", "probability_sum"),
    ),
    # The same with no more candidates in the finer stages than bounds_exact has.
    Method(
        "descent_narrow",
        (("descent", 256, 4), ("descent", 32, 2), ("descent", 8, 1)),
        ("score_max", "probability"),
    ),
    Method("block_mean", (("mean", 64, 1),), ("probability", "probability_sum")),
    Method("block_mean_8", (("mean", 8, 1),), ("probability", "probability_sum")),
    # The largest mass that any set of chunks of this size could have: see selection.mass.
    Method("best_chunks_64", (("mass", 64, 1),), ("probability_sum",)),
    Method("best_chunks_8", (("mass", 8, 1),), ("probability_sum",)),
    Method("best_tokens", (("mass", 1, 1),), ("probability_sum",)),
)
REFERENCE = ("bounds_exact", "probability")


@dataclass(frozen=True)
class Case:
    """One figure: which method, at which budget, for which rows."""

    kind: str  # prefill or decode
    budget_tokens: int
    method: str
    ranking: str
    age_steps: int = 0

    @property
    def id(self) -> str:
        # Of the best possible set the ranking is no choice.
        ranking = "" if self.method.startswith("best") else f"_{self.ranking}"
        age = f"_age{self.age_steps}" if self.kind == "decode" else ""
        return f"mass_{self.kind}_{self.budget_tokens}_{self.method}{ranking}{age}"

    def reference(self) -> Case:
        return Case(self.kind, self.budget_tokens, *REFERENCE, self.age_steps)


def block_positions() -> list[int]:
    """First rows of the query blocks whose middle is whole chunks of COARSEST_CHUNK."""
    first = SINK_TOKENS + WINDOW_TOKENS
    positions = range(first, TOKENS - BLOCK_ROWS - max(AGES), COARSEST_CHUNK)
    return [position for position in positions if position >= FIRST_POSITION]


def decode_positions() -> list[int]:
    """Rows in the same places, ROWS_A_BLOCK spread over each: L = position + 1 is in the block."""
    random = np.random.default_rng(2502)
    step = BLOCK_ROWS // ROWS_A_BLOCK
    return [
        block - 1 + start + int(random.integers(step))
        for block in block_positions()
        for start in range(0, BLOCK_ROWS, step)
    ]


class Layer:
    """One layer's rotated queries and keys, by the style of their rotary ids.

    queries  [tokens, heads, head_dim]      scaled
    keys     [kv_heads, tokens, head_dim]   in that order in memory, for the matrix products
    """

    def __init__(self, captured: Capture, shape: ModelShape, layer: int) -> None:
        rope = shape.rope_tables[0]
        scale = np.float32(shape.head_dim**-0.5)
        queries, keys = captured.queries(layer), captured.keys(layer)
        own = turns(rope, 0, TOKENS)
        # `relative`: every key W behind the query. Any common shift gives the same scores.
        behind = turns(rope, WINDOW_TOKENS, 1)
        self._queries = {
            "true_positions": rotate(queries, own) * scale,
            "relative": rotate(queries, behind) * scale,
        }
        self._keys = {
            "true_positions": np.ascontiguousarray(rotate(keys, own).swapaxes(0, 1)),
            "relative": np.ascontiguousarray(keys.swapaxes(0, 1)),
        }

    def middle(self, position: int, rows: Sequence[int], style: str = "true_positions") -> Middle:
        """The middle of a block that begins at `position`, as the queries at `rows` see it."""
        chunks = (FINEST_FIRST_CHUNK, COARSEST_CHUNK)
        ends = {selection.middle_end(position, SINK_TOKENS, WINDOW_TOKENS, chunk) for chunk in chunks}
        if len(ends) != 1:
            raise ValueError(f"at {position} the middle depends on the chunk size: it ends at {ends}")
        return Middle(self._queries[style][rows], self._keys[style][:, SINK_TOKENS : ends.pop()])

    def middle_share(self, position: int, middle: Middle) -> Floats:
        """Share of all attention of the row at `position` that the middle has: [heads]."""
        queries, keys = self._queries["true_positions"], self._keys["true_positions"]
        everything = Middle(queries[[position]], keys[:, : position + 1]).logits[:, 0]
        of_middle = selection.log_sum_exp(middle.logits[:, 0], axis=1)
        return np.exp(of_middle - selection.log_sum_exp(everything, axis=1))


def selections(
    layer: Layer, kind: str, position: int, rows: Sequence[int]
) -> Iterator[tuple[int, Method, str, selection.Ints]]:
    """(budget, method, ranking, selected tokens) of every method for the block at `position`."""
    # Of one row every row is scored, whatever the stride.
    methods = [method for method in METHODS if kind == "prefill" or method.query_stride == 1]
    views = {(method.style, method.query_stride) for method in methods}
    middles = {
        (style, stride): layer.middle(position, rows[::-1][::stride], style) for style, stride in views
    }
    for method in methods:
        for ranking in method.rankings:
            for budget in BUDGETS:
                stages = method.at(budget)
                kept = selection.select(middles[method.style, method.query_stride], stages, Ranking(ranking))
                yield budget, method, ranking, selection.tokens_of(kept[-1], stages[-1].chunk_tokens)


def study_layer(layer: Layer) -> dict[str, Floats]:
    """Every case's mass, [positions, heads] by its id, and the middle's own share of the attention."""
    found: dict[str, list[Floats]] = {}
    for block in block_positions():
        rows = range(block, block + BLOCK_ROWS)
        middle = layer.middle(block, rows)
        for budget, method, ranking, tokens in selections(layer, "prefill", block, rows):
            kept = selection.mass_kept(middle, tokens).mean(axis=1)
            found.setdefault(Case("prefill", budget, method.name, ranking).id, []).append(kept)
    for position in decode_positions():
        later = layer.middle(position, [position + age for age in AGES])
        chooser = layer.middle(position, [position])
        found.setdefault("middle_share", []).append(layer.middle_share(position, chooser))
        for budget, method, ranking, tokens in selections(layer, "decode", position, [position]):
            kept = selection.mass_kept(later, tokens)  # [heads, ages]
            for column, age in enumerate(AGES):
                case = Case("decode", budget, method.name, ranking, age)
                found.setdefault(case.id, []).append(kept[:, column])
    return {key: np.stack(values) for key, values in found.items()}


def study(captured: Capture, shape: ModelShape, state: Path) -> dict[str, Floats]:
    """Of every layer: [positions, layers, heads] by case id. Layers that `state` holds are not done again."""
    # Everything that decides the result: another key, another study.
    code = [inspect.getsource(part) for part in (selection, Layer, selections, study_layer)]
    settings = (METHODS, BUDGETS, AGES, SINK_TOKENS, WINDOW_TOKENS, block_positions(), decode_positions())
    key = hashlib.sha256(repr((captured.folder.name, code, settings)).encode()).hexdigest()[:12]
    folder = state / f"mass-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    layers = []
    for index in range(shape.num_layers):
        file = folder / f"layer{index:02}.npz"
        if not file.exists():
            unfinished = file.with_suffix(".unfinished.npz")
            np.savez(unfinished, **study_layer(Layer(captured, shape, index)))
            unfinished.rename(file)
            print(f"layer {index} of {shape.num_layers} studied", flush=True)
        with np.load(file) as done:
            layers.append(dict(done))
    return {key: np.stack([layer[key] for layer in layers], axis=1) for key in layers[0]}


class Bootstrap:
    """Figures with 95 % intervals from resampled places, the same resamples for whatever is compared.

    A place is a query block. Decode positions of one block are neighbours, so they are drawn together.
    """

    def __init__(self, places: int) -> None:
        drawn = np.random.default_rng(8192).integers(places, size=(RESAMPLES, places))
        counts = np.stack([np.bincount(sample, minlength=places) for sample in drawn])
        self._places = places
        self._weights = counts.astype(np.float32) / places  # [resamples, places]

    def mean(self, values: Floats) -> tuple[float, list[float]]:
        """Mean of values [positions, ...], positions in the order of their places."""
        of_places = values.reshape(self._places, -1).mean(axis=1)
        return float(of_places.mean()), _interval(self._weights @ of_places)

    def worst_heads(self, values: Floats) -> tuple[float, list[float]]:
        """5th percentile over heads of their means over positions; values [positions, layers, heads]."""
        layers, heads = values.shape[1:]
        of_heads = values.reshape(self._places, -1, layers * heads).mean(axis=1)
        worst = np.percentile(self._weights @ of_heads, 5, axis=1)
        return float(np.percentile(of_heads.mean(axis=0), 5)), _interval(worst)


def _interval(resampled: npt.NDArray[np.floating]) -> list[float]:
    return [float(edge) for edge in np.percentile(resampled, [2.5, 97.5])]


def cases() -> Iterator[Case]:
    """What is recorded: every age at the smallest budget, fresh selections at the others."""
    for method in METHODS:
        for ranking in method.rankings:
            for budget in BUDGETS:
                yield Case("prefill", budget, method.name, ranking)
                if method.query_stride == 1:
                    for age in AGES if budget == BUDGETS[0] else AGES[:1]:
                        yield Case("decode", budget, method.name, ranking, age)


def summary(case: Case, found: dict[str, Floats], bootstrap: Bootstrap) -> dict[str, object]:
    """A line's figures, in percent."""
    values = 100 * found[case.id]
    mean, interval = bootstrap.mean(values)
    worst, worst_interval = bootstrap.worst_heads(values)
    difference, difference_interval = bootstrap.mean(values - 100 * found[case.reference().id])
    return {
        "id": case.id,
        "value": mean,
        "unit": "% of the middle's attention",
        "half_interval_95": (interval[1] - interval[0]) / 2,
        "interval_95": interval,
        "difference": difference,
        "difference_interval_95": difference_interval,
        "worst_heads": worst,
        "worst_heads_interval_95": worst_interval,
        **case.__dict__,
    }


def run(model: Model, tokens: Sequence[int], state: Path, text: str = "text") -> list[dict[str, object]]:
    """Studies the first TOKENS of `tokens`; appends to results/attention_mass.jsonl and returns the lines.

    state  a folder for what can be used again, see above
    text   what the tokens are, for people
    """
    if len(tokens) < TOKENS:
        raise ValueError(f"{text} has {len(tokens)} tokens, {TOKENS} are needed")
    shape = model.shape
    captured = capture(model, tokens[:TOKENS], state, "local, dense", lambda: LocalAttention(shape, TOKENS))
    found = study(captured, shape, state)
    setting = (
        f"{model.name}, {TOKENS} tokens of {text}, S {SINK_TOKENS}, W {WINDOW_TOKENS}, true positions, "
        f"{shape.num_layers} layers of {shape.num_heads} heads"
    )
    places = len(block_positions())
    bootstrap = Bootstrap(places)
    shapes = {
        "prefill": f"{setting}, {places} query blocks from {FIRST_POSITION} on",
        "decode": f"{setting}, {len(decode_positions())} rows in {places} places from {FIRST_POSITION} on",
    }
    share, interval = bootstrap.mean(100 * found["middle_share"])
    lines: list[dict[str, object]] = [
        {
            "id": "mass_decode_middle_share",
            "value": share,
            "unit": "% of all attention",
            "half_interval_95": (interval[1] - interval[0]) / 2,
            "shapes": shapes["decode"],
        }
    ]
    for case in cases():
        lines.append({**summary(case, found, bootstrap), "shapes": shapes[case.kind]})
    return [record("attention_mass.jsonl", **line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--text", required=True, type=Path)
    parser.add_argument("--state", type=Path, default=Path.home() / ".cache/longshore/quality")
    options = parser.parse_args()
    model = load_model(options.model)
    tokens = model.tokenizer.encode(options.text.read_text())
    print(mass_table.table(run(model, tokens, options.state, options.text.name)))


if __name__ == "__main__":
    main()
