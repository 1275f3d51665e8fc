"""How the benchmarks in Python attend: a session under a preset, or under one with a field replaced."""

from __future__ import annotations

import argparse

from longshore import ModelShape, connect
from longshore.daemon_attention import DaemonAttention
from longshore.policy import AttentionPolicy, Extension

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


def policy_in_full(target: str, shape: ModelShape, max_tokens: int, preset: str) -> AttentionPolicy:
    """What a preset is, field by field: the daemon says so when a session is opened with it."""
    with connect(target) as client:
        with client.open_session(shape, preset, max_tokens=max_tokens, overcommit=True) as session:
            policy = AttentionPolicy()
            policy.CopyFrom(session.policy)
            return policy


def open_attention(
    shape: ModelShape, max_tokens: int, preset: str, options: argparse.Namespace
) -> DaemonAttention:
    """Sparse from the first token on: dense_below_tokens is 0."""
    policy = policy_in_full(options.target, shape, max_tokens, preset)
    policy.dense_below_tokens = 0
    if options.extension is not None:
        policy.extension = EXTENSIONS[options.extension]
    return DaemonAttention.connect(shape, max_tokens, target=options.target, policy=policy)
