#!/usr/bin/env python3
"""Does the recall monitor say what a full computation says? On a real model's own queries and keys.

The model's attention of the first 8192 tokens of a text is captured (capture.py), and recall_error_bench.cc
runs the engine on it with every block sampled: at each of several places a block of a prefill and some decode
steps, with the standard budget and with one that is far too small. Beside the monitor's figures it sums
the exponentials of every score in double. Lines in results/service.jsonl.

  tests/bench/recall_error.py --model FILE.gguf --text FILE.txt [--state FOLDER] [--layers 0,3,6]

FOLDER keeps what was captured: 25 MB a layer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

from capture import capture
from record import record

from longshore.runner import LocalAttention, load_model

TOKENS = 8192
BENCH = Path(__file__).parents[2] / "build/release/tests/recall_error_bench"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--text", required=True, type=Path)
    parser.add_argument("--state", type=Path, default=Path.home() / ".cache/longshore/quality")
    parser.add_argument("--layers", default="0,3,6,9,12,15,18,21,24,27", help="separated by commas")
    options = parser.parse_args()
    model = load_model(options.model)
    tokens = model.tokenizer.encode(options.text.read_text())[:TOKENS]
    layers = [int(layer) for layer in options.layers.split(",")]
    captured = capture(
        model, tokens, options.state, "local, dense", lambda: LocalAttention(model.shape, TOKENS), layers
    )
    names = [f"{layer:02}" for layer in layers]
    printed = subprocess.run(
        [BENCH, captured.folder, *names], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    for line in map(json.loads, printed.splitlines()):
        entry = record("service.jsonl", **line)
        print(entry["id"], entry["value"], entry["unit"])


if __name__ == "__main__":
    main()
