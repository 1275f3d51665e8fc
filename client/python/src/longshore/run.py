"""Asks a model about a document.

python -m longshore.run --model FILE.gguf --prompt-file DOC --ask QUESTION
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from longshore import daemon_attention
from longshore.attention import Attention
from longshore.runner import Llama, LocalAttention, Model, RunnerError, TextStream, load_model
from longshore.runner.chat import chat_prompt

DESCRIPTION = """\
Runs a Llama-architecture GGUF in numpy, with longshored for its attention, and prints its answer
as it comes.

The document and the question become one user message in the model's chat format; with --raw there
is no chat format and the model continues the text. Text goes to stdout, progress and timings to
stderr."""

EXAMPLES = """\
examples:
  python -m longshore.run --model SmolLM2.gguf --ask "What is the capital of France?"
  python -m longshore.run --model SmolLM2.gguf --prompt-file report.txt --ask "Who wrote it?"
  echo "Once upon a time" | python -m longshore.run --model SmolLM2.gguf --prompt-file - --raw
  python -m longshore.run --model SmolLM2.gguf --ask "No daemon?" --attention local"""


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m longshore.run",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", required=True, type=Path, metavar="FILE", help="GGUF file of a Llama")
    add("--prompt-file", metavar="DOC", help="document, UTF-8 text; - is stdin")
    add("--ask", metavar="QUESTION", help="question, put after the document")
    add("--raw", action="store_true", help="no chat format: continue the text")
    add(
        "--attention",
        choices=["daemon", "local"],
        default="daemon",
        help="who computes attention: longshored, or dense in this process (default: %(default)s)",
    )
    add(
        "--max-tokens",
        type=int,
        default=256,
        metavar="N",
        help="longest answer (default: %(default)s)",
    )
    add(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="0 takes the likeliest token each time, 1 samples as trained (default: %(default)s)",
    )
    add("--seed", type=int, metavar="N", help="makes sampling repeatable")
    add(
        "--piece",
        type=int,
        default=1024,
        metavar="ROWS",
        help="prompt tokens computed together, a multiple of 64 (default: %(default)s)",
    )
    daemon_attention.add_arguments(parser)
    options = parser.parse_args(arguments)
    if options.prompt_file is None and options.ask is None:
        parser.error("nothing to do: give --prompt-file, --ask or both")
    if options.max_tokens < 1:
        parser.error(f"--max-tokens {options.max_tokens} is not positive")
    if options.temperature < 0:
        parser.error(f"--temperature {options.temperature} is negative")
    if options.piece < 1 or options.piece % 64 != 0:
        parser.error(f"--piece {options.piece} is not a positive multiple of 64")
    return options


def read_prompt(options: argparse.Namespace) -> str:
    """Document and question as one text. Raises RunnerError if it is empty or cannot be read."""
    document = ""
    if options.prompt_file == "-":
        document = sys.stdin.buffer.read().decode("utf-8-sig", errors="replace")
    elif options.prompt_file is not None:
        try:
            document = Path(options.prompt_file).read_bytes().decode("utf-8-sig", errors="replace")
        except OSError as error:
            raise RunnerError(f"cannot read {options.prompt_file}: {error.strerror}") from error
    if options.prompt_file is not None and not document.strip():
        raise RunnerError(f"the prompt is empty: {options.prompt_file} holds no text")
    if options.ask is not None and not options.ask.strip():
        raise RunnerError("the prompt is empty: --ask holds no text")
    if options.raw:
        return document + (options.ask or "")
    return "\n\n".join(part for part in (document.strip(), options.ask) if part)


def open_attention(options: argparse.Namespace, model: Model, max_tokens: int) -> Attention:
    """The Attention that --attention names, with room for max_tokens."""
    if options.attention == "daemon":
        return daemon_attention.from_arguments(options, model.shape, max_tokens)
    return LocalAttention(model.shape, max_tokens)


class Progress:
    """Prefill progress on stderr: one line, rewritten, on a terminal, else a line every 5 s."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._terminal = sys.stderr.isatty()
        self._begin = self._last_time = self._shown = time.monotonic()
        self._last_done = 0

    def show(self, done: int) -> None:
        now = time.monotonic()
        # The last piece's speed, not the average, because attention slows with length.
        speed = (done - self._last_done) / max(now - self._last_time, 1e-9)
        self._last_time, self._last_done = now, done
        left = (self._total - done) / speed
        line = f"prefill {done}/{self._total} tokens, {speed:.0f} tok/s, {left:.0f} s left"
        if self._terminal:
            end = "\n" if done == self._total else ""
            print(f"\r\x1b[K{line}", end=end, file=sys.stderr, flush=True)
        elif now - self._shown >= 5:
            self._shown = now
            print(line, file=sys.stderr, flush=True)

    def seconds(self) -> float:
        return time.monotonic() - self._begin


def answer(llama: Llama, tokens: Sequence[int], options: argparse.Namespace) -> None:
    """Prefills tokens, streams the answer to stdout and a summary to stderr."""
    progress = Progress(len(tokens))
    logits = llama.prefill(tokens, on_piece=progress.show)
    prefill_seconds = progress.seconds()

    begin, count = time.monotonic(), 0
    stream = TextStream(llama.tokenizer)
    for token in llama.generate(logits, options.max_tokens, options.temperature, options.seed):
        count += 1
        print(stream.push(token), end="", flush=True)
    print(stream.finish(), flush=True)
    decode_seconds = time.monotonic() - begin

    summary = (
        f"{len(tokens)} prompt tokens, prefill {prefill_seconds:.1f} s "
        f"({len(tokens) / prefill_seconds:.0f} tok/s); "
        f"{count} tokens, {count / max(decode_seconds, 1e-9):.1f} tok/s"
    )
    print(summary, file=sys.stderr)


def run(options: argparse.Namespace) -> None:
    """Raises RunnerError for whatever the user can put right."""
    text = read_prompt(options)  # before the model: a wrong path should not cost seconds
    model = load_model(options.model)
    tokens = model.tokenizer.encode(text) if options.raw else chat_prompt(model.tokenizer, text)
    if not tokens:
        raise RunnerError("the prompt is empty: the vocabulary has no token for any of it")
    max_tokens = len(tokens) + options.max_tokens
    trained_tokens = model.shape.rope_tables[0].trained_tokens
    if options.attention == "local" and max_tokens > trained_tokens:
        print(
            f"warning: {model.name} was trained to {trained_tokens} tokens, this run needs up to "
            f"{max_tokens}; beyond that, dense attention at true positions loses the thread",
            file=sys.stderr,
        )
    with Llama(model, open_attention(options, model, max_tokens), options.piece) as llama:
        answer(llama, tokens, options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 for an input that cannot be run, 130 when interrupted."""
    options = parse_arguments(arguments)
    try:
        run(options)
    except RunnerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
