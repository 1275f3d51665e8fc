"""What longshorectl does without a daemon: policies, sizes, help, exit codes, completion."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import longshore
from ctl_program import CTL, Ctl
from longshore import policy

COMPLETION = Path(__file__).parents[2] / "client/cpp/ctl/longshorectl.bash"
COMMANDS = ["info", "sessions", "close", "top", "recall", "policy", "size", "verify", "conformance", "bench"]

LLAMA = ["--layers=32", "--heads=32", "--kv-heads=8", "--head-dim=128", "--dtype=bf16"]
SMALL = ["--layers=5", "--heads=9", "--kv-heads=3", "--head-dim=64"]


def shape(options: list[str], **more: object) -> longshore.ModelShape:
    values = dict(option.removeprefix("--").split("=") for option in options)
    return longshore.ModelShape(
        int(values["layers"]),
        int(values["heads"]),
        int(values["kv-heads"]),
        int(values["head-dim"]),
        kv_dtype=longshore.DType(values.get("dtype", "f32")),
        **more,
    )


def rope(head_dim: int, trained: int) -> longshore.RopeTable:
    return longshore.RopeTable.from_base(10000.0, head_dim, longshore.Pairing.HALVES, trained)


# model, context, options of longshorectl, and what Python is told of model and session
CASES = [
    (LLAMA, 1_000_000, ["--trained-tokens=131072"], {"rope_tables": [rope(128, 131072)]}, {}),
    (LLAMA, 100_000, ["--trained-tokens=131072"], {"rope_tables": [rope(128, 131072)]}, {}),
    (SMALL, 8000, ["--trained-tokens=8192"], {"rope_tables": [rope(64, 8192)]}, {}),
    (SMALL, 7, [], {}, {}),
    (
        SMALL,
        20_001,
        ["--max-tokens=30000", "--dense-below=0"],
        {},
        {"max_tokens": 30000, "dense_below_tokens": 0},
    ),
    (
        SMALL,
        50_000,
        ["--sliding-window=4096", "--sliding-layers=0,2-3", "--trained-tokens=8192"],
        {"rope_tables": [rope(64, 8192)], "layer_sliding_window": [4096, 0, 4096, 4096, 0]},
        {},
    ),
]
EXPLAINED = [(preset, *CASES[0]) for preset in policy.PRESETS] + [
    (preset, *case) for case in CASES[1:] for preset in ("standard", "paper-16k", "paper-3k-5k")
]


@pytest.mark.parametrize("preset, model, context, more, python_shape, python_session", EXPLAINED)
def test_explain_is_pythons(
    ctl: Ctl,
    preset: str,
    model: list[str],
    context: int,
    more: list[str],
    python_shape: dict[str, object],
    python_session: dict[str, int],
) -> None:
    options = ["policy", "explain", preset, f"--context={context}", *model, *more]
    expected = policy.explain(preset, shape(model, **python_shape), context, **python_session)
    assert ctl.json(*options) == expected.as_dict()
    assert ctl.text(*options).rstrip("\n") == str(expected)


def test_policies(ctl: Ctl, tmp_path: Path) -> None:
    listed = ctl.json("policy", "list")
    assert [row["name"] for row in listed] == list(policy.PRESETS)
    assert "bounds 64 keep 8192 -> exact 8 keep 2048, every 16/4 steps" in ctl.text("policy", "list")
    mine = tmp_path / "mine.textproto"
    mine.write_text(ctl.text("policy", "show", "standard").replace("keep_tokens: 2048", "keep_tokens: 4096"))
    by_file = ctl.json("policy", "explain", mine, "--context=100000", *SMALL)
    assert by_file["decode"]["groups"][0]["step"]["stages"][1]["keep_tokens"] == 4096
    assert by_file["name"] == str(mine)


def test_sizes(ctl: Ctl) -> None:
    explained = ctl.json("policy", "explain", "wide", "--context=123456", *LLAMA)["memory"]
    size = ctl.json("size", "--policy=wide", "--context=123456", *LLAMA)
    assert {name: size[name] for name in explained} == explained
    two = ctl.json("size", "--context=1000000", "--sessions=2", *LLAMA)
    assert two["pool_bytes"] >= 2 * two["page_bytes"]
    assert "131 GB" in ctl.text("size", "--context=1000000", *LLAMA)


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        ([], 2, "longshorectl needs a command"),
        (["nonsense"], 2, "nonsense"),
        (["policy", "nonsense"], 2, "nonsense"),
        (["info", "--nonsense"], 2, "nonsense"),
        (["size"], 2, "--context is required"),
        (["close", "-3"], 2, "-3"),
        (["size", "--context=many"], 2, "many"),
        (["size", "--context=1", "--dtype=f64"], 2, "f64"),
        (["policy"], 2, "policy needs a command"),
        (["policy", "show", "best"], 4, "best"),
        (["policy", "explain", "best", "--context=10"], 4, "best"),
        (["policy", "explain", "/no/such", "--context=10"], 4, "/no/such"),
        (["policy", "explain", "standard", "--context=0"], 4, "0 is not in 1.."),
        (["policy", "explain", "standard", "--context=10", "--head-dim=65"], 4, "model.head_dim 65"),
        (["size", "--context=10", "--sliding-window=5", "--sliding-layers=1"], 4, "0-0"),
        (["size", "--context=10", "--sliding-layers=0"], 4, "--sliding-window"),
        (["verify", "--context=10", "--rows=11"], 4, "--rows 11"),
        (["verify", "--context=10000", "--policy=dense"], 4, "8192"),
        (["bench", "--context=0"], 4, "--context 0"),
    ],
)
def test_what_is_wrong_is_said(ctl: Ctl, arguments: list[str], code: int, words: str) -> None:
    done = ctl.run(*arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert words in done.stderr


def test_a_broken_policy_file_is_named_by_line(ctl: Ctl, tmp_path: Path) -> None:
    broken = tmp_path / "broken.textproto"
    broken.write_text("sink_tokens: 256\nwindow: 7\n")
    done = ctl.run("policy", "explain", broken, "--context=10")
    assert done.returncode == 4
    assert "line 2" in done.stderr and "window" in done.stderr


def test_a_full_disk_is_no_success() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([CTL, "policy", "list"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4
    assert "written" in done.stderr


def test_version(ctl: Ctl) -> None:
    assert ctl.text("--version").startswith("longshorectl 0.")


def test_help(ctl: Ctl) -> None:
    top = ctl.text("--help")
    for command in COMMANDS:
        assert f"  {command} " in top
        text = ctl.text(command, "--help")
        assert "--help" in text
    assert "exit codes" in top
    assert "--kv-heads" in ctl.text("policy", "explain", "--help")


def complete(*words: str) -> list[str]:
    """What bash offers for the last word."""
    script = f"""
        source {COMPLETION}
        COMP_WORDS=({CTL} {' '.join(repr(word) for word in words)})
        COMP_CWORD={len(words)}
        _longshorectl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_completion() -> None:
    assert complete("po") == ["policy"]
    assert sorted(complete("")) == sorted(COMMANDS)
    assert sorted(complete("policy", "")) == ["explain", "list", "show"]
    assert complete("policy", "ex") == ["explain"]
    assert "--kv-heads" in complete("policy", "explain", "standard", "--k")
    assert complete("info", "--js") == ["--json"]
    assert "paper-3k" in complete("policy", "show", "pa")
    assert complete("size", "--dtype", "b") == ["bf16"]
    assert "standard" in complete("verify", "--policy", "st")
    registered = subprocess.run(
        ["bash", "-c", f"source {COMPLETION}; complete -p longshorectl"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_longshorectl" in registered.stdout
