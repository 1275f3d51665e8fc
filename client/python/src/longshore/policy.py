"""Attention policies: a preset's name, or everything in full as the wire's own messages.

`Session.policy` is a preset in full: copy it, change it, and open the next session with it.

    policy = longshore.policy.AttentionPolicy()
    policy.CopyFrom(session.policy)
    policy.decode.rest.window_tokens = 2048

What each field means is written in proto/longshore/v1/policy.proto; the daemon checks the values.
"""

from __future__ import annotations

from longshore._proto.longshore.v1.policy_pb2 import (
    AttentionPolicy,
    DescentParams,
    Extension,
    LayerPolicy,
    Middle,
    PhasePolicy,
    PolicySpec,
    ProbesParams,
    Ranking,
    RopeChoice,
    RopeStyle,
    Selector,
    Stage,
)

__all__ = [
    "AttentionPolicy",
    "DescentParams",
    "Extension",
    "LayerPolicy",
    "Middle",
    "PhasePolicy",
    "ProbesParams",
    "Ranking",
    "RopeChoice",
    "RopeStyle",
    "Selector",
    "Stage",
    "policy_spec",
]


def policy_spec(policy: str | AttentionPolicy, dense_below_tokens: int | None) -> PolicySpec:
    """A preset, with its dense_below_tokens replaced unless that is None, or a policy in full."""
    if isinstance(policy, str):
        return PolicySpec(preset=policy, dense_below_tokens=dense_below_tokens)
    return PolicySpec(policy=policy, dense_below_tokens=dense_below_tokens)
