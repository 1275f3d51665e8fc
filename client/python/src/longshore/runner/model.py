"""The Llama: its weights, and the mathematics of everything but attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from longshore.attention import Floats
from longshore.model_shape import ModelShape, Pairing, RopeTable
from longshore.runner.errors import RunnerError
from longshore.runner.gguf_file import GgufFile
from longshore.runner.tokenizer import Tokenizer

# (q [rows, heads, head_dim], k, v [rows, kv_heads, head_dim]) -> [rows, heads, head_dim]
Attend = Callable[[Floats, Floats, Floats], Floats]


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One decoder layer; matrices are [outputs, inputs], q, k, v as one, gate and up as one."""

    attention_norm: Floats  # [hidden]
    qkv: Floats  # [(heads + 2 kv_heads) head_dim, hidden]
    attention_output: Floats  # [hidden, heads head_dim]
    ffn_norm: Floats  # [hidden]
    gate_up: Floats  # [2 ffn, hidden]
    down: Floats  # [hidden, ffn]


@dataclass(frozen=True, eq=False)
class Model:
    """A model as loaded: nothing in it changes, so several sequences may share it."""

    name: str
    shape: ModelShape
    norm_epsilon: float
    embedding: Floats  # [vocabulary, hidden]
    layers: list[LayerWeights]
    output_norm: Floats  # [hidden]
    output: Floats  # [vocabulary, hidden]; the embedding itself where the two are tied
    tokenizer: Tokenizer

    def logits(self, x: Floats) -> Floats:
        """The last layer's x [rows, hidden] -> logits [rows, vocabulary]."""
        return rms_norm(x, self.output_norm, self.norm_epsilon) @ self.output.T


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    """x / sqrt(mean(x^2) + epsilon) * weight, for each row of x [rows, hidden]."""
    mean_square = np.einsum("rh,rh->r", x, x)[:, np.newaxis] / np.float32(x.shape[1])
    return x / np.sqrt(mean_square + np.float32(epsilon)) * weight


def swiglu(gate_up: Floats) -> Floats:
    """silu(gate) * up, with silu(x) = x / (1 + e^-x): [rows, 2 ffn] -> [rows, ffn]."""
    gate, up = np.split(gate_up, 2, axis=1)
    with np.errstate(over="ignore"):  # e^-x is infinite for x < -88, and silu rightly 0
        return gate / (1 + np.exp(-gate)) * up


def decoder_layer(
    x: Floats, layer: LayerWeights, shape: ModelShape, epsilon: float, attend: Attend
) -> Floats:
    """x [rows, hidden] -> [rows, hidden]."""
    rows = len(x)
    qkv = rms_norm(x, layer.attention_norm, epsilon) @ layer.qkv.T
    heads = qkv.reshape(rows, -1, shape.head_dim)  # [rows, heads + 2 kv_heads, head_dim]
    q, k, v = np.split(heads, [shape.num_heads, shape.num_heads + shape.num_kv_heads], axis=1)
    x = x + attend(q, k, v).reshape(rows, -1) @ layer.attention_output.T
    gate_up = rms_norm(x, layer.ffn_norm, epsilon) @ layer.gate_up.T
    return x + swiglu(gate_up) @ layer.down.T


def load_model(path: str | Path) -> Model:
    """Reads a Llama GGUF, weights to float32. Raises RunnerError for what is not computed here."""
    file = _open_llama(path)
    hidden = file.value("llama.embedding_length", int)
    ffn = file.value("llama.feed_forward_length", int)
    shape = _read_shape(file, hidden)
    tokenizer = Tokenizer.from_gguf(file)
    vocabulary = len(tokenizer)
    _refuse_unknown_tensors(file, shape.num_layers)
    embedding = file.tensor("token_embd.weight", vocabulary, hidden)
    tied = "output.weight" not in file.tensor_names
    return Model(
        name=file.value("general.name", str, file.path.stem),
        shape=shape,
        norm_epsilon=file.value("llama.attention.layer_norm_rms_epsilon", float),
        embedding=embedding,
        layers=[_read_layer(file, i, shape, hidden, ffn) for i in range(shape.num_layers)],
        output_norm=file.tensor("output_norm.weight", hidden),
        output=embedding if tied else file.tensor("output.weight", vocabulary, hidden),
        tokenizer=tokenizer,
    )


