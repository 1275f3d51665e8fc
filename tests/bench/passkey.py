#!/usr/bin/env python3
"""Can the model still find a number that was said once in a long text?

Filler with a pass key at several depths, longer than the model was trained for; greedy answers. One line in
results/passkey.jsonl for each policy and length (the share of right answers), and a table on stdout.

  tests/bench/passkey.py --model FILE.gguf --target unix:/run/longshored.sock [--policies standard,dense]
                         [--extension at_trained_length]

With --state FILE a run that was stopped continues: answers of the same commit are not asked again.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sessions
from record import commit, record

from longshore.runner import Llama, load_model

INTRO = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there.\n"
)
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
NEEDLE = "The pass key is {key}. Remember it. {key} is the pass key.\n"
QUESTION = "What is the pass key? The pass key is"
ANSWER_TOKENS = 8


class Prompts:
    """Prompts of one length that differ in where the needle is, sharing everything before it."""

    def __init__(self, tokenizer, length: int, depths: list[float]) -> None:
        self._intro = tokenizer.encode(INTRO)
        self._filler = tokenizer.encode(FILLER)
        self._question = tokenizer.encode(QUESTION)
        self._tokenizer = tokenizer
        self._length = length
        self.depths = depths

    def needle(self, key: int) -> list[int]:
        return self._tokenizer.encode(NEEDLE.format(key=key))

    def right_answer(self, key: int) -> list[int]:
        """The tokens that follow the question when it is answered with the key."""
        tokens = self._tokenizer.encode(f"{QUESTION} {key}")
        if tokens[: len(self._question)] != self._question:
            raise ValueError(f"the tokenizer joins the question and the key {key}")
        return tokens[len(self._question) :]

    def before(self, depth: float) -> list[int]:
        """Intro and whole filler sentences up to the needle."""
        room = int(self._length * depth) - len(self._intro)
        return self._intro + self._filler * max(0, room // len(self._filler))

    def after(self, depth: float, key: int) -> list[int]:
        """Needle, filler up to the length, question."""
        used = len(self.before(depth)) + len(self.needle(key)) + len(self._question)
        sentences = (self._length - used) // len(self._filler)
        return self.needle(key) + self._filler * sentences + self._question


@dataclass(frozen=True)
class Answer:
    """What the model said, and how likely it thought the truth to be."""

    depth: float
    key: int
    text: str
    key_log_probs: list[float]  # ln p of each token of the right answer, given the right ones before it

    @property
    def right(self) -> bool:
        return str(self.key) in self.text.replace(" ", "")


def ask(llama: Llama, prompts: Prompts, depth: float, key: int) -> Answer:
    """Prefills what follows the needle's filler, and answers. The tokens stay appended."""
    logits = llama.prefill(prompts.after(depth, key))
    asked = llama.position
    text = llama.tokenizer.decode(list(llama.generate(logits, ANSWER_TOKENS)))
    llama.truncate(asked)
    tokens = prompts.right_answer(key)
    shifted = logits.astype(np.float64) - logits.max()
    first = shifted[tokens[0]] - np.log(np.exp(shifted).sum())
    return Answer(depth, key, text, [float(first), *map(float, llama.log_probs(tokens))])


def answers(llama: Llama, prompts: Prompts, keys: list[int], done: set[float]) -> Iterator[Answer]:
    """Of each depth that is not done. The filler before a needle is prefilled once and used again."""
    for depth, key in zip(prompts.depths, keys, strict=True):
        before = prompts.before(depth)
        if depth in done:
            continue
        if llama.position > len(before):
            raise ValueError("depths must ascend")
        if before[llama.position :]:
            llama.prefill(before[llama.position :])
        answer = ask(llama, prompts, depth, key)
        # Back to whole query blocks of filler, so that the next prompt is cut as one of its own would be.
        llama.truncate(len(before) // 64 * 64)
        yield answer


def draw_keys(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(10000, 99999) for _ in range(count)]


def run(model, options: argparse.Namespace, preset: str, length: int, state: dict) -> list[dict]:
    depths = [float(depth) for depth in options.depths.split(",")]
    keys = draw_keys(options.seed, len(depths))
    prompts = Prompts(model.tokenizer, length, depths)
    name = f"{sessions.name(preset, options.extension)}-{length}"
    found = state.setdefault(f"{name}-{commit()}", [])  # other code's answers are not this code's
    attention = sessions.open_attention(model.shape, length + 64, preset, options)
    with Llama(model, attention, options.piece) as llama:
        begin = time.monotonic()
        for answer in answers(llama, prompts, keys, {entry["depth"] for entry in found}):
            depth, text, right = answer.depth, answer.text, answer.right
            found.append({"depth": depth, "key": answer.key, "answer": text, "right": right})
            if options.state:
                options.state.write_text(json.dumps(state, indent=1))
            print(
                f"{name} depth {depth}: {text!r} {'right' if right else 'WRONG'} "
                f"({time.monotonic() - begin:.0f} s)",
                flush=True,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, type=Path)
    sessions.add_arguments(parser)
    parser.add_argument("--lengths", default="12288,16384")
    parser.add_argument("--depths", default="0.1,0.3,0.5,0.7,0.9")
    parser.add_argument("--piece", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=2502)
    parser.add_argument("--state", type=Path)
    options = parser.parse_args()
    model = load_model(options.model)
    state = json.loads(options.state.read_text()) if options.state and options.state.exists() else {}
    rows = []
    for length in (int(length) for length in options.lengths.split(",")):
        for preset in options.policies.split(","):
            policy = sessions.name(preset, options.extension)
            found = run(model, options, preset, length, state)
            share = sum(entry["right"] for entry in found) / len(found)
            record(
                "passkey.jsonl",
                id=f"passkey_{length // 1024}k_{policy}",
                value=share,
                unit="share of answers right",
                shapes=f"{model.name}, {length} tokens, depths {options.depths}, f32 KV, "
                "dense_below_tokens 0",
                answers=[entry["answer"] for entry in found],
                right=[entry["right"] for entry in found],
            )
            marks = " ".join("+" if entry["right"] else "-" for entry in found)
            rows.append(
                f"| {length} | {policy} | {sum(e['right'] for e in found)} of {len(found)} | {marks} |"
            )
    print(f"\n| tokens | policy | right | by depth {options.depths} |\n|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
