"""Reading the tiny model's file, and refusing what is not one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_model import (
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    MERGES,
    ROPE_BASE,
    TOKENS,
    TRAINED_LENGTH,
    Weights,
    tensor_kinds,
    write_tiny_model,
)

from longshore import Pairing
from longshore.runner import RunnerError, load_model
from longshore.runner.gguf_file import GgufFile

Tiny = tuple[Path, Weights]


def test_values_come_with_their_types(tiny: Tiny) -> None:
    file = GgufFile(tiny[0])
    assert file.value("llama.block_count", int) == LAYERS
    assert file.value("llama.block_count", float) == float(LAYERS)
    assert file.value("llama.rope.freq_base", float) == ROPE_BASE
    assert file.value("general.name", str) == "tiny"
    assert file.value("tokenizer.ggml.tokens", list) == TOKENS
    assert file.value("tokenizer.ggml.merges", list) == MERGES
    assert file.value("no.such.key", int, 7) == 7


def test_a_missing_or_mistyped_value_is_refused(tiny: Tiny) -> None:
    file = GgufFile(tiny[0])
    with pytest.raises(RunnerError, match="no metadata key no.such.key"):
        file.value("no.such.key", int)
    with pytest.raises(RunnerError, match="general.name is 'tiny', expected int"):
        file.value("general.name", int)


def test_tensors_are_float32_in_row_major_shape(tiny: Tiny) -> None:
    path, weights = tiny
    file = GgufFile(path)
    assert file.tensor_names == set(weights)
    for name, (shape, _) in tensor_kinds().items():
        values = file.tensor(name, *shape)
        assert values.dtype == np.float32 and values.shape == shape
        assert np.array_equal(values, weights[name].astype(np.float32)), name


def test_a_missing_tensor_and_a_wrong_shape_are_refused(tiny: Tiny) -> None:
    file = GgufFile(tiny[0])
    with pytest.raises(RunnerError, match="no tensor blk.9.attn_q.weight"):
        file.tensor("blk.9.attn_q.weight", 1)
    expected = rf"ffn_up.weight has shape \({FFN}, {HIDDEN}\), expected \({HIDDEN}, {FFN}\)"
    with pytest.raises(RunnerError, match=expected):
        file.tensor("blk.0.ffn_up.weight", HIDDEN, FFN)


def test_what_is_not_a_gguf_is_refused(tmp_path: Path, tiny: Tiny) -> None:
    with pytest.raises(RunnerError, match="cannot read the model .*: No such file"):
        GgufFile(tmp_path / "absent.gguf")
    with pytest.raises(RunnerError, match="cannot read the model .*: Is a directory"):
        GgufFile(tmp_path)
    other = tmp_path / "other.gguf"
    for content in (b"", b"PK\x03\x04 a wheel"):
        other.write_bytes(content)
        with pytest.raises(RunnerError, match="is not a GGUF file"):
            GgufFile(other)
    whole = tiny[0].read_bytes()
    for size in (4, 20, 300, len(whole) // 4, len(whole) // 2, len(whole) - 4096):
        other.write_bytes(whole[:size])
        with pytest.raises(RunnerError, match="damaged"):
            GgufFile(other)


def test_the_models_shape_is_the_files(tiny: Tiny) -> None:
    shape = load_model(tiny[0]).shape
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads) == (LAYERS, HEADS, KV_HEADS)
    assert shape.head_dim == HEAD_DIM
    (rope,) = shape.rope_tables
    assert rope.pairing is Pairing.INTERLEAVED
    assert rope.trained_tokens == TRAINED_LENGTH
    assert rope.rotary_dim == HEAD_DIM
    expected = [ROPE_BASE ** (-2 * pair / HEAD_DIM) for pair in range(HEAD_DIM // 2)]
    np.testing.assert_allclose(rope.inv_freq, expected, rtol=1e-15)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "other.gguf", architecture="qwen2")
    with pytest.raises(RunnerError, match="is a 'qwen2' model; this runner computes 'llama' only"):
        load_model(tmp_path / "other.gguf")


def test_mathematics_that_we_lack_is_refused(tmp_path: Path) -> None:
    extra = {"blk.0.attn_q.bias": np.zeros(HEADS * HEAD_DIM)}
    write_tiny_model(tmp_path / "biased.gguf", extra_tensors=extra)
    with pytest.raises(RunnerError, match="no use for tensor blk.0.attn_q.bias"):
        load_model(tmp_path / "biased.gguf")
