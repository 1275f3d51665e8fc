"""The command line of longshore.policy."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from google.protobuf import text_format

from longshore.dtypes import DType
from longshore.errors import InvalidArgument
from longshore.model_shape import ModelShape, Pairing, RopeTable
from longshore.policy import PRESETS, AttentionPolicy, explain, preset, validate
from longshore.policy.engine_data import preset_text
from longshore.policy.model_check import check_model
from longshore.policy.table import describe

DESCRIPTION = """\
Shows and checks attention policies. Needs no daemon: presets are the engine's own, and what is
wrong with a policy is said in the daemon's words.

A POLICY is a preset's name or a file with a longshore.v1.AttentionPolicy in protobuf text format,
as `show` prints it."""

EXAMPLES = """\
examples:
  python -m longshore.policy list
  python -m longshore.policy show standard > mine.textproto     # a policy to change
  python -m longshore.policy check mine.textproto
  python -m longshore.policy explain standard --context 1000000 --layers 32 --heads 32 \\
      --kv-heads 8 --head-dim 128 --dtype bf16 --trained-tokens 131072
  python -m longshore.policy explain mine.textproto --context 16384 --model SmolLM2.gguf
  python -m longshore.policy explain wide --context 500000 --model m.gguf --json | jq .decode"""

_SHAPE_OPTIONS = ("layers", "heads", "kv_heads", "head_dim")
_OF_A_SHAPE = ("dtype", "trained_tokens", "sliding_window", "sliding_layers")  # change it

# As the wire has them: int32 and int64.
_LARGEST = dict.fromkeys(_SHAPE_OPTIONS, (1 << 31) - 1) | dict.fromkeys(
    ("trained_tokens", "sliding_window", "context", "max_tokens", "dense_below"), (1 << 63) - 1
)


class _UserError(Exception):
    """What the user can put right; its text is a line for them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 1 for a policy, a model or a file that is not right."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        _check_numbers(options)
        run(options)
        sys.stdout.flush()
    except _UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except InvalidArgument as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m longshore.policy",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="the presets, and what decode does in a line each")
    listing.set_defaults(run=_list)

    show = commands.add_parser("show", help="a preset in full, as protobuf text")
    show.add_argument("name", metavar="NAME", help=", ".join(PRESETS))
    show.set_defaults(run=_show)

    check = commands.add_parser(
        "check",
        help="whether a daemon would take a policy",
        description="Says what a daemon would say about a policy; with a model and --max-tokens "
        "also whether a session of that length could be opened.",
    )
    check.add_argument("policy", metavar="POLICY", help="a preset's name or a file")
    check.set_defaults(run=_check)

    explaining = commands.add_parser(
        "explain",
        help="stages, tokens and bytes of a step, and a session's memory",
        description="""\
Prints what a policy does at a context, for decode and prefill and each group of layers: the stages
with their candidates, what is attended to, the bytes that a step reads, and the memory of the
session. Bytes are those of keys, values and key summaries, each counted once a step.

  fresh    the step that runs every stage    cached  the one before, on what they kept
  average  over all steps between            dense   what the policy dense reads
  all kept  there is nothing to choose, so nothing is scored

In prefill a stage runs once for the rows that share its choice ("every 256 rows"): its column reads
is one run, of which each query block is charged an equal part.
Of descent the bytes are an upper bound: 1 + log2(chunk) keys a head, at most the whole chunk.""",
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    explaining.add_argument("policy", metavar="POLICY", help="a preset's name or a file")
    explaining.add_argument(
        "--context", type=int, required=True, metavar="N", help="tokens that every layer holds"
    )
    explaining.add_argument("--json", action="store_true", help="numbers for programs")
    explaining.set_defaults(run=_explain)
    for command in (check, explaining):
        _add_session_options(command)
    return parser


def _add_session_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("session").add_argument
    add(
        "--max-tokens",
        type=int,
        metavar="N",
        help="of the session; past the trained length it changes rotary ids (default: the context)",
    )
    add("--dense-below", type=int, metavar="N", help="replaces a preset's dense_below_tokens")
    add("--dtype", choices=[kind.value for kind in DType], help="of keys and values (default: f32)")
    add = parser.add_argument_group("model: a file, or its numbers").add_argument
    add("--model", type=Path, metavar="FILE", help="GGUF file of a Llama; weights are not read")
    add("--layers", type=int, metavar="N", help="decoder layers")
    add("--heads", type=int, metavar="N", help="query heads of a layer")
    add("--kv-heads", type=int, metavar="N", help="KV heads of a layer (default: as many)")
    add("--head-dim", type=int, metavar="N", help="elements of a head")
    add(
        "--trained-tokens",
        type=int,
        metavar="N",
        help="length that the model was trained to (default: the file's; no limit without a file)",
    )
    add("--sliding-window", type=int, metavar="N", help="tokens that a query sees, itself included")
    add(
        "--sliding-layers",
        metavar="LIST",
        help="layers with that window, as 0-4,6-10 (default: all)",
    )


def _check_numbers(options: argparse.Namespace) -> None:
    """What a request can hold goes on, to be refused in the daemon's words."""
    for name, largest in _LARGEST.items():
        value = getattr(options, name, None)
        if value is not None and not -largest <= value <= largest:
            raise _UserError(f"{_option(name)} {value} is not in {-largest}..{largest}")


def _list(options: argparse.Namespace) -> None:
    width = max(map(len, PRESETS))
    for name in PRESETS:
        print(f"{name:{width}}  {describe(preset(name))}")


def _show(options: argparse.Namespace) -> None:
    preset(options.name)
    print(preset_text(options.name), end="")


def _check(options: argparse.Namespace) -> None:
    shape = _shape(options, required=False)
    policy, dense_below = _policy(options.policy), options.dense_below
    validate(policy, shape, max_tokens=options.max_tokens, dense_below_tokens=dense_below)
    print(f"{_shown(options.policy)} is a policy that a daemon takes")


def _explain(options: argparse.Namespace) -> None:
    shape = _shape(options, required=True)
    assert shape is not None
    explanation = explain(
        _policy(options.policy),
        shape,
        options.context,
        max_tokens=options.max_tokens,
        dense_below_tokens=options.dense_below,
    )
    explanation = replace(explanation, name=_shown(options.policy))
    print(json.dumps(explanation.as_dict(), indent=1) if options.json else explanation)


def _policy(name: str) -> str | AttentionPolicy:
    """A preset's name as it is; the policy of a file. What looks like neither is told as a name."""
    if name in PRESETS:
        return name
    if not os.path.exists(name) and "." not in name and os.sep not in name:
        preset(name)  # raises
    try:
        text = Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise _UserError(f"cannot read {name}: {reason}") from error
    try:
        return text_format.Parse(text, AttentionPolicy())
    except text_format.ParseError as error:
        raise _UserError(f"{name}:{error}") from error


def _shape(options: argparse.Namespace, required: bool) -> ModelShape | None:
    """The model that the options describe; None if they do not name one and need not."""
    given = [name for name in _SHAPE_OPTIONS if getattr(options, name) is not None]
    if options.model is not None:
        if given:
            raise _UserError(f"--model has the model's numbers: leave out {_option(given[0])}")
        shape = _read_shape(options.model)
    elif given or required:
        missing = [
            name for name in _SHAPE_OPTIONS if getattr(options, name) is None and name != "kv_heads"
        ]
        if missing:
            raise _UserError(
                f"the model is not known: give --model, or {_option(missing[0])} as well"
            )
        kv_heads = options.heads if options.kv_heads is None else options.kv_heads
        shape = ModelShape(options.layers, options.heads, kv_heads, options.head_dim)
    else:
        idle = [name for name in _OF_A_SHAPE if getattr(options, name) is not None]
        if idle:
            raise _UserError(f"{_option(idle[0])} goes with a model: give --model, or --layers")
        return None
    # Before anything is made of its sizes. The tables of a file may yet be changed.
    check_model(replace(shape, rope_tables=()))
    return _adjusted(shape, options)


def _read_shape(path: Path) -> ModelShape:
    from longshore.runner import RunnerError  # reads GGUF: not for those who give numbers
    from longshore.runner.model import load_shape

    try:
        return load_shape(path)
    except RunnerError as error:
        raise _UserError(str(error)) from error


def _adjusted(shape: ModelShape, options: argparse.Namespace) -> ModelShape:
    """The shape with what the other options say of it."""
    if options.dtype is not None:
        shape = replace(shape, kv_dtype=DType(options.dtype))
    trained = options.trained_tokens
    if trained is not None and shape.rope_tables:
        tables = [replace(table, trained_tokens=trained) for table in shape.rope_tables]
        shape = replace(shape, rope_tables=tables)
    elif trained is not None:
        # The frequencies are of no account here, their number is to the size of the tables.
        table = RopeTable.from_base(10000.0, shape.head_dim, Pairing.HALVES, trained)
        shape = replace(shape, rope_tables=[table])
    if options.sliding_window is not None:
        sliding = _layers(options.sliding_layers, shape.num_layers)
        window = options.sliding_window
        windows = [window if layer in sliding else 0 for layer in range(shape.num_layers)]
        shape = replace(shape, layer_sliding_window=windows)
    elif options.sliding_layers is not None:
        raise _UserError("--sliding-layers says which, --sliding-window says how far: give both")
    return shape


def _layers(text: str | None, num_layers: int) -> set[int]:
    """0-4,6 -> {0, 1, 2, 3, 4, 6}."""
    if text is None:
        return set(range(num_layers))
    layers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch("([0-9]{1,18})(?:-([0-9]{1,18}))?", part)
        if match is None:
            raise _UserError(f"--sliding-layers {text}: {part!r} is neither a layer nor a range")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise _UserError(f"--sliding-layers {text}: {first} comes after {last}")
        if last >= num_layers:
            raise _UserError(f"--sliding-layers {text}: {last} is not below --layers {num_layers}")
        layers |= set(range(first, last + 1))
    return layers


def _shown(name: str) -> str:
    """A name from the command line, whose bytes may be no UTF-8, as text that can be printed."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


if __name__ == "__main__":
    sys.exit(main())
