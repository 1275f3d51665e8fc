#!/usr/bin/env python3
"""Draws the recorded results as figures in results/, and writes the tables of results/README.md.

Of each id only the latest line counts. A file that is not there is left out.

  pip install './client/python[bench]'
  tests/bench/plot.py [--results FOLDER]
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mass_table
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import plot_gpu
import plot_mass
import plot_quality
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from record import RESULTS, latest

TABLES = [
    *("passkey.jsonl", "perplexity.jsonl", "cpu_decode.jsonl", "quickstart.jsonl"),
    *("service.jsonl", "cuda_decode.jsonl", "cuda_prefill.jsonl", "cuda_token.jsonl", "cuda_dense.jsonl"),
]
# A policy keeps its place and colour in every figure. Others come after these, in grey.
COLOURS = {"standard": "#1b6ca8", "streaming": "#d1782b", "dense": "#4d4d4d"}
OTHER_COLOUR = "#9a9a9a"
RIGHT_COLOUR, WRONG_COLOUR = "#2e8b57", "#ecebe8"


@dataclass(frozen=True)
class Run:
    """A line of passkey.jsonl or perplexity.jsonl, id NAME_LENGTHk_PRESET or NAME_LENGTHk_PRESET_OVERRIDE."""

    preset: str
    override: str
    tokens: int
    line: dict

    @classmethod
    def of(cls, line: dict) -> Run:
        found = re.fullmatch(r"[a-z]+_\d+k_([a-z]+)_?(.*)", line["id"])
        tokens = re.search(r"(\d+) tokens", line["shapes"])
        if found is None or tokens is None:
            raise ValueError(f"{line['id']}: no length and policy in the id, or no tokens in its shapes")
        return cls(found[1], found[2], int(tokens[1]), line)

    @property
    def label(self) -> str:
        return "\n".join(filter(None, [self.preset, self.override.replace("_", " ")]))

    @property
    def place(self) -> tuple[int, str, str]:
        presets = list(COLOURS)
        known = self.preset in presets
        return presets.index(self.preset) if known else len(presets), self.preset, self.override


def by_length(file: Path) -> dict[int, list[Run]]:
    """The latest runs of each length, ascending, each in the policies' order."""
    runs = sorted((Run.of(line) for line in latest(file)), key=lambda run: run.place)
    return {
        length: [run for run in runs if run.tokens == length] for length in sorted({r.tokens for r in runs})
    }


def depths(run: Run) -> list[str]:
    """Where in the text the key was, as passkey.py was told."""
    return re.search(r"depths ([\d.,]+?),? ", run.line["shapes"])[1].split(",")


def right(run: Run) -> list[bool]:
    """Of each depth, whether the answer held the key. The first lines recorded only the share."""
    share = run.line["value"]
    if "right" not in run.line and share not in (0, 1):
        raise ValueError(f"{run.line['id']}: says which share was right, but not which; run it again")
    return run.line.get("right", [share == 1] * len(depths(run)))


def draw_passkey(axis: Axes, runs: list[Run]) -> None:
    """A row for each policy, a box for each depth: did the answer hold the key?"""
    columns = max(len(depths(run)) for run in runs)
    for row, run in enumerate(runs):
        for column, hit in enumerate(right(run)):
            colour = RIGHT_COLOUR if hit else WRONG_COLOUR
            axis.add_patch(plt.Rectangle((column + 0.03, row + 0.04), 0.94, 0.92, color=colour))
            style = {"color": "white", "weight": "bold"} if hit else {"color": "#77736c"}
            axis.text(
                column + 0.5,
                row + 0.5,
                "right" if hit else "wrong",
                ha="center",
                va="center",
                size=9,
                **style,
            )
        axis.text(columns + 0.12, row + 0.5, f"{sum(right(run))} of {len(right(run))}", va="center", size=10)
    longest = max(runs, key=lambda run: len(depths(run)))
    axis.set(xlim=(0, columns + 0.9), ylim=(len(runs), 0), xlabel="where in the text the key was said")
    axis.set_xticks([i + 0.5 for i in range(columns)], [f"{float(depth):.0%}" for depth in depths(longest)])
    axis.set_yticks([i + 0.5 for i in range(len(runs))], [run.label for run in runs])
    axis.tick_params(length=0, labelleft=True)
    axis.spines[:].set_visible(False)