def load_shape(path: str | Path) -> ModelShape:
    """What load_model reads of attention, without the weights. Raises RunnerError as it does."""
    file = _open_llama(path)
    return _read_shape(file, file.value("llama.embedding_length", int))


def _open_llama(path: str | Path) -> GgufFile:
    file = GgufFile(path)
    architecture = file.value("general.architecture", str)
    if architecture != "llama":
        raise RunnerError(f"{path} is a {architecture!r} model; this runner computes 'llama' only")
    return file


def _read_shape(file: GgufFile, hidden: int) -> ModelShape:
    num_heads = file.value("llama.attention.head_count", int)
    num_kv_heads = file.value("llama.attention.head_count_kv", int, num_heads)
    head_dim = file.value("llama.attention.key_length", int, hidden // num_heads)
    if num_heads % num_kv_heads != 0:
        raise RunnerError(f"{file.path}: {num_heads} heads over {num_kv_heads} KV heads")
    return ModelShape(
        num_layers=file.value("llama.block_count", int),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rope_tables=[_read_rope(file, head_dim)],
    )


def _read_rope(file: GgufFile, head_dim: int) -> RopeTable:
    """inv_freq[i] = base^(-2i / rotary_dim), divided by the file's factors if any (Llama 3).

    GGUF stores the rows of Llama's q and k permuted so that RoPE's pairs lie side by side. They
    stay that way: scores do not depend on the order of dimensions, and a pair is then a complex
    number.
    """
    scaling = file.value("llama.rope.scaling.type", str, "none")
    if scaling != "none":
        raise RunnerError(f"{file.path}: RoPE scaling {scaling!r} is not computed by this runner")
    base = file.value("llama.rope.freq_base", float, 10000.0)
    rotary_dim = file.value("llama.rope.dimension_count", int, head_dim)
    trained_tokens = file.value("llama.context_length", int)
    rope = RopeTable.from_base(base, rotary_dim, Pairing.INTERLEAVED, trained_tokens)
    if "rope_freqs.weight" in file.tensor_names:
        factors = file.tensor("rope_freqs.weight", rotary_dim // 2)
        rope = replace(rope, inv_freq=np.asarray(rope.inv_freq) / factors)
    return rope


_LAYER_TENSORS = (
    *("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
    *("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"),
)


def _refuse_unknown_tensors(file: GgufFile, num_layers: int) -> None:
    """A tensor that we do not know (a bias, an expert) is mathematics that we would leave out."""
    known = {"token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight"}
    known |= {f"blk.{i}.{name}.weight" for i in range(num_layers) for name in _LAYER_TENSORS}
    unknown = sorted(file.tensor_names - known)
    if unknown:
        raise RunnerError(f"{file.path}: this runner has no use for tensor {unknown[0]}")


def _read_layer(
    file: GgufFile, index: int, shape: ModelShape, hidden: int, ffn: int
) -> LayerWeights:
    def read(name: str, *extents: int) -> Floats:
        return file.tensor(f"blk.{index}.{name}.weight", *extents)

    q_rows = shape.num_heads * shape.head_dim
    kv_rows = shape.num_kv_heads * shape.head_dim
    return LayerWeights(
        attention_norm=read("attn_norm", hidden),
        qkv=np.concatenate(
            [
                read("attn_q", q_rows, hidden),
                read("attn_k", kv_rows, hidden),
                read("attn_v", kv_rows, hidden),
            ]
        ),
        attention_output=read("attn_output", hidden, q_rows),
        ffn_norm=read("ffn_norm", hidden),
        gate_up=np.concatenate([read("ffn_gate", ffn, hidden), read("ffn_up", ffn, hidden)]),
        down=read("ffn_down", hidden, ffn),
    )
