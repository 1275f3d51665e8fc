"""Models and sessions that no daemon takes, each with its whole message: see bad_policies.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from bad_policies import MAX_REGION, ROPE, SHAPE, Refused

from longshore import DType, ModelShape
from longshore.policy.engine_data import LAYER_STATE_BYTES


def model(message: str, **changes: Any) -> Refused:
    return Refused(f"model.{message}", "standard", replace(SHAPE, **changes))


def rope(message: str, **changes: Any) -> Refused:
    return model(f"rope_tables[0].{message}", rope_tables=[replace(ROPE, **changes)])


MODELS = [  # engine/model_shape.cc
    model("num_layers 0 is not in 1..1024", num_layers=0),
    model("num_layers 1025 is not in 1..1024", num_layers=1025),
    model("num_heads 1025 is not in 1..1024", num_heads=1025),
    model("num_kv_heads 3 does not divide num_heads 4", num_kv_heads=3),
    model("num_kv_heads 0 does not divide num_heads 4", num_kv_heads=0),
    model("num_heads 34 is more than 16 times num_kv_heads 2", num_heads=34),
    model("head_dim 65 is not one of 64, 80, 96, 128, 192, 256", head_dim=65),
    model("softmax_scale -1 is not above 0 and at most 1000", softmax_scale=-1.0),
    model("softmax_scale nan is not above 0 and at most 1000", softmax_scale=float("nan")),
    model("softmax_scale 1234.5 is not above 0 and at most 1000", softmax_scale=1234.5),
    model("logit_soft_cap 0.0005 is neither 0 nor in 0.001..1e+06", logit_soft_cap=0.0005),
    model("logit_soft_cap 2e+06 is neither 0 nor in 0.001..1e+06", logit_soft_cap=2e6),
    model("sink_logits has 3 values, num_layers * num_heads is 8", sink_logits=np.zeros(3)),
    model("sink_logits has a value that is not finite", sink_logits=np.full((2, 4), np.inf)),
    rope("inv_freq has 33 values: rotary_dim 66 is not in 2..head_dim 64", inv_freq=[0.5] * 33),
    rope("inv_freq has 0 values: rotary_dim 0 is not in 2..head_dim 64", inv_freq=[]),
    rope("inv_freq[1] -64.5 is not in -64..64", inv_freq=[64.0, -64.5]),
    rope("inv_freq[0] nan is not in -64..64", inv_freq=[float("nan")]),
    rope("attention_scaling 0.005 is not in 0.01..100", attention_scaling=0.005),
    rope("attention_scaling 100.5 is not in 0.01..100", attention_scaling=100.5),
    rope("trained_tokens 0 is less than 1", trained_tokens=0),
    model("layer_rope_table has 1 entries, num_layers is 2", layer_rope_table=[0]),
    model("layer_sliding_window has 3 entries, num_layers is 2", layer_sliding_window=[0] * 3),
    model(
        "layer_rope_table[1] 1 is not -1 or below the number of rope_tables 1",
        layer_rope_table=[0, 1],
    ),
    model("layer_sliding_window[1] -1 is less than 0", layer_sliding_window=[0, -1]),
    model("rope_tables has 3 entries, more than num_layers 2", rope_tables=[ROPE] * 3),
    model("rope_tables[1] is used by none of 2 layers; there are 2 tables", rope_tables=[ROPE] * 2),
]

_LARGE = ModelShape(1024, 16, 1, 64, [ROPE])
_WIDE = ModelShape(1, 1024, 1024, 128, [ROPE], kv_dtype=DType.BF16)
_SCORED = ModelShape(1, 128, 8, 64, [ROPE])
# A layer's state, 4 bytes for each of 2^24 / 64 pages, and two generations of 4 bytes for each of
# 128 and 256 kept chunks. Beside them 32 pairs of fp32 cosine and sine in 64 fine and 2^18 coarse
# rows.
_LAYER_TABLES = LAYER_STATE_BYTES + 8 * 262144 + 8 * (128 + 256)
_LESS = "fewer tokens, larger chunks, a larger query_stride or a smaller query_block need less"

SIZES = [  # engine/engine.cc, engine/session_size.cc
    Refused(f"max_tokens 0 is not in 1..{MAX_REGION}", "dense", max_tokens=0),
    Refused(
        f"max_tokens {MAX_REGION + 1} is not in 1..{MAX_REGION}",
        "dense",
        max_tokens=MAX_REGION + 1,
    ),
    Refused(
        "model.num_kv_heads 1024 of head_dim 128 in bf16 make pages of 33554432 bytes, the limit "
        "is 8388608",
        "dense",
        _WIDE,
    ),
    Refused(
        f"max_tokens {MAX_REGION} needs {1024 * _LAYER_TABLES + 256 * 262208} bytes of "
        "tables (rotary tables, page ids, masks), the limit is 1073741824",
        "standard",
        _LARGE,
        MAX_REGION,
    ),
    Refused(
        # 128 heads, 64 rows and (2^24 - 256 - 1024) / 256 candidates in fp32
        f"max_tokens {MAX_REGION} gives policy prefill.rest.stages[0] {4 * 128 * 64 * 65531} "
        f"bytes of scores for 65531 candidates of a query block, the limit is 1073741824: {_LESS}",
        "paper-3k",
        _SCORED,
        MAX_REGION,
    ),
    Refused(
        # decode alone: its chunks are of 64 tokens, prefill's of 256
        f"max_tokens 8000000 gives policy decode.rest.stages[0] {4 * 128 * 64 * 124980} bytes of "
        f"scores for 124980 candidates of a query block, the limit is 1073741824: {_LESS}",
        "paper-3k-5k",
        _SCORED,
        8_000_000,
    ),
]
