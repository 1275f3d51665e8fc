"""What a layer does for a query block: regions, candidates, tokens, bytes (engine/plan.cc)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from longshore._proto.longshore.v1 import policy_pb2 as wire
from longshore.policy.policy_check import style_name

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Clock:
    """A number of each step between two refreshes of the coarsest stage, all at the same context.

    values  [coarsest refresh_steps]; index 0: every stage runs. In steady decoding the step of
            layer l at position p is number (p + l) mod len(values).
    """

    values: Counts

    @property
    def fresh(self) -> int:
        """Of the step that runs every stage."""
        return int(self.values[0])

    @property
    def cached(self) -> int:
        """Of the last step before that, which runs no stage but those of every step."""
        return int(self.values[-1])

    @property
    def average(self) -> float:
        return float(self.values.mean())


@dataclass(frozen=True)
class StageReads:
    """One pruning stage at one context, when it has just been refreshed.

    candidates     chunks that it chooses from
    kept_chunks    of them; a stage that keeps all scores none and reads nothing
    keep_tokens    its budget
    rope           the style of its rotary ids at this context
    shared_rows    rows of a prefill that share a choice, and so its cost; 1 in decode
    read_bytes     to score all candidates, once for all rows that share the choice; of descent at
                   most: its ways differ in length, and meet
    """

    selector: str
    chunk_tokens: int
    candidates: int
    kept_chunks: int
    keep_tokens: int
    refresh_steps: int
    rope: str
    shared_rows: int
    read_bytes: int


@dataclass(frozen=True)
class QueryBlock:
    """Whose step it is.

    first_position, end  positions of the rows: [first_position, end)
    rows                 that are attended together: 1 in decode; in a prefill the policy's query
                         block, of which the last one may have fewer
    alike_from           of a prefill: where the blocks begin that have stages and the rotary styles
                         of this one. No others share its choices
    sink_tokens          of the policy
    token_bytes          of a key of one layer, all KV heads; its value has as many
    head_bytes           of a key of one KV head
    num_heads            query heads: descent reads for each
    beyond               uses the styles for beyond the trained length
    """

    first_position: int
    end: int
    rows: int
    alike_from: int
    sink_tokens: int
    token_bytes: int
    head_bytes: int
    num_heads: int
    beyond: bool

    def sharing(self, stage: wire.Stage) -> tuple[int, int]:
        """First position and number of the rows that share a choice of the stage with this block.

        Those within an absolute multiple of the stage's query block, in a prefill that goes on.
        """
        if self.rows == 1:
            return self.first_position, 1
        stage_rows = stage.query_block or self.rows
        start = block_start(self.first_position, stage_rows)
        first = max(start, self.alike_from)
        return first, start + stage_rows - first


@dataclass(frozen=True)
class LayerStep:
    """One layer's step: its stages, and what it attends to.

    sink, selected, window  tokens that any of the rows attends to, the block's own in the window
    read_bytes              stages that run, and keys and values in attention. In a prefill a stage
                            that runs once for several query blocks is charged to each in equal parts
    """

    stages: tuple[StageReads, ...]
    sink: Clock
    selected: Clock
    window: Clock
    attended: Clock
    read_bytes: Clock


def whole_step(block: QueryBlock, first_token: int = 0) -> LayerStep:
    """Attends to every token from `first_token` on: dense, or a sliding window."""
    once = np.ones(1, np.int64)
    return _attend((), block, 0 * once, 0 * once, (block.end - first_token) * once, 0 * once)


def pruned_step(block: QueryBlock, layers: wire.LayerPolicy, ages: int) -> LayerStep:
    """Attends to sink, window and what the stages keep; steps 0..ages - 1 after a refresh."""
    age = np.arange(ages, dtype=np.int64)
    chunk = layers.stages[0].chunk_tokens if layers.stages else 1
    # The middle's end M stays where it was when the coarsest stage refreshed; the window grows.
    refreshed_at = block.first_position + 0 * age
    if layers.stages:
        refreshed_at = block.sharing(layers.stages[0])[0] - age
    older = refreshed_at + 1 - layers.window_tokens - block.sink_tokens
    middle = np.maximum(0, older // chunk * chunk)
    reads = np.zeros_like(age)
    stages = []
    tokens = middle
    for stage in layers.stages:
        candidates = tokens // stage.chunk_tokens
        kept = np.minimum(stage.keep_tokens // stage.chunk_tokens, candidates)
        scored = np.where(kept == candidates, 0, candidates * _chunk_bytes(stage, block))
        blocks = block.sharing(stage)[1] // block.rows  # that one choice serves
        reads += np.where(age % stage.refresh_steps == 0, scored, 0) // blocks
        stages.append(_stage_reads(stage, block, int(candidates[0]), int(kept[0]), int(scored[0])))
        tokens = kept * stage.chunk_tokens
    selected = tokens if layers.stages else 0 * age
    sink = np.minimum(block.sink_tokens, block.end) + 0 * age
    window = np.maximum(0, block.end - block.sink_tokens - middle)
    return _attend(tuple(stages), block, sink, selected, window, reads)


def _attend(
    stages: tuple[StageReads, ...],
    block: QueryBlock,
    sink: Counts,
    selected: Counts,
    window: Counts,
    stage_bytes: Counts,
) -> LayerStep:
    attended = sink + selected + window
    read_bytes = stage_bytes + attended * (2 * block.token_bytes)
    clocks = map(Clock, (sink, selected, window, attended, read_bytes))
    return LayerStep(stages, *clocks)


def _stage_reads(
    stage: wire.Stage, block: QueryBlock, candidates: int, kept: int, read_bytes: int
) -> StageReads:
    rope = stage.rope.beyond_trained if block.beyond else stage.rope.within_trained
    return StageReads(
        selector=wire.Selector.Name(stage.selector).removeprefix("SELECTOR_").lower(),
        chunk_tokens=stage.chunk_tokens,
        candidates=candidates,
        kept_chunks=kept,
        keep_tokens=stage.keep_tokens,
        refresh_steps=stage.refresh_steps,
        rope=style_name(rope),
        shared_rows=block.sharing(stage)[1],
        read_bytes=read_bytes,
    )


def _chunk_bytes(stage: wire.Stage, block: QueryBlock) -> int:
    """Bytes that scoring one candidate reads: the column "reads" of the method's table."""
    if stage.selector == wire.SELECTOR_BOUNDS:
        return 2 * block.token_bytes  # elementwise minimum and maximum
    if stage.selector == wire.SELECTOR_EXACT:
        return stage.chunk_tokens * block.token_bytes
    if stage.selector == wire.SELECTOR_PROBES:
        return stage.probes.probes * block.token_bytes
    if stage.selector == wire.SELECTOR_DESCENT:
        scattered = descent_keys(stage) * block.num_heads * block.head_bytes
        return min(scattered, stage.chunk_tokens * block.token_bytes)  # heads of a group may meet
    raise ValueError(f"selector {stage.selector} is not known to this client")


def descent_keys(stage: wire.Stage) -> int:
    """Different keys on the longest way of a head down a chunk; by the middle, at most.

    A chunk of n tokens is halved into floor((n - 1) / 2) and the rest until two are left or one.
    Stood for by its first token, the left half is known from its parent: 1 + log2(chunk) keys.
    Stood for by its middle one, each half is mostly another key: 2 a level.
    """
    levels, tokens = 0, stage.chunk_tokens
    while tokens > 2:
        tokens -= (tokens - 1) // 2
        levels += 1
    middle = wire.DescentParams.REPRESENTATIVE_MIDDLE
    by_middle = stage.descent.representative == middle
    return max(1, 2 * levels) if by_middle else 1 + levels


def clock_steps(layers: wire.LayerPolicy, context_tokens: int) -> int:
    """Steps from one refresh of the coarsest stage to the next; no more than there have been."""
    return min(layers.stages[0].refresh_steps, context_tokens) if layers.stages else 1


def block_start(position: int, rows: int) -> int:
    """First position of the query block of `rows` rows that a prefill would have `position` in."""
    return position // rows * rows
