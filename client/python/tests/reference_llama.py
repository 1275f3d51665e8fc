"""The Llama once more, in float64: one token, one head and one pair at a time.

Shares no code with the package.
"""

from __future__ import annotations

import math

import numpy as np
from tiny_model import EPSILON, HEAD_DIM, HEADS, KV_HEADS, LAYERS, ROPE_BASE, Weights


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / math.sqrt(sum(x * x) / len(x) + EPSILON) * weight


def rope(head: np.ndarray, position: int, factors: np.ndarray | None) -> np.ndarray:
    turned = head.copy()
    for pair in range(HEAD_DIM // 2):
        angle = position * ROPE_BASE ** (-2 * pair / HEAD_DIM)
        if factors is not None:
            angle /= factors[pair]
        x, y = head[2 * pair], head[2 * pair + 1]
        turned[2 * pair] = x * math.cos(angle) - y * math.sin(angle)
        turned[2 * pair + 1] = x * math.sin(angle) + y * math.cos(angle)
    return turned


def reference_logits(weights: Weights, tokens: list[int]) -> np.ndarray:
    """[len(tokens), vocabulary]."""
    factors = weights.get("rope_freqs.weight")
    keys: list[list[np.ndarray]] = [[] for _ in range(LAYERS)]
    values: list[list[np.ndarray]] = [[] for _ in range(LAYERS)]
    rows = []
    for position, token in enumerate(tokens):
        x = weights["token_embd.weight"][token]
        for i in range(LAYERS):
            w = {name: weights[f"blk.{i}.{name}.weight"] for name in _NAMES}
            a = norm(x, w["attn_norm"])
            q = (w["attn_q"] @ a).reshape(HEADS, HEAD_DIM)
            k = (w["attn_k"] @ a).reshape(KV_HEADS, HEAD_DIM)
            keys[i].append(np.array([rope(head, position, factors) for head in k]))
            values[i].append((w["attn_v"] @ a).reshape(KV_HEADS, HEAD_DIM))
            heads = []
            for head in range(HEADS):
                kv_head = head // (HEADS // KV_HEADS)
                turned = rope(q[head], position, factors)
                scores = [turned @ past[kv_head] / math.sqrt(HEAD_DIM) for past in keys[i]]
                exps = [math.exp(score - max(scores)) for score in scores]
                mix = sum(e * past[kv_head] for e, past in zip(exps, values[i]))
                heads.append(mix / sum(exps))
            x = x + w["attn_output"] @ np.concatenate(heads)
            f = norm(x, w["ffn_norm"])
            gate, up = w["ffn_gate"] @ f, w["ffn_up"] @ f
            x = x + w["ffn_down"] @ (gate / (1 + np.exp(-gate)) * up)
        rows.append(weights["token_embd.weight"] @ norm(x, weights["output_norm.weight"]))
    return np.array(rows)


_NAMES = (
    *("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
    *("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"),
)
