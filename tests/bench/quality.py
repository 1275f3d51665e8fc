#!/usr/bin/env python3
"""The quality table: does the model find, and how well does it predict, under each way to choose tokens?

Pass keys in 8K, 12K and 16K tokens by depth, perplexity of 16K tokens of real text, and (attention_mass.py) the
share of the middle's attention that is kept, for the variants of variants.py. Writes results/quality.jsonl, then
draws it as plot.py does.

  tests/bench/quality.py --model FILE.gguf --text FILE.txt --target unix:/run/longshored.sock [--run NAME]

May be stopped at any time and goes on where it was when it is called again: each answer and each text is written
at once to ~/.cache/longshore/quality/NAME.jsonl. NAME is the last commit that touched measured code, if none is
given. With --report nothing is measured: the table of what is there.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import attention_mass
from passkey import Prompts, answers, draw_keys
from perplexity import read_tokens
from quality_report import Source, passkey_unit, perplexity_unit, report
from record import RESULTS, latest, measured_commit, record
from unit_log import UnitLog
from variants import METHODS, STYLE_TOKENS, STYLES, TEXT_TOKENS, THREE_DEPTHS, Variant

from longshore.daemon_attention import DaemonAttention
from longshore.runner import Llama, Model, load_model

STATES = Path("~/.cache/longshore/quality").expanduser()
PIECE = 4096  # prompt rows a call
SEED = 2502
# Rounds take turns, so that an even number of them covers nine depths evenly. Each draws its own keys.
ODD_DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
EVEN_DEPTHS = (0.2, 0.4, 0.6, 0.8)
MASS_UNIT = "attention_mass"


@dataclass(frozen=True)
class Passkeys:
    """A phase: one answer for each variant and depth."""

    length: int
    turn: int
    variants: Sequence[Variant]
    depths: Sequence[float]

    @property
    def name(self) -> str:
        return f"passkey/{self.length}"

    def run(self, bench: Bench, variant: Variant) -> None:
        every = EVEN_DEPTHS if self.turn % 2 else ODD_DEPTHS
        keys = dict(zip(every, draw_keys(SEED + self.turn, len(every)), strict=True))
        names = {depth: passkey_unit(variant, self.length, self.turn, depth) for depth in self.depths}
        done = {depth for depth, unit in names.items() if unit in bench.log}
        if len(done) == len(names):
            return
        prompts = Prompts(bench.model.tokenizer, self.length, list(self.depths))
        with bench.open(variant, self.length + 64) as llama:
            begin = time.monotonic()
            for answer in answers(llama, prompts, [keys[depth] for depth in self.depths], done):
                bench.finished(
                    names[answer.depth],
                    begin,
                    key=answer.key,
                    answer=answer.text,
                    right=answer.right,
                    key_log_probs=[round(value, 5) for value in answer.key_log_probs],
                )
                begin = time.monotonic()


@dataclass(frozen=True)
class Perplexities:
    """A phase: the text's log-probabilities, token by token, for each variant."""

    length: int
    variants: Sequence[Variant]

    @property
    def name(self) -> str:
        return f"perplexity/{self.length}"

    def run(self, bench: Bench, variant: Variant) -> None:
        unit = perplexity_unit(variant, self.length)
        if unit in bench.log:
            return
        begin = time.monotonic()
        with bench.open(variant, self.length) as llama:
            log_probs = llama.log_probs(bench.text_tokens[: self.length])
        bench.finished(unit, begin, log_probs=[round(float(value), 5) for value in log_probs])


NEW_STYLES = [variant for variant in STYLES if not variant.same_as]
PAPER = METHODS[:3]  # with standard: what the paper's stages and its ranking do
# What tells most for its time comes first, so that a table of part of it is of use.
PHASES = [
    Passkeys(12288, 0, PAPER, ODD_DEPTHS),
    Perplexities(TEXT_TOKENS, METHODS),
    Passkeys(12288, 0, METHODS, THREE_DEPTHS),
    Passkeys(16384, 0, PAPER, THREE_DEPTHS),
    Passkeys(8192, 0, METHODS[:5], THREE_DEPTHS),
    Passkeys(16384, 0, METHODS, THREE_DEPTHS),
    Passkeys(8192, 0, METHODS, THREE_DEPTHS),
    Perplexities(STYLE_TOKENS, NEW_STYLES),
    Passkeys(STYLE_TOKENS, 0, NEW_STYLES, THREE_DEPTHS),
    Passkeys(12288, 0, METHODS, ODD_DEPTHS),
    Passkeys(16384, 0, METHODS, ODD_DEPTHS),
    Passkeys(8192, 0, METHODS, ODD_DEPTHS),
    Passkeys(12288, 1, METHODS, EVEN_DEPTHS),
    Passkeys(16384, 1, METHODS, EVEN_DEPTHS),
    Passkeys(8192, 1, METHODS, EVEN_DEPTHS),
    Passkeys(12288, 2, METHODS, ODD_DEPTHS),
    Passkeys(12288, 3, METHODS, EVEN_DEPTHS),
]


