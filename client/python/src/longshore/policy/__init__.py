"""Attention policies: named ones, what a daemon would say about one, and what one costs.

    policy = longshore.policy.preset("standard")          # in full: change what you like
    policy.decode.rest.window_tokens = 2048
    longshore.policy.validate(policy, shape, max_tokens=1_000_000)
    print(longshore.policy.explain(policy, shape, context_tokens=1_000_000))

None of this needs a daemon; `python -m longshore.policy` does the same from a shell. What each
field means is written in proto/longshore/v1/policy.proto.

policy.engine_data     presets and limits, as the engine wrote them
policy.policy_check    a policy's errors; model_check: a shape's; session_size: those of both
policy.explanation     candidates, tokens and bytes of a step; layer_step: of one layer
policy.table           the same as text
"""

from __future__ import annotations

from longshore._proto.longshore.v1.policy_pb2 import (
    AttentionPolicy,
    DescentParams,
    Extension,
    LayerPolicy,
    Middle,
    PhasePolicy,
    ProbesParams,
    Ranking,
    RopeChoice,
    RopeStyle,
    Selector,
    Stage,
)
from longshore.policy.engine_data import DEFAULT_LIMITS, PRESETS, SessionLimits, preset
from longshore.policy.explanation import Explanation, explain
from longshore.policy.validation import policy_spec, validate

__all__ = [
    "AttentionPolicy",
    "DEFAULT_LIMITS",
    "DescentParams",
    "Explanation",
    "Extension",
    "LayerPolicy",
    "Middle",
    "PRESETS",
    "PhasePolicy",
    "ProbesParams",
    "Ranking",
    "RopeChoice",
    "RopeStyle",
    "Selector",
    "SessionLimits",
    "Stage",
    "explain",
    "policy_spec",
    "preset",
    "validate",
]
