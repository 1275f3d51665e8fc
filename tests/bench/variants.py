"""What quality.py compares: presets as they are, and presets with a part replaced, as data.

Every variant is one AttentionPolicy; all keep the sink of 256 and the window of 1024 tokens of their preset.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from longshore.policy import AttentionPolicy, LayerPolicy, Ranking, RopeStyle, Selector, Stage, preset

Change = Callable[[AttentionPolicy], None]

TEXT_TOKENS = 16384  # of real text, for methods
STYLE_TOKENS = 12288  # of real text and of pass keys, for styles
THREE_DEPTHS = (0.1, 0.5, 0.9)

# self_extend: ids within 16,384 tokens stay below 1024 + 15,360 / 4 = 4,864 of the 8,192 that were trained.
SELF_EXTEND_GROUP, SELF_EXTEND_NEIGHBOR_TOKENS = 4, 1024


@dataclass(frozen=True)
class Variant:
    """A preset and what is changed in it."""

    name: str  # for people: rows of the tables
    preset: str
    change: Change | None = None
    baseline: str = "standard"  # what it is compared with, answer by answer and token by token
    same_as: str = ""  # the variant that it is under another name: it is not measured twice

    @property
    def id(self) -> str:
        """The name as a part of a recorded id."""
        return as_id(self.name)

    @property
    def measured_id(self) -> str:
        """The name as a part of a unit's name."""
        return as_id(self.same_as or self.name)

    @property
    def is_baseline(self) -> bool:
        return self.baseline in (self.name, self.same_as)

    def policy(self) -> AttentionPolicy:
        """In full, sparse from the first token on: dense_below_tokens is 0."""
        policy = preset(self.preset)
        policy.dense_below_tokens = 0
        if self.change is not None:
            self.change(policy)
        return policy


def as_id(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name)


def layer_policies(policy: AttentionPolicy) -> list[LayerPolicy]:
    return [
        layers
        for phase in (policy.prefill, policy.decode)
        for layers in (phase.rest, phase.early)[: 1 + (phase.first_layers > 0)]
    ]


def ranked_by(ranking: Ranking) -> Change:
    def change(policy: AttentionPolicy) -> None:
        policy.ranking = ranking

    return change


def only_stage(selector: Selector, chunk_tokens: int, keep_tokens: int = 2048) -> Change:
    """One stage over the whole middle, with the rotary styles and the refresh of the preset's last stage."""

    def change(policy: AttentionPolicy) -> None:
        for layers in layer_policies(policy):
            stage = Stage()
            stage.CopyFrom(layers.stages[-1])
            stage.selector = selector
            stage.chunk_tokens = chunk_tokens
            stage.keep_tokens = keep_tokens
            del layers.stages[:]
            layers.stages.append(stage)

    return change


def attention_style(style: RopeStyle) -> Change:
    """Rotary ids in attention, beyond the trained length."""

    def change(policy: AttentionPolicy) -> None:
        set_style(policy.attention_rope, style)

    return change


def pruning_style(style: RopeStyle) -> Change:
    """Rotary ids of the one stage of `exact only`, beyond the trained length: bounds knows not every style."""

    def change(policy: AttentionPolicy) -> None:
        EXACT_ONLY(policy)
        for layers in layer_policies(policy):
            for stage in layers.stages:
                set_style(stage.rope, style)

    return change


def set_style(rope, style: RopeStyle) -> None:
    rope.beyond_trained = style
    if style == RopeStyle.ROPE_STYLE_SELF_EXTEND:
        rope.self_extend_group = SELF_EXTEND_GROUP
        rope.self_extend_neighbor_tokens = SELF_EXTEND_NEIGHBOR_TOKENS


EXACT_ONLY = only_stage(Selector.SELECTOR_EXACT, 8)

# In the order in which they are measured: what tells most first.
METHODS = [
    Variant("standard", "standard"),
    Variant("paper-3k", "paper-3k"),
    Variant("paper-3k + probability", "paper-3k", ranked_by(Ranking.RANKING_PROBABILITY)),
    Variant("dense", "dense"),
    Variant("streaming", "streaming"),
    Variant("exact only", "standard", EXACT_ONLY),
    Variant("bounds only", "standard", only_stage(Selector.SELECTOR_BOUNDS, 64)),
    Variant("standard + probability_sum", "standard", ranked_by(Ranking.RANKING_PROBABILITY_SUM)),
    Variant("paper-5k", "paper-5k"),
]


def of_attention(name: str, style: RopeStyle) -> Variant:
    return Variant(f"attention {name}", "standard", attention_style(style))


def of_pruning(name: str, style: RopeStyle) -> Variant:
    return Variant(f"pruning {name}", "standard", pruning_style(style), baseline="exact only")


# Rotary styles. The baselines are styles, too.
STYLES = [
    Variant("attention streaming", "standard", same_as="standard"),
    of_attention("true_positions", RopeStyle.ROPE_STYLE_TRUE_POSITIONS),
    of_attention("infllm", RopeStyle.ROPE_STYLE_INFLLM),
    of_attention("dynamic_extend", RopeStyle.ROPE_STYLE_DYNAMIC_EXTEND),
    of_attention("self_extend", RopeStyle.ROPE_STYLE_SELF_EXTEND),
    Variant("pruning relative", "standard", EXACT_ONLY, baseline="exact only", same_as="exact only"),
    of_pruning("true_positions", RopeStyle.ROPE_STYLE_TRUE_POSITIONS),
    of_pruning("chunk_indexed", RopeStyle.ROPE_STYLE_CHUNK_INDEXED),
    of_pruning("infllm", RopeStyle.ROPE_STYLE_INFLLM),
    of_pruning("dynamic_extend", RopeStyle.ROPE_STYLE_DYNAMIC_EXTEND),
    of_pruning("self_extend", RopeStyle.ROPE_STYLE_SELF_EXTEND),
]