class Bench:
    """The model, the text, the daemon and what is done."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._commit = measured_commit()  # of what is loaded: the tree may change during a long run
        name = options.run or self._commit
        self.log = UnitLog(
            STATES / f"{name}.jsonl",
            {"model": options.model.name, "text": f"{options.text.name} {digest(options.text)}"},
        )

    @cached_property
    def model(self) -> Model:
        return load_model(self._options.model)

    @cached_property
    def text_tokens(self) -> list[int]:
        return read_tokens(self.model.tokenizer, self._options.text, TEXT_TOKENS)

    def open(self, variant: Variant, max_tokens: int) -> Llama:
        """A session beyond the trained length: its rotary styles hold from the first token on."""
        target, shape = self._options.target, self.model.shape
        attention = DaemonAttention.connect(shape, max_tokens, target=target, policy=variant.policy())
        return Llama(self.model, attention, PIECE)

    def finished(self, unit: str, begin: float, **found: object) -> None:
        seconds = round(time.monotonic() - begin, 1)
        self.log.add(unit, **found, seconds=seconds, commit=self._commit)
        said = f"{found['answer']!r} {'right' if found['right'] else 'WRONG'}" if "right" in found else ""
        print(f"{unit} {said} ({seconds} s)", flush=True)

    def attention_mass(self) -> None:
        """A study in numpy, resumable itself; its lines are in results/attention_mass.jsonl."""
        if MASS_UNIT in self.log:
            return
        begin = time.monotonic()
        attention_mass.run(self.model, self.text_tokens, STATES, self._options.text.name)
        self.finished(MASS_UNIT, begin)


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def measure(bench: Bench, phases: Sequence[Passkeys | Perplexities]) -> None:
    for phase in phases:
        for variant in phase.variants:
            phase.run(bench, variant)


def write_report(source: Source) -> int:
    """Records the lines that are new or have changed; returns how many there are."""
    command = shlex.join(word for word in (Path(sys.argv[0]).name, *sys.argv[1:]) if word != "--report")
    known = {line["id"]: line for line in latest(RESULTS / "quality.jsonl")}
    count = 0
    for line in report(source):
        count += 1
        before = known.get(line["id"], {})
        if any(before.get(key) != value for key, value in line.items()):
            record("quality.jsonl", **line, command=command)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--text", required=True, type=Path)
    parser.add_argument("--target", help="where longshored listens")
    parser.add_argument("--run", metavar="NAME")
    parser.add_argument("--only", nargs="+", metavar="PHASE", help="such as passkey/16384 perplexity/12288")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if options.target is None and not options.report:
        parser.error("--target is needed to measure")
    if unknown := set(options.only or ()) - {phase.name for phase in PHASES}:
        parser.error(f"--only {' '.join(sorted(unknown))}: there are {sorted({phase.name for phase in PHASES})}")
    try:
        bench = Bench(options)
        if not options.report:
            bench.log.lock()
    except ValueError as error:
        parser.error(str(error))
    try:
        if not options.report:
            measure(bench, [phase for phase in PHASES if not options.only or phase.name in options.only])
            if not options.only:
                bench.attention_mass()
    except KeyboardInterrupt:
        print(f"stopped after {len(bench.log)} units; the same command goes on", flush=True)
    lines = write_report(Source(bench.log, bench.model.name, options.text.name))
    print(f"{lines} figures in {RESULTS / 'quality.jsonl'}, of {len(bench.log)} units in {bench.log.path}")
    try:
        import plot
    except ModuleNotFoundError as error:
        print(f"not drawn: {error}; pip install './client/python[bench]', then tests/bench/plot.py")
        return
    plot.draw(RESULTS)


if __name__ == "__main__":
    main()
