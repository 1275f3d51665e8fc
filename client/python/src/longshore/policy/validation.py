"""Whether a daemon would take a policy, and what it would say if not."""

from __future__ import annotations

from longshore._proto.longshore.v1.policy_pb2 import AttentionPolicy, PolicySpec
from longshore._proto.longshore.v1.session_pb2 import OpenSessionRequest
from longshore.model_shape import ModelShape
from longshore.policy.engine_data import DEFAULT_LIMITS, SessionLimits, preset
from longshore.policy.model_check import check_model
from longshore.policy.policy_check import check_values, check_written
from longshore.policy.refusal import refuse
from longshore.policy.session_size import check_page, check_session_size


def validate(
    policy: str | AttentionPolicy,
    shape: ModelShape | None = None,
    *,
    max_tokens: int | None = None,
    dense_below_tokens: int | None = None,
    limits: SessionLimits = DEFAULT_LIMITS,
) -> None:
    """Raises what open_session would: InvalidArgument with the same message, field and reason.

    policy, dense_below_tokens  as for open_session
    shape                       None: the model, and what depends on it, is not looked at
    max_tokens                  None: nothing that depends on the session's length is
    limits                      of a daemon whose operator has set others than the defaults

    What depends on the moment is left to the daemon: whether its pool and its tables have room.
    What no request can hold is a TypeError or a ValueError, as of open_session.
    """
    OpenSessionRequest(
        model=None if shape is None else shape.to_wire(),
        policy=policy_spec(policy, dense_below_tokens),
        max_tokens=max_tokens,
    )
    if shape is not None:
        check_model(shape)
    full = _checked(policy, dense_below_tokens)
    if max_tokens is not None and not 1 <= max_tokens <= limits.max_tokens_per_session:
        refuse("max_tokens", f"{max_tokens} is not in 1..{limits.max_tokens_per_session}")
    if shape is not None:
        check_page(shape)
        if max_tokens is not None:
            check_session_size(shape, full, max_tokens, limits)


def policy_spec(policy: str | AttentionPolicy, dense_below_tokens: int | None) -> PolicySpec:
    """A preset, with its dense_below_tokens replaced unless that is None, or a policy in full."""
    if isinstance(policy, str):
        return PolicySpec(preset=policy, dense_below_tokens=dense_below_tokens)
    return PolicySpec(policy=policy, dense_below_tokens=dense_below_tokens)


def in_full(policy: str | AttentionPolicy, dense_below_tokens: int | None) -> AttentionPolicy:
    """A copy of a policy, or a preset with its dense_below_tokens replaced unless that is None."""
    if not isinstance(policy, str):
        copy = AttentionPolicy()
        copy.CopyFrom(policy)
        return copy
    named = preset(policy)
    if dense_below_tokens is not None:
        named.dense_below_tokens = dense_below_tokens
    return named


def _checked(policy: str | AttentionPolicy, dense_below_tokens: int | None) -> AttentionPolicy:
    full = in_full(policy, dense_below_tokens)
    at = "policy"
    if not isinstance(policy, str):
        if dense_below_tokens is not None:
            refuse("policy.dense_below_tokens", "goes with a preset: set it in policy")
        at = "policy.policy"
        check_written(full, at)
    check_values(full, at)
    return full
