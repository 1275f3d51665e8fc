"""What a policy does at one context, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from operator import index
from typing import Any

from longshore._proto.longshore.v1 import policy_pb2 as wire
from longshore.model_shape import ModelShape
from longshore.policy import layer_step, session_size, table
from longshore.policy.engine_data import DEFAULT_LIMITS, SessionLimits
from longshore.policy.layer_step import Clock, LayerStep, QueryBlock
from longshore.policy.policy_check import style_name
from longshore.policy.refusal import refuse
from longshore.policy.validation import in_full, validate


@dataclass(frozen=True)
class LayerGroup:
    """Layers that do the same.

    layers          their numbers
    middle          dense, none, stages; dense_below where a policy with stages is dense because the
                    context is short; sliding_window where the model lets a query see no further
    trained_tokens  of their rotary table; None without one
    rope            the style of rotary ids in attention
    step            of one of them, stages and attention
    dense_bytes     what one of them reads under the policy dense
    """

    layers: tuple[int, ...]
    middle: str
    trained_tokens: int | None
    rope: str
    step: LayerStep
    dense_bytes: int


@dataclass(frozen=True)
class Phase:
    """Decode: a step of one token. Prefill: the query block that ends at the context, of a prefill
    that goes on, so that its stages' cost is shared with the blocks that they also choose for.

    rows    of the query block
    groups  every layer is in one
    """

    rows: int
    groups: tuple[LayerGroup, ...]

    @property
    def average_bytes(self) -> float:
        """Read by a step of all layers, on average over the refresh clock."""
        return sum(len(group.layers) * group.step.read_bytes.average for group in self.groups)

    @property
    def fresh_bytes(self) -> int:
        """Read when every stage runs in every layer, as after a truncate. Else they take turns."""
        return sum(len(group.layers) * group.step.read_bytes.fresh for group in self.groups)

    @property
    def dense_bytes(self) -> int:
        """Read under the policy dense."""
        return sum(len(group.layers) * group.dense_bytes for group in self.groups)


@dataclass(frozen=True)
class SessionMemory:
    """Host memory of a session with room for max_tokens, as the daemon counts it.

    page_bytes     reserved in the pool when it is opened (SessionInfo.page_bytes_reserved)
    summary_bytes  of the key summaries of those pages, which the daemon keeps beside the pool
    table_bytes    rotary tables, page ids and masks, beside the pool too
    """

    page_bytes: int
    summary_bytes: int
    table_bytes: int


@dataclass(frozen=True)
class Explanation:
    """A policy at one context. As text: a table.

    sink_tokens, ranking, query_stride, dense_below_tokens, extension  of the policy
    """

    name: str
    shape: ModelShape
    context_tokens: int
    max_tokens: int
    sink_tokens: int
    ranking: str
    query_stride: int
    dense_below_tokens: int
    extension: str
    decode: Phase
    prefill: Phase
    memory: SessionMemory

    def __str__(self) -> str:
        return table.render(self)

    def as_dict(self) -> dict[str, Any]:
        """Everything in what JSON has; a clock as its fresh, cached and average."""
        plain: dict[str, Any] = _plain(self)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Clock):
        return {"fresh": value.fresh, "cached": value.cached, "average": value.average}
    if isinstance(value, ModelShape):
        names = ("num_layers", "num_heads", "num_kv_heads", "head_dim")
        return {name: getattr(value, name) for name in names} | {"kv_dtype": value.kv_dtype.value}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def explain(
    policy: str | wire.AttentionPolicy,
    shape: ModelShape,
    context_tokens: int,
    *,
    max_tokens: int | None = None,
    dense_below_tokens: int | None = None,
    limits: SessionLimits = DEFAULT_LIMITS,
) -> Explanation:
    """Stages, budgets and the bytes that a step of a policy reads at a context, layer by layer.

    context_tokens  that a layer holds, those of the step included
    max_tokens      of the session: decides memory and rotary styles. None: context_tokens

    Bytes are those of keys, values and summaries that are looked at, each once a step, in kv_dtype.
    Raises what validate() does.
    """
    longest = limits.max_tokens_per_session
    if max_tokens is None and not 1 <= context_tokens <= longest:
        refuse("context_tokens", f"{context_tokens} is not in 1..{longest}")
    max_tokens = context_tokens if max_tokens is None else max_tokens
    validate(
        policy, shape, max_tokens=max_tokens, dense_below_tokens=dense_below_tokens, limits=limits
    )
    context_tokens, max_tokens = index(context_tokens), index(max_tokens)
    if not 1 <= context_tokens <= max_tokens:
        refuse("context_tokens", f"{context_tokens} is not in 1..max_tokens {max_tokens}")
    full = in_full(policy, dense_below_tokens)
    view = _View(full, shape, context_tokens, max_tokens)
    last = context_tokens - 1
    pages = session_size.session_pages(shape, max_tokens, limits)
    page_bytes = pages * session_size.page_bytes(shape)
    return Explanation(
        name=policy if isinstance(policy, str) else "a policy",
        shape=shape,
        context_tokens=context_tokens,
        max_tokens=max_tokens,
        sink_tokens=full.sink_tokens,
        ranking=wire.Ranking.Name(full.ranking).removeprefix("RANKING_").lower(),
        query_stride=full.query_stride,
        dense_below_tokens=full.dense_below_tokens,
        extension=wire.Extension.Name(full.extension).removeprefix("EXTENSION_").lower(),
        decode=view.phase(full.decode, last, decodes=True),
        prefill=view.phase(
            full.prefill, layer_step.block_start(last, full.query_block), decodes=False
        ),
        memory=SessionMemory(
            page_bytes=page_bytes,
            summary_bytes=page_bytes // 32,  # 1/64 for each of two kinds
            table_bytes=session_size.table_bytes(shape, full, max_tokens),
        ),
    )


@dataclass(frozen=True)
class _View:
    """A policy on a model at a context."""

    policy: wire.AttentionPolicy
    shape: ModelShape
    context_tokens: int
    max_tokens: int

    def phase(self, phase: wire.PhasePolicy, first_position: int, decodes: bool) -> Phase:
        """The layers of a phase for the query block [first_position, context_tokens)."""
        groups = tuple(
            self._group(phase, first_position, decodes, layers) for layers in self._alike(phase)
        )
        return Phase(rows=self.context_tokens - first_position, groups=groups)

    def _alike(self, phase: wire.PhasePolicy) -> Iterator[tuple[int, ...]]:
        """The layers of each group, in the order of their first ones."""
        groups: dict[tuple[bool, int, int | None], list[int]] = {}
        for layer in range(self.shape.num_layers):
            window = self.shape.sliding_window(layer)
            # Where a window slides neither stages nor the trained length have a say.
            early = layer < phase.first_layers and window == 0
            trained = self._trained_tokens(layer) if window == 0 else None
            groups.setdefault((early, window, trained), []).append(layer)
        return map(tuple, groups.values())

    def _trained_tokens(self, layer: int) -> int | None:
        rope = self.shape.rope_table(layer)
        return None if rope is None else rope.trained_tokens

    def _group(
        self, phase: wire.PhasePolicy, first_position: int, decodes: bool, members: tuple[int, ...]
    ) -> LayerGroup:
        layer, shape = members[0], self.shape
        trained = self._trained_tokens(layer)
        layers = session_size.layers_of(phase, layer)
        key_bytes = session_size.token_bytes(shape)
        rows = self.policy.query_block
        block = QueryBlock(
            first_position=first_position,
            end=self.context_tokens,
            rows=1 if decodes else rows,
            alike_from=layer_step.block_start(self._alike_after(trained), rows),
            sink_tokens=self.policy.sink_tokens,
            token_bytes=key_bytes,
            head_bytes=key_bytes // shape.num_kv_heads,
            num_heads=shape.num_heads,
            beyond=self._beyond(trained),
        )
        middle = self._middle(layers, block, layer, trained)
        step = self._step(middle, layers, block, layer, decodes)
        slides = middle == "sliding_window"
        return LayerGroup(
            layers=members,
            middle=middle,
            trained_tokens=trained,
            rope=self._rope(middle, layers, block.beyond),
            step=step,
            dense_bytes=step.read_bytes.fresh if slides else 2 * key_bytes * block.end,
        )

    def _beyond(self, trained: int | None) -> bool:
        """Whether a block whose last row is the context's is beyond the trained length."""
        if trained is None:
            return False
        return self._extends_from_start(trained) or self.context_tokens > trained

    def _extends_from_start(self, trained: int) -> bool:
        return self.policy.extension == wire.EXTENSION_FROM_START and self.max_tokens > trained

    def _alike_after(self, trained: int | None) -> int:
        """The longest context whose last block has no stages yet, or other rotary styles."""
        if trained is None or not self._beyond(trained):
            return self.policy.dense_below_tokens
        return 0 if self._extends_from_start(trained) else trained

    def _middle(
        self, layers: wire.LayerPolicy, block: QueryBlock, layer: int, trained: int | None
    ) -> str:
        if self.shape.sliding_window(layer) > 0:
            return "sliding_window"
        limit = self.policy.dense_below_tokens
        limit = limit if trained is None else min(limit, trained)
        staged = layers.middle == wire.MIDDLE_STAGES
        if staged and not block.beyond and self.context_tokens <= limit:
            return "dense_below"
        return wire.Middle.Name(layers.middle).removeprefix("MIDDLE_").lower()

    def _rope(self, middle: str, layers: wire.LayerPolicy, beyond: bool) -> str:
        if middle in ("dense", "dense_below", "sliding_window"):
            return "true_positions"
        own = layers.HasField("attention_rope")
        rope = layers.attention_rope if own else self.policy.attention_rope
        return style_name(rope.beyond_trained if beyond else rope.within_trained)

    def _step(
        self, middle: str, layers: wire.LayerPolicy, block: QueryBlock, layer: int, decodes: bool
    ) -> LayerStep:
        if middle == "sliding_window":
            oldest = block.first_position + 1 - self.shape.sliding_window(layer)
            return layer_step.whole_step(block, max(0, oldest))
        if middle in ("dense", "dense_below"):
            return layer_step.whole_step(block)
        steps = layer_step.clock_steps(layers, self.context_tokens) if decodes else 1
        return layer_step.pruned_step(block, layers, steps)
