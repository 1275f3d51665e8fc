"""A Llama small enough to check by hand, written as a GGUF file, and the weights it holds."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from longshore.runner.tokenizer import byte_characters

LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, FFN = 2, 4, 2, 16, 64, 96
ROPE_BASE, EPSILON, TRAINED_LENGTH = 10000.0, 1e-5, 128

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ Ġ", "a a", "aa aa", "Ã ©"]
TOKENS = [*CONTROL, *byte_characters(), *(pair.replace(" ", "") for pair in MERGES)]
TOKEN_TYPES = [3] * len(CONTROL) + [1] * (len(TOKENS) - len(CONTROL))
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role']"
    " + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
)

Weights = dict[str, np.ndarray]


def tensor_kinds() -> dict[str, tuple[tuple[int, ...], Kind]]:
    """Name -> (row-major shape, quantisation); each kind that SmolLM2's file uses occurs."""
    kinds: dict[str, tuple[tuple[int, ...], Kind]] = {
        "token_embd.weight": ((len(TOKENS), HIDDEN), Kind.Q8_0),
        "output_norm.weight": ((HIDDEN,), Kind.F32),
    }
    for i in range(LAYERS):
        kinds |= {
            f"blk.{i}.attn_norm.weight": ((HIDDEN,), Kind.F32),
            f"blk.{i}.attn_q.weight": ((HEADS * HEAD_DIM, HIDDEN), Kind.Q4_1),
            f"blk.{i}.attn_k.weight": ((KV_HEADS * HEAD_DIM, HIDDEN), Kind.Q4_1),
            f"blk.{i}.attn_v.weight": ((KV_HEADS * HEAD_DIM, HIDDEN), Kind.Q8_0),
            f"blk.{i}.attn_output.weight": ((HIDDEN, HEADS * HEAD_DIM), Kind.F16),
            f"blk.{i}.ffn_norm.weight": ((HIDDEN,), Kind.F32),
            f"blk.{i}.ffn_gate.weight": ((FFN, HIDDEN), Kind.Q4_1),
            f"blk.{i}.ffn_up.weight": ((FFN, HIDDEN), Kind.F32),
            f"blk.{i}.ffn_down.weight": ((HIDDEN, FFN), Kind.Q4_1),
        }
    return kinds


def write_tiny_model(
    path: Path,
    architecture: str = "llama",
    pre: str = "smollm",
    template: str | None = TEMPLATE,
    extra_tensors: Weights | None = None,
) -> Weights:
    """Writes the model and returns its weights as float64, after the loss of quantisation.

    Queries and keys are large enough for attention to be far from uniform.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(TRAINED_LENGTH)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(TOKEN_TYPES)
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(2)
    if template is not None:
        writer.add_chat_template(template)

    rng = np.random.default_rng(20240607)
    weights: Weights = {}
    for name, (shape, kind) in tensor_kinds().items():
        values = rng.standard_normal(shape).astype(np.float32)
        values = 1 + 0.1 * values if len(shape) == 1 else values / np.sqrt(np.float32(shape[1]))
        if "attn_q" in name or "attn_k" in name:
            values *= 3
        stored = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
        weights[name] = gguf.quants.dequantize(stored, kind).astype(np.float64)
    for name, extra in (extra_tensors or {}).items():
        writer.add_tensor(name, extra.astype(np.float32))
        weights[name] = extra.astype(np.float64)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights
