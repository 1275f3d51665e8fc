"""Draws results/attention_mass.jsonl: what fresh selections keep, and what is left of it as they grow old."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from mass_table import Lines
from matplotlib.axes import Axes

# Of a method: its name in the figure, its colour, and the ranking that stands for it in the second panel.
METHODS = {
    "best_tokens": ("best possible tokens", "#3b3b3b", "probability_sum"),
    "best_chunks_8": ("best possible 8-token chunks", "#7a7a7a", "probability_sum"),
    "best_chunks_64": ("best possible 64-token chunks", "#b0b0b0", "probability_sum"),
    "exact": ("exact 8", "#2e8b57", "probability"),
    "bounds_exact": ("bounds 64, exact 8", "#1b6ca8", "probability"),
    "bounds_exact_stride4": ("... every 4th row scored", "#1b6ca8", None),
    "bounds_exact_relative": ("... pruned at `relative` ids", "#1b6ca8", None),
    "bounds": ("bounds 64", "#7fb2d9", "probability"),
    "block_mean_8": ("mean key of 8", "#b58cc4", "probability"),
    "block_mean": ("mean key of 64", "#7d5a8c", "probability"),
    "descent": ("descent 256, 32, 8", "#d1782b", "score_max"),
    "descent_narrow": ("... stages of 4, 2, 1 budgets", "#d1782b", None),
}
PREFILL_ALPHA = 0.45


def _draw_fresh(axis: Axes, found: Lines, budget: int) -> None:
    """A pair of bars for each method and ranking: decode above, prefill below."""
    methods = sorted(found.methods, key=lambda method: list(METHODS).index(method[0]))
    labels = []
    place = 0.0
    places = []
    before = None
    for method in methods:
        place += 1.35 if before not in (None, method[0]) else 1.0
        before = method[0]
        name, colour, _ = METHODS[method[0]]
        labels.append(name if method[0].startswith("best") else f"{name} · {method[1]}")
        places.append(place)
        for kind, shift, alpha in (("decode", -0.2, 1.0), ("prefill", 0.2, PREFILL_ALPHA)):
            line = found.of(kind, budget, method)
            if line is None:
                continue
            low, high = line["interval_95"]
            axis.barh(place + shift, line["value"], height=0.38, color=colour, alpha=alpha, lw=0)
            axis.plot([low, high], [place + shift] * 2, color="black", lw=1.1)
            axis.text(high + 0.7, place + shift, f"{line['value']:.0f}", va="center", size=7, color="#444444")
    axis.set_yticks(places, labels, size=8)
    axis.set_ylim(place + 0.8, 0.2)
    axis.set_xlim(0, 80)
    axis.set_xlabel("% of the middle's attention kept; line: 95 % interval")
    axis.set_title(f"fresh selections of {budget} tokens\ndecode (full colour) and prefill (pale)", size=10)
    axis.grid(axis="x", color="#e6e6e6", lw=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _draw_ages(axis: Axes, found: Lines, budget: int) -> None:
    """A line a method. Ages are places and not distances: what matters happens in the first few steps."""
    places = range(len(found.ages))
    for method, (name, colour, ranking) in METHODS.items():
        if ranking is None:
            continue
        lines = [found.of("decode", budget, (method, ranking), age) for age in found.ages]
        values = [line["value"] for line in lines]
        edges = [[line["interval_95"][side] for line in lines] for side in (0, 1)]
        axis.fill_between(places, *edges, color=colour, alpha=0.12, lw=0)
        label = name if method.startswith("best") else f"{name} · {ranking}"
        axis.plot(places, values, "o-", color=colour, ms=4, lw=1.6, label=label)
    axis.set_xticks(places, ["fresh", *(str(age) for age in found.ages[1:])])
    axis.set_xlabel("steps since the selection (decode); band: 95 % interval")
    axis.set_ylim(bottom=0)
    axis.set_title(f"as a selection of {budget} tokens grows old", size=10)
    axis.grid(axis="y", color="#e6e6e6", lw=0.7)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7.5, frameon=False, loc="upper right")


def write_figure(lines: Sequence[dict], results: Path) -> list[str]:
    """Returns the names of the files."""
    if not lines:
        return []
    found = Lines(lines)
    budget = found.budgets[0]
    figure, (fresh, ages) = plt.subplots(
        ncols=2, figsize=(11.5, 7.6), layout="constrained", width_ratios=[1.15, 1]
    )
    _draw_fresh(fresh, found, budget)
    _draw_ages(ages, found, budget)
    model = found.share["shapes"].split(",")[0]
    figure.suptitle(f"How much of the middle's attention does a selection keep?\n{model}", size=12)
    figure.savefig(results / "attention_mass.png", dpi=100)
    plt.close(figure)
    return ["attention_mass.png"]
