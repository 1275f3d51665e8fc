"""The command line on the tiny model, whose text makes no sense but whose plumbing is all there."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from tiny_model import Weights

from longshore import run

Tiny = tuple[Path, Weights]
Output = pytest.CaptureFixture[str]


def main(arguments: list[str]) -> int:
    """The command without a daemon."""
    return run.main([*arguments, "--attention", "local"])


def test_text_goes_to_stdout_and_the_summary_to_stderr(tiny: Tiny, capsys: Output) -> None:
    arguments = ["--model", str(tiny[0]), "--raw", "--ask", "hello hello", "--max-tokens", "5"]
    assert main(arguments) == 0
    first = capsys.readouterr()
    assert "2 prompt tokens, prefill" in first.err and "tok/s" in first.err
    assert main(arguments) == 0
    assert capsys.readouterr().out == first.out  # greedy repeats
    assert first.out.endswith("\n")


def test_a_seed_repeats_a_sample(tiny: Tiny, capsys: Output) -> None:
    arguments = ["--model", str(tiny[0]), "--ask", "hello", "--max-tokens", "20"]
    texts = []
    for seed in ("1", "1", "2"):
        assert main([*arguments, "--temperature", "2", "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_the_document_may_come_from_a_file_or_stdin(
    tiny: Tiny, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "doc.txt"
    document.write_bytes(
        b"\xef\xbb\xbfhello \xff hello"
    )  # a byte order mark and a byte that is not UTF-8
    arguments = ["--model", str(tiny[0]), "--ask", "why?", "--max-tokens", "3", "--prompt-file"]
    assert main([*arguments, str(document)]) == 0
    from_file = capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(document.read_bytes())))
    assert main([*arguments, "-"]) == 0
    assert capsys.readouterr().out == from_file.out


def test_a_context_past_the_trained_length_is_warned_of(tiny: Tiny, capsys: Output) -> None:
    arguments = ["--model", str(tiny[0]), "--raw", "--ask", "x" * 125, "--max-tokens", "4"]
    assert main(arguments) == 0
    assert "was trained to 128 tokens, this run needs up to 129" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "/no/such.gguf", "--ask", "x"],
            "cannot read the model /no/such.gguf: No such",
        ),
        (["--model", __file__, "--ask", "x"], "is not a GGUF file"),
        (["--model", "TINY", "--prompt-file", "/no/doc"], "cannot read /no/doc: No such file"),
        (["--model", "TINY", "--prompt-file", "/dev/null"], "prompt is empty: /dev/null holds no"),
        (["--model", "TINY", "--ask", " "], "the prompt is empty: --ask holds no text"),
    ],
)
def test_an_input_that_cannot_run_is_one_line_and_status_1(
    tiny: Tiny, capsys: Output, arguments: list[str], message: str
) -> None:
    assert main([str(tiny[0]) if a == "TINY" else a for a in arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to do: give --prompt-file, --ask or both"),
        (["--ask", "x", "--max-tokens", "0"], "--max-tokens 0 is not positive"),
        (["--ask", "x", "--piece", "100"], "--piece 100 is not a positive multiple of 64"),
        (["--ask", "x", "--temperature", "-1"], "--temperature -1.0 is negative"),
    ],
)
def test_wrong_options_show_the_usage(capsys: Output, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--model", "x", *arguments])
    assert message in capsys.readouterr().err
