#!/usr/bin/env python3
"""Draws engine/selection.png: what `standard` keeps of a long document, stage by stage.

The queries and keys are those of a session that attends under `standard`; the selection is made again from
them in numpy (selection.py), with the preset's own sizes and the rotary ids of a session that passes the
trained length.

  tests/bench/selection_picture.py --model FILE.gguf --text FILE.txt --target unix:/run/longshored.sock
                                   [--layer 26] [--state FOLDER] [--out FILE.png]

Where FOLDER holds the captured queries and keys of the same text, model and layer, no daemon is asked.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import selection
from capture import Capture, capture
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from selection import Ints, Middle, Ranking, Stage

from longshore.daemon_attention import DaemonAttention
from longshore.model_shape import RopeTable
from longshore.runner import load_model
from longshore.runner.rope import rotate, turns

TOKENS = 16384
SINK_TOKENS, WINDOW_TOKENS, BLOCK_ROWS, QUERY_STRIDE = 256, 1024, 64, 4
STAGES = [Stage("bounds", 64, 8192), Stage("exact", 8, 2048)]
ZOOM_CHUNKS = 10
BLOCKS_A_LINE = 4  # of so many query blocks the last panel shows one

SINK, WINDOW = "#8c8c8c", "#4d4d4d"
MIDDLE, COARSE, COARSE_PALE, FINE = "#e4e4e0", "#7fb2d9", "#bcd7ec", "#d1592b"
PASSED_OVER = "#c9c9c4"


@dataclass(frozen=True)
class Selected:
    """One query block: its regions and what each stage kept, as positions in the document."""

    first_row: int
    middle_end: int
    middle: Middle
    coarse: Ints  # first tokens of the chunks that stage 1 kept
    fine: Ints  # of the pieces that stage 2 kept

    @property
    def end(self) -> int:
        return self.first_row + BLOCK_ROWS


class Pruner:
    """One layer's pruning under `relative` ids: every key W tokens behind the query."""

    def __init__(self, captured: Capture, rope: RopeTable, layer: int) -> None:
        # Any common shift gives the same scores: queries at W, keys as they are stored.
        self._queries = rotate(captured.queries(layer), turns(rope, WINDOW_TOKENS, 1))
        self._queries *= np.float32(self._queries.shape[2] ** -0.5)
        self._keys = np.ascontiguousarray(captured.keys(layer).swapaxes(0, 1))

    def select(self, first_row: int) -> Selected:
        """What the query block that begins at `first_row` selects."""
        chunk = STAGES[0].chunk_tokens
        end = selection.middle_end(first_row, SINK_TOKENS, WINDOW_TOKENS, chunk)
        rows = range(first_row, first_row + BLOCK_ROWS)[::-1][::QUERY_STRIDE]
        middle = Middle(self._queries[rows], self._keys[:, SINK_TOKENS:end])
        coarse, fine = selection.select(middle, STAGES, Ranking("probability"))
        return Selected(first_row, end, middle, coarse + SINK_TOKENS, fine + SINK_TOKENS)


def _spans(axis: Axes, firsts: Ints, tokens: int, bottom: float, colour: str) -> None:
    """A box of height 0.72 from each of `firsts` on."""
    axis.broken_barh([(first, tokens) for first in firsts], (bottom, 0.72), color=colour, lw=0)


