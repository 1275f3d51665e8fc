"""Commands of longshorectl that ask a daemon."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import longshore
from ctl_program import CTL, Ctl

SHAPE = longshore.ModelShape(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=64)


@pytest.fixture
def client(daemon: Ctl) -> Iterator[longshore.Client]:
    with longshore.connect(daemon.target) as client:
        yield client


def test_info(daemon: Ctl, client: longshore.Client) -> None:
    info = daemon.json("info")
    assert info["limits"]["pool_bytes"] == 512 << 20
    assert info["instance_id"] == client.info().instance_id
    assert "standard" in info["presets"]
    assert "max_rows_per_prefill" in daemon.text("info")


def test_sessions_and_close(daemon: Ctl, client: longshore.Client) -> None:
    assert daemon.json("sessions") == []
    with client.open_session(SHAPE, max_tokens=1000, name="bj\u00f6rn") as session:
        k = np.ones((70, 2, 64), np.float32)
        session.append(1, k, k)
        (told,) = daemon.json("sessions")
        assert told["id"] == str(session.id)
        assert told["name"] == "bj\u00f6rn"
        assert (told["owner"], told["lease_seconds"]) == ("local", 3600)
        assert told["layer_tokens"] == [0, 70]
        assert told["page_bytes_used"] == 2 * 2 * 64 * 2 * 64 * 4
        table = daemon.text("sessions")
        assert str(session.id) in table and "1 session," in table
        assert daemon.run("close", session.id).returncode == 0
        assert daemon.json("sessions") == []
    refused = daemon.run("close", 1)
    assert refused.returncode == 4
    assert "NOT_FOUND" in refused.stderr


def test_size_is_what_a_daemon_reserves(daemon: Ctl, client: longshore.Client) -> None:
    for options, shape, tokens in (
        (
            ["--layers=2", "--heads=4", "--kv-heads=2", "--head-dim=64"],
            SHAPE,
            1000,
        ),
        (
            ["--layers=3", "--heads=8", "--kv-heads=8", "--head-dim=80", "--dtype=bf16"]
            + ["--sliding-window=100", "--sliding-layers=1-2"],
            longshore.ModelShape(
                3, 8, 8, 80, kv_dtype=longshore.DType.BF16, layer_sliding_window=[0, 100, 100]
            ),
            70000,
        ),
    ):
        size = Ctl().json("size", f"--context={tokens}", *options)
        with client.open_session(shape, max_tokens=tokens) as session:
            assert size["page_bytes"] == session.describe().page_bytes_reserved
        assert size["summary_bytes"] * 32 == size["page_bytes"]
        assert size["pool_bytes"] >= size["page_bytes"] > size["pool_bytes"] - (8 << 20)




def test_top_and_recall(daemon: Ctl, client: longshore.Client) -> None:
    with client.open_session(SHAPE, max_tokens=1000) as session:
        k = np.ones((10, 2, 64), np.float32)
        session.append(0, k, k)
        top = daemon.json("top", "--once")
    assert top["sessions"] == 1
    assert top["tokens_per_second"] > 0
    assert top["pool_bytes"]["reserved"] > 0
    methods = {row["method"]: row for row in top["methods"]}
    assert 0 < methods["AppendKV"]["p50_seconds"] <= methods["AppendKV"]["p99_seconds"]
    text = daemon.text("top")  # stdout is no terminal: one screen
    assert "AppendKV" in text and "pool" in text and "\x1b" not in text
    recall = daemon.run("recall")
    assert recall.returncode == 0
    assert recall.stdout
    assert isinstance(daemon.json("recall"), list)


def test_top_follows(daemon: Ctl) -> None:
    command = [str(CTL), "top", "--json", "--interval=0.2", f"--target={daemon.target}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.terminate()
    assert first["span_seconds"] <= first["uptime_seconds"] < second["uptime_seconds"]
    assert second["span_seconds"] > 0.1
    methods = {row["method"] for row in second["methods"]}
    assert methods == {"GetServerInfo", "GetMetrics"} or methods == {"GetServerInfo"}


def test_conformance(daemon: Ctl) -> None:
    done = daemon.run("conformance")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"1..{len(lines) - 1}"
    assert len(lines) > 40
    assert daemon.json("sessions") == []


def test_conformance_of_a_few_cases(daemon: Ctl) -> None:
    result = daemon.json("conformance", "--filter=integers")
    assert [case["result"] for case in result["cases"]] == ["pass", "pass"]
    assert result["failed"] == 0
    assert daemon.run("conformance", "--filter=no such case").returncode == 4
    assert "integers: far scores" in daemon.text("conformance", "--list")


def test_verify_dense_against_fp64(daemon: Ctl) -> None:
    model = ["--layers=2", "--heads=4", "--kv-heads=2", "--head-dim=64", "--trained-tokens=4096"]
    result = daemon.json("verify", "--context=300", "--policy=dense", *model, "--max-error=1e-5")
    assert result["against"] == "fp64 attention"
    assert [(row["layer"], row["phase"]) for row in result["layers"]] == [
        (0, "prefill"), (0, "decode"), (1, "prefill"), (1, "decode"),
    ]
    for row in result["layers"]:
        assert 0 < row["error"] < 1e-5
        assert row["mass_kept"] == pytest.approx(1, abs=1e-5)
        assert row["log_sum_exp_error"] < 1e-4
    options = ["--context=300", "--policy=dense", *model, "--dtype=bf16", "--max-error=1e-5"]
    coarse = daemon.run("verify", *options)
    assert coarse.returncode == 1
    assert "error" in coarse.stderr and "is more than 1e-05" in coarse.stderr


def test_verify_a_policy(daemon: Ctl) -> None:
    model = ["--layers=1", "--heads=4", "--kv-heads=2", "--head-dim=64", "--trained-tokens=100000"]
    short = daemon.json("verify", "--context=1000", "--policy=standard", *model, "--min-mass=0.999")
    assert short["layers"][0]["error"] < 1e-5  # nothing is pruned yet
    options = ["--context=12000", *model, "--steps=8", "--json"]
    run = daemon.run("verify", "--policy=streaming", "--min-worst-mass=0.9", *options)
    assert run.returncode == 1
    lossy = json.loads(run.stdout)["layers"]
    pruned = daemon.json("verify", "--context=12000", "--policy=standard", *model, "--steps=8")["layers"]
    for worse, better in zip(lossy, pruned, strict=True):
        assert 0 < worse["worst_head_mass_kept"] <= worse["mass_kept"] < better["mass_kept"] < 1
        assert better["error"] < worse["error"]


def test_verify_beyond_the_trained_length_has_no_mass(daemon: Ctl) -> None:
    model = ["--layers=1", "--heads=4", "--kv-heads=2", "--head-dim=64", "--trained-tokens=500"]
    result = daemon.json("verify", "--context=600", *model, "--steps=2")
    assert result["layers"][0]["mass_kept"] is None
    assert daemon.run("verify", "--context=600", *model, "--min-mass=0.5").returncode == 4


def test_verify_given_data(daemon: Ctl, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, heads in (("q", 4), ("k", 2), ("v", 2)):
        rng.standard_normal((2, 210, heads, 64), np.float32).tofile(tmp_path / f"{name}.f32")
    model = ["--layers=2", "--heads=4", "--kv-heads=2", "--head-dim=64", "--trained-tokens=4096"]
    options = ["--context=200", "--policy=dense", *model, f"--data={tmp_path}"]
    result = daemon.json("verify", *options, "--steps=10", "--max-error=1e-5")
    assert len(result["layers"]) == 4
    assert "210 tokens" in daemon.run("verify", *options, "--steps=11").stderr


def test_bench(daemon: Ctl) -> None:
    shape = ["--heads=4", "--kv-heads=2", "--head-dim=64", "--dtype=bf16", "--query-dtype=bf16"]
    text = daemon.text("bench", "--context=2000", "--steps=20", *shape)
    assert "unary" in text and "stream" in text
    lines = daemon.text("bench", "--context=2000", "--steps=20", *shape, "--json").splitlines()
    figures = [json.loads(line) for line in lines]
    assert [figure["id"] for figure in figures] == [
        f"ctl_decode_{way}_{quantile}" for way in ("unary", "stream") for quantile in ("p50", "p99")
    ]
    for figure in figures:
        assert figure["value"] > 0 and figure["unit"] == "us" and figure["steps"] == 20
        assert "2000 tokens" in figure["shapes"] and figure["device"]


def test_no_daemon(tmp_path: Path) -> None:
    nobody = Ctl(f"unix:{tmp_path}/none.sock")
    for command in (["info"], ["sessions"], ["close", 1], ["top", "--once"], ["recall"], ["conformance"]):
        done = nobody.run(*command)
        assert done.returncode == 3, command
        assert "start one: longshored" in done.stderr