def draw_perplexity(axis: Axes, runs: list[Run]) -> None:
    """A point for each policy with its 95 % interval, on a logarithmic scale: dense may be far away."""
    for place, run in enumerate(runs):
        value, half = run.line["value"], run.line.get("half_interval_95", 0)
        style = {"color": COLOURS.get(run.preset, OTHER_COLOUR), "mfc": "white" if run.override else None}
        axis.errorbar(place, value, yerr=half, fmt="o", ms=7, capsize=5, lw=1.6, **style)
        axis.annotate(
            f"{value:.2f}", (place, value), xytext=(10, 0), textcoords="offset points", va="center", size=10
        )
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(plt.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(plt.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlim(-0.5, len(runs) - 0.2)
    axis.set_xticks(range(len(runs)), [run.label for run in runs])
    axis.grid(axis="y", which="both", color="#e6e6e6", lw=0.7)
    axis.spines[["top", "right"]].set_visible(False)


def figure(
    runs: dict[int, list[Run]], title: str, draw: Callable[[Axes, list[Run]], None], **layout: object
) -> Figure:
    """One panel for each length."""
    result, axes = plt.subplots(squeeze=False, layout="constrained", **layout)
    for axis, (length, of_length) in zip(axes.flat, runs.items(), strict=True):
        draw(axis, of_length)
        axis.set_title(f"{length:,} tokens", size=11)
    models = {run.line["shapes"].split(",")[0] for of_length in runs.values() for run in of_length}
    result.suptitle(f"{title}\n{', '.join(sorted(models))}", size=12)
    return result


def write_figures(results: Path) -> list[str]:
    """Returns the names of the files."""
    written = plot_quality.write_figures(results, latest(results / "quality.jsonl"))
    if runs := by_length(results / "passkey.jsonl"):
        widest = max(len(of_length) for of_length in runs.values())
        size = (7.2, (0.62 * widest + 1.1) * len(runs) + 0.6)
        title = "Is a pass key found that was said once?"
        figure(runs, title, draw_passkey, nrows=len(runs), figsize=size).savefig(
            results / "passkey.png", dpi=110
        )
        written.append("passkey.png")
    if runs := by_length(results / "perplexity.jsonl"):
        widest = max(len(of_length) for of_length in runs.values())
        size = ((1.15 * widest + 0.6) * len(runs) + 0.5, 4.4)
        title = "Perplexity, with 95 % intervals (lower is better)"
        drawn = figure(runs, title, draw_perplexity, ncols=len(runs), figsize=size, sharey=True)
        drawn.axes[0].set_ylabel("perplexity")
        drawn.savefig(results / "perplexity.png", dpi=110)
        written.append("perplexity.png")
    gpu = [*latest(results / "cuda_decode.jsonl"), *latest(results / "cuda_prefill.jsonl")]
    written += plot_gpu.write_figure([*gpu, *latest(results / "cuda_dense.jsonl")], results)
    return written + plot_mass.write_figure(latest(results / "attention_mass.jsonl"), results)


def table(results: Path, figures: list[str]) -> str:
    """The figures, and the latest line of every id as Markdown."""
    text = [
        "# Results",
        "",
        "Written by `tests/bench/plot.py` from the `.jsonl` files: the latest line of each id.",
        "",
    ]
    text += [f"![{Path(name).stem}]({name})" for name in figures]
    text += plot_quality.markdown(latest(results / "quality.jsonl"))
    for name in TABLES:
        lines = latest(results / name)
        if not lines:
            continue
        text += [
            "",
            f"## {name}",
            "",
            "| id | value | unit | what | commit | date |",
            "|---|---|---|---|---|---|",
        ]
        for line in lines:
            value = f"{line['value']:,.4g}" if abs(line["value"]) < 1000 else f"{line['value']:,.0f}"
            if "half_interval_95" in line:
                value += f" ± {line['half_interval_95']:.2g}"
            cells = [
                f"`{line['id']}`",
                value,
                *(str(line[key]) for key in ("unit", "shapes", "commit", "date")),
            ]
            text.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        devices = sorted({line["device"] for line in lines})
        text += ["", f"Measured on: {'; '.join(devices)}."]
    if masses := latest(results / "attention_mass.jsonl"):
        text += ["", "## attention_mass.jsonl", "", mass_table.table(masses)]
    return "\n".join(text) + "\n"


def draw(results: Path) -> None:
    figures = write_figures(results)
    (results / "README.md").write_text(table(results, figures))
    print("wrote", ", ".join(str(results / name) for name in [*figures, "README.md"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    draw(parser.parse_args().results)


if __name__ == "__main__":
    main()