def draw_stages(axis: Axes, selected: Selected, zoom: int) -> None:
    """A strip of the whole document for each step of the method; a frame around the tokens from `zoom` on."""
    middle = selected.middle_end - SINK_TOKENS
    chunks = [stage.chunk_tokens for stage in STAGES]
    attended = SINK_TOKENS + len(selected.fine) * chunks[1] + selected.end - selected.middle_end
    strips = [
        ("the text so far", f"{selected.end:,} tokens"),
        ("1  bounds\nchunks of 64", f"{len(selected.coarse)} of {middle // chunks[0]} chunks"),
        ("2  exact\npieces of 8", f"{len(selected.fine)} of {len(selected.coarse) * 8:,} pieces"),
        ("attention", f"{attended:,} tokens"),
    ]
    for row, (_, count) in enumerate(strips):
        axis.text(TOKENS * 1.01, row + 0.36, count, va="center", size=9)
    for row in (0, 1, 2):
        axis.broken_barh([(SINK_TOKENS, middle)], (row, 0.72), color=MIDDLE, lw=0)
    for row in (0, 3):
        axis.broken_barh([(0, SINK_TOKENS)], (row, 0.72), color=SINK, lw=0)
        axis.broken_barh(
            [(selected.middle_end, selected.end - selected.middle_end)], (row, 0.72), color=WINDOW, lw=0
        )
    _spans(axis, selected.coarse, chunks[0], 1, COARSE)
    _spans(axis, selected.coarse, chunks[0], 2, COARSE_PALE)
    for row in (2, 3):
        _spans(axis, selected.fine, chunks[1], row, FINE)
    axis.text(SINK_TOKENS + middle / 2, 0.36, "middle: the candidates", ha="center", va="center", size=9)
    axis.text(selected.middle_end - 90, 0.36, "window", ha="right", va="center", size=9, color=WINDOW)
    axis.text(SINK_TOKENS + 90, 0.36, "sink", va="center", size=9, color="#666666")
    width = ZOOM_CHUNKS * chunks[0]
    axis.add_patch(Rectangle((zoom, 0.9), width, 1.92, fill=False, ec="#222222", lw=1.1, zorder=5))
    axis.set(xlim=(0, TOKENS), ylim=(4, -0.1))
    axis.set_yticks([row + 0.36 for row in range(4)], [name for name, _ in strips], size=9)
    axis.set_title(
        f"One query block, rows {selected.first_row:,} to {selected.end - 1:,}: one selection for its 64 "
        "rows and all heads",
        loc="left",
        size=10,
    )
    _plain(axis)


