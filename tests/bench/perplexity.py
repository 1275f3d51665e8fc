#!/usr/bin/env python3
"""Perplexity of real text, inside and beyond the trained length, for several policies.

One line in results/perplexity.jsonl for each policy and length, and a table on stdout. Each policy reads the
longest text once; a shorter length is its beginning.

  tests/bench/perplexity.py --model FILE.gguf --text FILE.txt --target unix:/run/longshored.sock
                            [--policies standard,dense] [--extension at_trained_length]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import sessions
from record import record

from longshore.runner import Llama, load_model
from longshore.runner.tokenizer import Tokenizer


def read_tokens(tokenizer: Tokenizer, text: Path, count: int) -> list[int]:
    """The first tokens of a text. ValueError if it has fewer."""
    tokens = tokenizer.encode(text.read_text())
    if len(tokens) < count:
        raise ValueError(f"{text} has {len(tokens)} tokens, {count} are needed")
    return tokens[:count]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--text", required=True, type=Path)
    sessions.add_arguments(parser)
    parser.add_argument("--lengths", default="8192,12288")
    parser.add_argument("--piece", type=int, default=4096)
    options = parser.parse_args()
    model = load_model(options.model)
    lengths = [int(length) for length in options.lengths.split(",")]
    try:
        tokens = read_tokens(model.tokenizer, options.text, max(lengths))
    except ValueError as error:
        parser.error(str(error))
    rows = []
    for preset in options.policies.split(","):
        policy = sessions.name(preset, options.extension)
        attention = sessions.open_attention(model.shape, len(tokens), preset, options)
        with Llama(model, attention, options.piece) as llama:
            log_probs = llama.log_probs(tokens)
        for length in lengths:
            part = log_probs[: length - 1]
            perplexity = float(np.exp(-part.mean()))
            # Of the mean over tokens: half a 95 % interval, in perplexity.
            half = 1.96 * float(part.std()) / len(part) ** 0.5 * perplexity
            record(
                "perplexity.jsonl",
                id=f"perplexity_{length // 1024}k_{policy}",
                value=perplexity,
                unit="perplexity",
                half_interval_95=half,
                shapes=f"{model.name}, {length} tokens of {options.text.name}, f32 KV, dense_below_tokens 0",
            )
            rows.append(f"| {length} | {policy} | {perplexity:.2f} ± {half:.2f} |")
            print(rows[-1], flush=True)
    print("\n| tokens | policy | perplexity |\n|---|---|---|")
    print("\n".join(sorted(rows, key=lambda row: int(row.split("|")[1]))))


if __name__ == "__main__":
    main()
