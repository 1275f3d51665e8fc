"""How the benchmarks in Python attend: a session under a preset, or under one with a field replaced."""

from __future__ import annotations

import argparse

import longshore.policy
from longshore import ModelShape
from longshore.daemon_attention import DaemonAttention
from longshore.policy import Extension

EXTENSIONS = {
    name.removeprefix("EXTENSION_").lower(): number for name, number in Extension.items() if number != 0
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", required=True)
    parser.add_argument("--policies", default="standard,streaming,dense")
    parser.add_argument(
        "--extension", choices=EXTENSIONS, help="replaces the presets' own; the recorded id says so"
    )


def name(preset: str, extension: str | None) -> str:
    """What a recorded id says of the policy."""
    return preset if extension is None else f"{preset}_{extension}"


def open_attention(
    shape: ModelShape, max_tokens: int, preset: str, options: argparse.Namespace
) -> DaemonAttention:
    """Sparse from the first token on: dense_below_tokens is 0."""
    policy = longshore.policy.preset(preset)
    policy.dense_below_tokens = 0
    if options.extension is not None:
        policy.extension = EXTENSIONS[options.extension]
    return DaemonAttention.connect(shape, max_tokens, target=options.target, policy=policy)