def draw_scores(axis: Axes, selected: Selected, stage: Stage, chosen: Ints, first: int) -> None:
    """A bar for each candidate of a stage in ZOOM_CHUNKS chunks from token `first` on: its score.

    chosen  first tokens of what the stage kept, here and elsewhere
    """
    last = first + ZOOM_CHUNKS * STAGES[0].chunk_tokens
    if stage is STAGES[0]:
        tokens = np.arange(SINK_TOKENS, selected.middle_end, stage.chunk_tokens)
    else:
        tokens = selection.tokens_of(selected.coarse, STAGES[0].chunk_tokens)[:: stage.chunk_tokens]
    scores = selected.middle.scores(stage.selector, stage.chunk_tokens)
    ranks = selection.rank(scores[:, :, (tokens - SINK_TOKENS) // stage.chunk_tokens], Ranking("probability"))
    is_kept = np.isin(tokens, chosen)
    last_kept = ranks[is_kept].min()
    near = (tokens >= first) & (tokens < last)
    floor = min(ranks[near].min(), last_kept) - 0.15 * np.ptp(ranks[near])  # bars are not from 0
    axis.bar(
        tokens[near],
        ranks[near] - floor,
        bottom=floor,
        width=stage.chunk_tokens * 0.9,
        align="edge",
        color=np.where(is_kept[near], COARSE if stage is STAGES[0] else FINE, PASSED_OVER),
    )
    axis.axhline(last_kept, color="#222222", lw=0.9, ls="--")
    axis.text(last + 5, last_kept, "what the last\none kept scores", va="center", size=8)
    axis.set(xlim=(first, last), ylim=(floor, None), yticks=[], xticks=np.arange(first, last + 1, 64))
    axis.grid(axis="x", color="#dddddd", lw=0.6)
    axis.set_axisbelow(True)
    _plain(axis)


def draw_zoom(axes: Sequence[Axes], selected: Selected, first: int) -> None:
    """Both stages' scores of the tokens from `first` on."""
    draw_scores(axes[0], selected, STAGES[0], selected.coarse, first)
    draw_scores(axes[1], selected, STAGES[1], selected.fine, first)
    for axis, text in zip(
        axes,
        ["1  bounds:\nupper bound\nof each chunk", "2  exact:\nbest key of\neach piece"],
        strict=True,
    ):
        axis.set_ylabel(text, rotation=0, ha="right", va="center", size=9)
    axes[0].set_title(
        f"What is in the frame, from token {first:,} on: the best scores stay", loc="left", size=10
    )


def draw_blocks(axis: Axes, blocks: Sequence[Selected], marked: Selected) -> None:
    """A line for each of `blocks`: of each 64 tokens of the document, how much is attended to."""
    image = np.ones((len(blocks), TOKENS // 64, 3))
    for line, block in enumerate(blocks):
        image[line, : block.end // 64] = to_rgb(MIDDLE)
        image[line, block.coarse // 64] = to_rgb(COARSE_PALE)
        share = np.bincount(block.fine // 64, minlength=TOKENS // 64)[:, np.newaxis] / 8
        image[line] = image[line] * (1 - share) + np.array(to_rgb(FINE)) * share
        image[line, : SINK_TOKENS // 64] = to_rgb(SINK)
        image[line, block.middle_end // 64 : block.end // 64] = to_rgb(WINDOW)
    top, bottom = blocks[0].first_row, blocks[-1].first_row + BLOCK_ROWS * BLOCKS_A_LINE
    axis.imshow(image, extent=(0, TOKENS, bottom, top), aspect="auto", interpolation="nearest")
    axis.annotate(
        "the block above",
        (marked.end, marked.first_row + 32),
        xytext=(12, 0),
        textcoords="offset points",
        va="center",
        size=9,
        arrowprops={"arrowstyle": "->", "lw": 0.9},
    )
    axis.set_ylabel("query block's\nposition", rotation=0, ha="right", va="center", size=9)
    axis.set_xlabel("token of the document", size=9)
    axis.set_title(
        "Every query block selects for itself; what many of them want stands out as a vertical stripe",
        loc="left",
        size=10,
    )
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in (SINK, WINDOW, MIDDLE, COARSE_PALE, FINE)]
    names = [
        "sink",
        "window",
        "not looked at again after stage 1",
        "kept by stage 1 alone",
        "kept by stage 2",
    ]
    axis.legend(handles, names, loc="upper right", fontsize=8.5, frameon=False)
    _plain(axis)


def _plain(axis: Axes) -> None:
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0, labelsize=8)
    thousands = plt.FuncFormatter(lambda value, _: f"{value:,.0f}")
    axis.xaxis.set_major_formatter(thousands)
    if len(axis.get_yticks()) > 4:
        axis.yaxis.set_major_formatter(thousands)


def zoom_at(selected: Selected) -> int:
    """Where to look closer: about half of the chunks kept, some pieces of them, some not."""
    chunk = STAGES[0].chunk_tokens
    kept_chunks = np.isin(np.arange(SINK_TOKENS, selected.middle_end, chunk), selected.coarse)
    pieces = np.bincount((selected.fine - SINK_TOKENS) // chunk, minlength=len(kept_chunks))
    partly = kept_chunks & (pieces > 0) & (pieces < 6)
    window = np.ones(ZOOM_CHUNKS)
    wanted = np.convolve(partly, window, "valid") - 1.5 * np.abs(
        np.convolve(kept_chunks, window, "valid") - 0.6 * ZOOM_CHUNKS
    )
    return SINK_TOKENS + int(wanted.argmax()) * chunk


def draw(pruner: Pruner, title: str, out: Path) -> None:
    first = SINK_TOKENS + WINDOW_TOKENS
    blocks = [pruner.select(row) for row in range(first, TOKENS, BLOCK_ROWS * BLOCKS_A_LINE)]
    marked = blocks[-3]
    zoom = zoom_at(marked)
    figure = plt.figure(figsize=(9, 8.6), layout="constrained")
    axes = figure.subplots(4, height_ratios=[2.1, 0.9, 0.9, 3.4])
    draw_stages(axes[0], marked, zoom)
    draw_zoom(axes[1:3], marked, zoom)
    draw_blocks(axes[3], blocks, marked)
    figure.suptitle(title, size=11)
    figure.savefig(out, dpi=100)
    print(f"wrote {out}, {out.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--text", required=True, type=Path)
    parser.add_argument("--target", help="where a daemon listens; not needed for a capture that is there")
    parser.add_argument("--layer", type=int, default=26)
    parser.add_argument("--state", type=Path, default=Path.home() / ".cache/longshore/quality")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "engine/selection.png")
    options = parser.parse_args()
    model = load_model(options.model)
    tokens = model.tokenizer.encode(options.text.read_text())[:TOKENS]
    if len(tokens) < TOKENS:
        parser.error(f"{options.text} has {len(tokens)} tokens, {TOKENS} are needed")
    captured = capture(
        model,
        tokens,
        options.state,
        f"standard, longshored, max_tokens {TOKENS}",
        lambda: DaemonAttention.connect(model.shape, TOKENS, target=options.target),
        layers=[options.layer],
    )
    title = f"What `standard` keeps of {TOKENS:,} tokens of text\n{model.name}, layer {options.layer}"
    draw(Pruner(captured, model.shape.rope_tables[0], options.layer), title, options.out)


if __name__ == "__main__":
    main()
