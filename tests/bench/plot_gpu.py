"""Draws time against context on a GPU, ours and dense: gpu.png."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

# What is drawn in each panel: label, and the ids as a pattern whose group is the context.
PANELS = {
    "decode, one token, one layer (us)": {
        "dense (cuDNN)": r"cudnn_decode_(\d+[km])",
        "standard, average over its refreshes": r"decode_(\d+[km])_standard_avg",
        "standard, no stage refreshed": r"decode_(\d+[km])_cached",
    },
    "prefill, the last 32K tokens, one layer (ms)": {
        "dense (cuDNN)": r"cudnn_prefill_32k_(\d+[km])",
        "standard": r"prefill_32k_at_(\d+[km])",
    },
}


def tokens_of(name: str) -> int:
    """64k -> 65536"""
    return int(name[:-1]) * (1024 if name[-1] == "k" else 1024 * 1024)


def curve(lines: list[dict], pattern: str) -> list[tuple[int, float]]:
    found = [(re.fullmatch(pattern, line["id"]), line["value"]) for line in lines]
    return sorted((tokens_of(match.group(1)), value) for match, value in found if match)


def write_figure(lines: list[dict], results: Path) -> list[str]:
    """Returns the names of the files."""
    if not lines:
        return []
    figure, axes = plt.subplots(1, len(PANELS), figsize=(11, 4.4), layout="constrained")
    for axis, (title, curves) in zip(axes, PANELS.items(), strict=True):
        for label, pattern in curves.items():
            points = curve(lines, pattern)
            axis.plot(*zip(*points, strict=True), marker="o", label=label)
            axis.annotate(f"{points[-1][1]:,.0f}", points[-1], (-2, 6), textcoords="offset points", ha="right")
        ticks = [1 << power for power in range(16, 22)]
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(ticks, ["64K", "128K", "256K", "512K", "1M", "2M"])
        axis.set_xlabel("context (tokens)")
        axis.set_title(title, size=11)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    devices = sorted({line["device"] for line in lines})
    figure.suptitle(f"32/8 heads, 128 dims, bf16; {'; '.join(devices)}", size=10)
    figure.savefig(results / "gpu.png", dpi=110)
    return ["gpu.png"]
