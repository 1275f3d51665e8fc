"""The runner whose attention is a daemon's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_daemon import FakeDaemon
from tiny_model import Weights

from longshore.attention import Attention
from longshore.daemon_attention import DaemonAttention
from longshore.run import main
from longshore.runner import Llama, LocalAttention, RunnerError, load_model

Tiny = tuple[Path, Weights]
Output = pytest.CaptureFixture[str]


def test_it_gives_what_local_attention_gives(tiny: Tiny, daemon: FakeDaemon) -> None:
    model = load_model(tiny[0])
    tokens = model.tokenizer.encode("hello aaaa hello " * 8)
    remote: Attention = DaemonAttention.connect(model.shape, 200, target=daemon.target)
    logits = []
    for attention in (LocalAttention(model.shape, 200), remote):
        with Llama(model, attention, piece=64) as llama:
            rows = [llama.prefill(tokens)]
            rows += [llama.decode(token) for token in tokens[:3]]
            llama.truncate(30)
            rows += [llama.prefill(tokens[:5])]
            logits.append(np.stack(rows))
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-4, atol=1e-4)
    assert not daemon.sessions  # closed


def test_the_contract_of_attention(tiny: Tiny, daemon: FakeDaemon) -> None:
    model = load_model(tiny[0])
    attention = DaemonAttention.connect(model.shape, 50, target=daemon.target)
    shape = model.shape
    q = np.zeros((2, shape.num_heads, shape.head_dim), np.float32)
    k = np.zeros((2, shape.num_kv_heads, shape.head_dim), np.float32)
    attention.truncate(0)
    attention.prefill(0, 0, q, k, k)
    attention.truncate(7)  # past the end: nothing to forget
    with pytest.raises(ValueError, match="layer 0 holds 2 tokens, got position 3"):
        attention.decode(0, 3, q[:1], k[:1], k[:1])
    daemon.sessions.clear()
    with pytest.raises(RunnerError, match="SESSION_NOT_FOUND"):
        attention.decode(0, 2, q[:1], k[:1], k[:1])
    attention.close()


def test_the_command_line_writes_what_it_writes_locally(
    tiny: Tiny, daemon: FakeDaemon, capsys: Output
) -> None:
    arguments = ["--model", str(tiny[0]), "--raw", "--ask", "hello " * 50, "--max-tokens", "9"]
    assert main([*arguments, "--attention", "local"]) == 0
    local = capsys.readouterr().out
    arguments += ["--target", daemon.target]
    assert main(arguments) == 0
    assert capsys.readouterr().out == local

    options = ["--policy", "dense", "--dense-below", "0", "--kv-dtype", "bf16"]
    requests = []
    open_session = daemon.open
    daemon.open = lambda request: requests.append(request) or open_session(request)  # type: ignore
    assert main([*arguments, *options, "--max-tokens-context", "500"]) == 0
    (request,) = requests
    assert (request.policy.preset, request.policy.dense_below_tokens) == ("dense", 0)
    assert (request.max_tokens, request.name) == (500, "tiny")
    assert request.model.kv_dtype != request.model.query_dtype


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "unix:/no/such.sock"], "no daemon listens at unix:/no/such.sock; start one"),
        (["--policy", "fancy"], 'policy.preset "fancy" is not one of'),
    ],
)
def test_what_the_daemon_refuses_is_one_line(
    tiny: Tiny, daemon: FakeDaemon, capsys: Output, options: list[str], message: str
) -> None:
    arguments = ["--model", str(tiny[0]), "--ask", "hello"]
    assert main([*arguments, "--target", daemon.target, *options]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}") and error.count("\n") == 1
