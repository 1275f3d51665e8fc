"""python -m longshore.policy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from tiny_model import Weights

from longshore import policy
from longshore.policy.__main__ import main
from longshore.policy.engine_data import preset_text

MODEL = ["--layers", "4", "--heads", "8", "--kv-heads", "2", "--head-dim", "64"]
SLIDING = ["--sliding-window", "4", "--sliding-layers"]
HUGE = "99999999999999999999"


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line that it fails with."""
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    return said.removeprefix("error: ").strip()


def test_it_runs_as_a_module_without_a_warning() -> None:
    command = [sys.executable, "-W", "error", "-m", "longshore.policy", "list"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stderr == ""
    assert [line.split()[0] for line in run.stdout.splitlines()] == list(policy.PRESETS)


def test_list_says_what_each_does(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "list").splitlines()
    assert lines[0] == (
        "standard        bounds 64 keep 8192 -> exact 8 keep 2048, every 16/4 steps; "
        "sink 256, window 1024"
    )
    assert lines[4] == "dense           every token"


@pytest.mark.parametrize("name", policy.PRESETS)
def test_what_show_prints_is_a_policy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    text = output(capsys, "show", name)
    assert text_format.Parse(text, policy.AttentionPolicy()) == policy.preset(name)
    path = tmp_path / "mine.textproto"
    path.write_text(text)
    assert "a daemon takes" in output(capsys, "check", str(path))


def test_check_speaks_with_the_daemons_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.textproto"
    path.write_text(
        output(capsys, "show", "fast").replace("keep_tokens: 2048", "keep_tokens: 9000")
    )
    field = "policy.policy.prefill.rest.stages[1].keep_tokens"
    assert error(capsys, "check", str(path)) == (
        f"{field} 9000 is more than the previous stage's 8192"
    )
    path.write_text("sink_tokens: 256\nsinks: 3\n")
    assert error(capsys, "check", str(path)).startswith(f"{path}:2:1")
    assert error(capsys, "check", str(tmp_path / "none.textproto")).endswith(
        "none.textproto: No such file or directory"
    )
    assert error(capsys, "check", "standrd").startswith('policy.preset "standrd" is not one of')
    assert error(capsys, "show", "x.textproto").startswith('policy.preset "x.textproto" is not')
    assert error(capsys, "check", "wide", *MODEL, "--max-tokens", "0") == (
        "max_tokens 0 is not in 1..16777216"
    )


def test_explain_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["standard", "--context", "100000", *MODEL, "--trained-tokens", "8192"]
    text = output(capsys, "explain", *arguments, "--dtype", "bf16")
    # (100000 - 1280) / 64 = 1542 chunks of 2 rows of 2 x 64 bf16 numbers; 8192 keys of 256 bytes.
    assert "layers 0-3, trained to 8,192" in text
    rows = [line.split() for line in text.splitlines() if " bounds " in line or " exact " in line]
    assert rows[0] == [
        "0",
        "bounds",
        "64",
        "1,542",
        "8,192",
        "8,192",
        "every",
        "16",
        "relative",
    ] + [
        "790",
        "kB",
    ]
    assert rows[1][-2:] == ["2.10", "MB"]
    assert "= 3,360 tokens, ids streaming" in text


def test_explain_gives_numbers_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["flash", "--context", "9000", "--max-tokens", "20000", *MODEL]
    arguments += ["--sliding-window", "512", "--sliding-layers", "0-1,3"]
    told = json.loads(output(capsys, "explain", *arguments, "--json"))
    assert (told["name"], told["context_tokens"], told["max_tokens"]) == ("flash", 9000, 20000)
    sliding, full = told["decode"]["groups"]
    assert (sliding["layers"], full["layers"]) == ([0, 1, 3], [2])
    assert sliding["step"]["attended"] == {"fresh": 512, "cached": 512, "average": 512.0}
    assert full["step"]["stages"][1]["refresh_steps"] == 8


def test_explain_reads_the_shape_of_a_model(
    capsys: pytest.CaptureFixture[str], tiny: tuple[Path, Weights]
) -> None:
    assert error(capsys, "explain", "dense", "--context", "5", "--model", str(tiny[0])) == (
        "model.head_dim 16 is not one of 64, 80, 96, 128, 192, 256"
    )
    assert "leave out --heads" in error(
        capsys, "explain", "dense", "--context", "5", "--model", str(tiny[0]), "--heads", "4"
    )
    missing = str(tiny[0].with_name("none.gguf"))
    assert "cannot read the model" in error(
        capsys, "explain", "dense", "--context", "5", "--model", missing
    )


def test_explain_of_smollm2(capsys: pytest.CaptureFixture[str], smollm2_path: Path) -> None:
    arguments = ["standard", "--context", "12288", "--model", str(smollm2_path)]
    text = output(capsys, "explain", *arguments)
    assert "30 layers, 9/3 heads of 64, f32" in text and "layers 0-29, trained to 8,192" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--context", "9"], "give --model, or --layers as well"),
        (["--context", "9", "--layers", "3", "--heads", "2"], "or --head-dim as well"),
        (["--context", "0", *MODEL], "context_tokens 0 is not in 1..16777216"),
        (["--context", HUGE, *MODEL], f"--context {HUGE} is not in -9223372036854775807..9"),
        (["--context", "9", *MODEL, "--max-tokens", HUGE], f"--max-tokens {HUGE} is not in"),
        (["--context", "9", *MODEL, "--trained-tokens", HUGE], f"--trained-tokens {HUGE} is not"),
        (["--context", "9", *MODEL, "--sliding-window", HUGE], f"--sliding-window {HUGE} is not"),
        (["--context", "9", *MODEL, "--dense-below", HUGE], f"--dense-below {HUGE} is not in"),
        # Of the right type, and more than there is memory for.
        (["--context", "9", *MODEL[2:], "--layers", "2000000000"], "num_layers 2000000000 is not"),
        (
            ["--context", "9", *MODEL[:6], "--head-dim", "2000000000", "--trained-tokens", "9"],
            "model.head_dim 2000000000 is not one of 64,",
        ),
        (["--context", "9", *MODEL, *SLIDING, "0-99999999999"], "99999999999 is not below --lay"),
        (["--context", "9", *MODEL, *SLIDING, "9" * 5000], "is neither a layer nor a range"),
        (["--context", "9", *MODEL, *SLIDING, "0,3-1"], "--sliding-layers 0,3-1: 3 comes after 1"),
        (["--context", "9", "--max-tokens", "8", *MODEL], "9 is not in 1..max_tokens 8"),
        (["--context", "9", *MODEL, "--sliding-layers", "1"], "give both"),
        (
            ["--context", "9", *MODEL, "--sliding-window", "4", "--sliding-layers", "2-4"],
            "--sliding-layers 2-4: 4 is not below --layers 4",
        ),
        (
            ["--context", "9", *MODEL, "--sliding-window", "4", "--sliding-layers", "1-x"],
            "'1-x' is neither a layer nor a range",
        ),
        (["--context", "9", *MODEL, "--dense-below", "-1"], "policy.dense_below_tokens -1 is less"),
    ],
)
def test_what_explain_cannot_do(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in error(capsys, "explain", "standard", *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--sliding-window", "5"],
            "--sliding-window goes with a model: give --model, or --layers",
        ),
        (["--sliding-layers", "0"], "--sliding-layers goes with a model"),
        (["--dtype", "bf16"], "--dtype goes with a model"),
        (["--trained-tokens", "5", "--max-tokens", "9"], "--trained-tokens goes with a model"),
        (["--layers", "99999999999", *MODEL[2:]], "--layers 99999999999 is not in -2147483647..2"),
    ],
)
def test_what_check_cannot_do(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in error(capsys, "check", "standard", *arguments)


def test_names_need_not_be_text(tmp_path: Path) -> None:
    """What a shell gives as $'\\xff' in Linux: bytes that are no UTF-8, in a name or in a path."""

    def run(*arguments: bytes) -> tuple[int, bytes, bytes]:
        command = [sys.executable, "-m", "longshore.policy", *arguments]
        environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(command, capture_output=True, env=environment)
        return done.returncode, done.stdout, done.stderr

    for arguments in ((b"show", b"\xff"), (b"check", b"\xff")):
        status, _, said = run(*arguments)
        assert (status, said.count(b"\n")) == (1, 1)
        assert said.startswith(b'error: policy.preset "\\xff" is not one of standard,')
    path = os.fsencode(tmp_path) + b"/\xff.textproto"
    status, _, said = run(b"check", path)
    assert (status, said.count(b"\n")) == (1, 1) and b"No such file" in said
    with open(path, "w") as file:
        file.write(preset_text("standard"))
    status, told, said = run(b"check", path)
    assert (status, said) == (0, b"")
    assert told.endswith("/\ufffd.textproto is a policy that a daemon takes\n".encode())


def test_names_can_be_too_long_for_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert error(capsys, "check", "x" * 300).startswith('policy.preset "xxx')
    assert error(capsys, "check", "x" * 300 + ".textproto").endswith("File name too long")
