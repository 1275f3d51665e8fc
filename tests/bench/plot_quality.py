"""Figures and tables of results/quality.jsonl, for plot.py: one of each for methods and for rotary styles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from quality_report import TABLES, verdict

TITLES = {
    "methods": "Which tokens to attend to",
    "styles": "Rotary ids beyond the trained length",
}
HOW_TO_READ = (
    "Brackets are 95 % intervals: Wilson's of shares, Student's of mean ln p of the right key's tokens "
    "(teacher forcing; behind it in brackets, without the first token: once the answer begins with a number), a "
    "bootstrap of blocks of 256 tokens of perplexity. Differences are paired, answer by answer and token by token; p "
    "is the exact sign test's. No correction for many comparisons: of twenty true equals one is told apart."
)
NOTES = {
    "methods": "Differences are from `standard`.",
    "styles": HOW_TO_READ
    + "Attention styles: `standard` with its `streaming` replaced. Pruning styles: `exact only` with its "
    "`relative` replaced (`bounds` cannot be scored under every style). Differences are from the one that was changed.",
}
LENGTH_COLOURS = {8192: "#7fb2d9", 12288: "#1b6ca8", 16384: "#0b2f4f"}
PART_COLOURS = ("#d1782b", "#7a3d0c")
SHARES = LinearSegmentedColormap.from_list("shares", ["#ecebe8", "#2e8b57"])
MARKS = {"better": "**better**", "worse": "**worse**"}


class Table:
    """The lines of one table, by variant and measure."""

    def __init__(self, name: str, lines: list[dict]) -> None:
        self.name = name
        self.lines = [line for line in lines if line["table"] == name]
        order = [variant.name for variant in TABLES[name]]
        self.baselines = {variant.name for variant in TABLES[name] if variant.same_as}
        known = {line["variant"] for line in self.lines}
        self.variants = [variant for variant in order if variant in known]

    def find(self, measure: str, variant: str, tokens: int, first: int | None = None) -> dict | None:
        for line in self.lines:
            if line["id"].startswith(f"quality_{measure}_") and (line["variant"], line["tokens"]) == (
                variant,
                tokens,
            ):
                if first is None or line["from_token"] == first:
                    return line
        return None

    @property
    def lengths(self) -> list[int]:
        return sorted({line["tokens"] for line in self.lines if "answers" in line})

    @property
    def parts(self) -> list[tuple[int, int]]:
        """Of the text: the whole, then its parts."""
        found = {(line["from_token"], line["tokens"]) for line in self.lines if "from_token" in line}
        return sorted(found, key=lambda part: (part[0] - part[1], part))


def tables(lines: list[dict]) -> list[Table]:
    """Those that say more than their baselines do."""
    found = [Table(name, lines) for name in TABLES]
    return [table for table in found if not table.baselines.issuperset(table.variants)]


def write_figures(results: Path, lines: list[dict]) -> list[str]:
    """Returns the names of the files."""
    written = []
    for table in tables(lines):
        written.append("quality.png" if table.name == "methods" else f"quality_{table.name}.png")
        figure(table).savefig(results / written[-1], dpi=110)
    return written


def figure(table: Table) -> Figure:
    """Above, whether keys were found, by length and depth; below, figures with their 95 % intervals."""
    rows = len(table.variants)
    result = plt.figure(figsize=(15, 2 * (0.36 * rows + 1.2) + 1.2), layout="constrained")
    above, below = result.subfigures(2, 1)
    grids = above.subplots(1, max(3, len(table.lengths)))
    for place, axis in enumerate(grids):
        if place < len(table.lengths):
            draw_depths(axis, table, table.lengths[place])
            name_rows(axis, table, place == 0)
        else:
            axis.set_visible(False)
    panels: list[Callable[[Axes, Table], None]] = [draw_key_log_probs, draw_perplexities, draw_differences]
    for place, (axis, draw) in enumerate(zip(below.subplots(1, 3), panels, strict=True)):
        draw(axis, table)
        axis.grid(axis="x", color="#e6e6e6", lw=0.7)
        axis.spines[["top", "right"]].set_visible(False)
        name_rows(axis, table, place == 0)
    models = {line["shapes"].split(",")[0] for line in table.lines}
    result.suptitle(f"{TITLES[table.name]}. {', '.join(sorted(models))}, trained to 8,192 tokens", size=13)
    return result


def name_rows(axis: Axes, table: Table, named: bool) -> None:
    axis.set_ylim(len(table.variants) - 0.4, -0.6)
    axis.set_yticks(range(len(table.variants)), table.variants if named else [""] * len(table.variants))


def draw_depths(axis: Axes, table: Table, length: int) -> None:
    """A box for each depth: how many of the answers held the key; beside it the share with its interval."""
    found = [table.find("passkey", variant, length) for variant in table.variants]
    depths = sorted({float(depth) for line in found if line for depth in line["by_depth"]})
    for row, line in enumerate(found):
        if line is None:
            continue
        for column, depth in enumerate(depths):
            answers = line["by_depth"].get(str(depth))
            if not answers:
                continue
            share = sum(answers) / len(answers)
            box = plt.Rectangle((column + 0.04, row - 0.45), 0.92, 0.9, color=SHARES(share))
            axis.add_patch(box)
            text = f"{sum(answers)}/{len(answers)}"
            axis.text(
                column + 0.5,
                row,
                text,
                ha="center",
                va="center",
                size=8,
                color="white" if share > 0.5 else "#55524d",
            )
        low, high = line["interval_95"]
        axis.text(
            len(depths) + 0.15,
            row,
            f"{line['right']} of {line['answers']}  ({low:.0%}–{high:.0%})",
            va="center",
            size=9,
        )
    axis.set_xlim(0, len(depths) + 4.2)
    axis.set_xticks([i + 0.5 for i in range(len(depths))], [f"{depth:.0%}" for depth in depths], size=8)
    axis.set_title(f"pass keys found in {length:,} tokens", size=11)
    axis.set_xlabel("where in the text the key was said", size=9)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def draw_key_log_probs(axis: Axes, table: Table) -> None:
    for place, length in enumerate(table.lengths):
        shift = 0.22 * (place - (len(table.lengths) - 1) / 2)
        for row, variant in enumerate(table.variants):
            line = table.find("key_log_prob", variant, length)
            if line:
                dot(axis, line["value"], row + shift, line["interval_95"], LENGTH_COLOURS[length])
        axis.plot([], [], "o", color=LENGTH_COLOURS[length], label=f"{length:,} tokens")
    axis.set_title("ln p of the right key (0: certain), mean over depths", size=11)
    axis.set_xlabel("nats; bars: 95 % of the mean (Student)", size=9)
    legend_above(axis)


def draw_perplexities(axis: Axes, table: Table) -> None:
    for first, end in table.parts[:1]:
        for row, variant in enumerate(table.variants):
            line = table.find("perplexity", variant, end, first)
            if line:
                dot(axis, line["value"], row, line["interval_95"], LENGTH_COLOURS[12288])
                axis.annotate(
                    f"{line['value']:.2f}",
                    (line["interval_95"][1], row),
                    xytext=(5, 0),
                    textcoords="offset points",
                    va="center",
                    size=8,
                )
        axis.set_title(f"perplexity of {end:,} tokens of text", size=11, pad=20)
    axis.set_xscale("log")
    for ticks in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
        ticks(plt.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.tick_params(axis="x", which="both", labelsize=8)
    axis.set_xlabel("perplexity (lower is better); bars: 95 %, blocks of 256 tokens", size=9)


def draw_differences(axis: Axes, table: Table) -> None:
    for place, (first, end) in enumerate(table.parts[1:]):
        for row, variant in enumerate(table.variants):
            line = table.find("perplexity", variant, end, first)
            if line and "versus" in line:
                versus = line["versus"]
                dot(
                    axis,
                    versus["difference"],
                    row + 0.24 * (place - 0.5),
                    versus["interval_95"],
                    PART_COLOURS[place],
                )
        axis.plot([], [], "o", color=PART_COLOURS[place], label=f"tokens {first:,} to {end:,}")
    axis.axvline(0, color="#4d4d4d", lw=1)
    low, high = axis.get_xlim()
    if max(-low, high) > 0.3:  # dense beyond the trained length
        axis.set_xscale("symlog", linthresh=0.05)
        axis.set_xlim(1.4 * low, max(1.4 * high, 0.05))
        axis.set_xticks([tick for tick in (-10, -3, -1, -0.3, -0.1, -0.05, 0, 0.05) if tick > 1.4 * low])
    axis.xaxis.set_major_formatter(plt.FuncFormatter(lambda value, _: f"{value:+.2g}" if value else "0"))
    axis.set_title("change of ln p of a token, paired (right: better)", size=11)
    axis.set_xlabel("nats a token; bars: 95 %, blocks of 256 tokens", size=9)
    axis.tick_params(axis="x", labelsize=8)
    legend_above(axis)


def legend_above(axis: Axes) -> None:
    """Between the panel and its title."""
    axis.set_title(axis.get_title(), size=11, pad=20)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def dot(axis: Axes, value: float, row: float, interval: list[float] | None, colour: str) -> None:
    low, high = interval or (value, value)
    # A point whose interval is rounded may lie outside by that much.
    bars = [[max(0, value - low)], [max(0, high - value)]]
    axis.errorbar(value, row, xerr=bars, fmt="o", ms=4.5, capsize=3, color=colour)


def markdown(lines: list[dict]) -> list[str]:
    """Of each table, what was found and what was predicted."""
    drawn = tables(lines)
    text = ["", "## Quality", "", HOW_TO_READ] if drawn else []
    for table in drawn:
        text += ["", f"### {TITLES[table.name]}", "", NOTES[table.name], ""]
        text += grid(
            table.variants,
            {
                f"pass keys in {length // 1024}K": lambda variant, length=length: found_cell(
                    table.find("passkey", variant, length)
                )
                for length in table.lengths
            }
            | {
                f"ln p of the key, {length // 1024}K": lambda variant, length=length: mean_cell(
                    table.find("key_log_prob", variant, length)
                )
                for length in table.lengths
            },
        )
        parts = {f"{first // 1024}K to {end // 1024}K": (end, first) for first, end in table.parts}
        text += [
            "",
            *grid(
                table.variants,
                {
                    f"perplexity, {name}": lambda variant, part=part: perplexity_cell(
                        table.find("perplexity", variant, *part)
                    )
                    for name, part in parts.items()
                }
                | {
                    f"its change, {name}": lambda variant, part=part: change_cell(
                        table.find("perplexity", variant, *part)
                    )
                    for name, part in parts.items()
                },
            ),
        ]
    return text


def grid(rows: list[str], columns: Mapping[str, Callable[..., str]]) -> list[str]:
    """A Markdown table of the columns that hold anything."""
    cells = {head: [cell(row) for row in rows] for head, cell in columns.items()}
    cells = {head: column for head, column in cells.items() if any(column)}
    if not cells:
        return []
    return [
        "| | " + " | ".join(cells) + " |",
        "|" + "---|" * (len(cells) + 1),
        *(
            f"| `{row}` | " + " | ".join(column[place] for column in cells.values()) + " |"
            for place, row in enumerate(rows)
        ),
    ]


def found_cell(line: dict | None) -> str:
    if line is None:
        return ""
    low, high = line["interval_95"]
    text = f"{line['right']} of {line['answers']} ({low:.0%}–{high:.0%})"
    if "versus" in line:
        text += f", p {line['versus']['p']:.2g}"
    return text


def mean_cell(line: dict | None) -> str:
    if line is None:
        return ""
    text = f"{line['value']:.2f} ({line['once_begun']:.2f})"
    if "versus" in line and line["versus"]["interval_95"]:
        versus = line["versus"]
        low, high = versus["interval_95"]
        said = verdict(versus["interval_95"])
        text += f"; {versus['difference']:+.2f} ({low:+.2f} to {high:+.2f}) {MARKS.get(said, said)}"
    return text


def perplexity_cell(line: dict | None) -> str:
    if line is None:
        return ""
    low, high = line["interval_95"]
    return f"{line['value']:.2f} ({low:.2f}–{high:.2f})"


def change_cell(line: dict | None) -> str:
    """In per cent, from the difference of mean ln p."""
    if line is None or "versus" not in line:
        return ""
    versus = line["versus"]
    low, high = versus["interval_95"]
    said = verdict((low, high))
    mean, low, high = (math.expm1(-value) for value in (versus["difference"], high, low))
    return f"{mean:+.1%} ({low:+.1%} to {high:+.1%}) {MARKS.get(said, said)}"
