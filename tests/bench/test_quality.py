"""The pure parts of the quality table: intervals, resumption, what a change makes of a policy."""

from __future__ import annotations

import numpy as np
import pytest
import quality
import quality_report
from intervals import block_bootstrap, sign_test, student, wilson
from passkey import Answer
from unit_log import UnitLog
from variants import METHODS, STYLES, TEXT_TOKENS, THREE_DEPTHS, Variant, only_stage, ranked_by

from longshore import ModelShape, Pairing, RopeTable
from longshore.policy import Ranking, Selector, preset, validate

MEASURED = {"model": "tiny", "text": "book"}


def test_wilson_is_the_textbooks() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I: method 3.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    with pytest.raises(ValueError, match="3 of 2"):
        wilson(3, 2)


def test_student_of_three_values() -> None:
    # mean 2, deviation 1: 2 -+ 4.303 / sqrt(3)
    assert student([1.0, 2.0, 3.0]) == pytest.approx((-0.4843, 4.4843), abs=1e-4)
    assert student([1.0]) is None


def test_sign_test_counts_pairs_that_differ() -> None:
    assert sign_test(0, 0) == 1
    assert sign_test(5, 0) == pytest.approx(2 / 32)
    assert sign_test(1, 9) == pytest.approx(2 * 11 / 1024)


def test_bootstrap_of_equal_values_is_a_point() -> None:
    assert block_bootstrap(np.full(1000, 0.25)) == pytest.approx((0.25, 0.25))


def test_bootstrap_of_independent_values_is_that_of_the_mean() -> None:
    values = np.random.default_rng(1).normal(3, 2, 64 * 256)
    low, high = block_bootstrap(values)
    assert low < 3 < high
    assert high - low == pytest.approx(2 * 1.96 * 2 / np.sqrt(len(values)), rel=0.2)


def test_bootstrap_sees_that_neighbours_are_alike() -> None:
    # Every block of 256 has one value: 64 independent ones, not 16384.
    values = np.repeat(np.random.default_rng(2).normal(0, 1, 64), 256)
    low, high = block_bootstrap(values)
    assert high - low == pytest.approx(2 * 1.96 / np.sqrt(64), rel=0.25)


def test_paired_difference_is_found_where_unpaired_intervals_overlap() -> None:
    rng = np.random.default_rng(3)
    baseline = rng.normal(-3, 2, 8192)
    variant = baseline + rng.normal(-0.02, 0.1, 8192)
    assert block_bootstrap(variant)[1] > block_bootstrap(baseline)[0]
    assert quality_report.verdict(block_bootstrap(variant - baseline)) == "worse"


def test_a_short_last_block_weighs_what_it_holds() -> None:
    values = np.concatenate([np.zeros(256), np.ones(1)])
    low, high = block_bootstrap(values)
    assert (low, high) == (0, 1)  # the short block twice: a mean of its own tokens, 1


def test_a_log_goes_on_after_a_line_that_was_cut_short(tmp_path) -> None:
    path = tmp_path / "run.jsonl"
    UnitLog(path, MEASURED).add("a", value=1)
    with path.open("a") as out:
        out.write('{"unit": "b", "val')
    log = UnitLog(path, MEASURED)
    assert "a" in log and "b" not in log
    log.add("b", value=2)
    again = UnitLog(path, MEASURED)
    assert again.get("a")["value"] == 1 and again.get("b")["value"] == 2


def test_a_log_of_another_model_is_refused(tmp_path) -> None:
    UnitLog(tmp_path / "run.jsonl", MEASURED)
    with pytest.raises(ValueError, match="of .*tiny.*, not of .*large"):
        UnitLog(tmp_path / "run.jsonl", {**MEASURED, "model": "large"})


def test_a_log_has_one_writer(tmp_path) -> None:
    first, second = (UnitLog(tmp_path / "run.jsonl", MEASURED) for _ in range(2))
    first.lock()
    with pytest.raises(ValueError, match="another process"):
        second.lock()


class FakeBench:
    """Of quality.Bench what a phase uses; no model and no daemon."""

    def __init__(self, path) -> None:
        self.log = UnitLog(path, MEASURED)
        self.opened: list[str] = []
        self.asked: list[tuple[float, int]] = []
        self.text_tokens = list(range(20000))
        self.model = self

    tokenizer = None

    def open(self, variant: Variant, max_tokens: int):
        self.opened.append(variant.name)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None: ...

    def log_probs(self, tokens) -> np.ndarray:
        return np.full(len(tokens) - 1, -1.0)

    def finished(self, unit: str, begin: float, **found: object) -> None:
        self.log.add(unit, **found)


@pytest.fixture
def bench(tmp_path, monkeypatch) -> FakeBench:
    made = FakeBench(tmp_path / "run.jsonl")

    def answers(llama, prompts, keys, done):
        for depth, key in zip(prompts.depths, keys, strict=True):
            if depth not in done:
                made.asked.append((depth, key))
                yield Answer(depth, key, f" {key}.", [-0.5, -0.25])

    class Prompts:
        def __init__(self, tokenizer, length, depths) -> None:
            self.depths = depths

    monkeypatch.setattr(quality, "Prompts", Prompts)
    monkeypatch.setattr(quality, "answers", answers)
    return made


def test_a_finished_unit_is_not_measured_again(bench, monkeypatch) -> None:
    phases = [
        quality.Passkeys(12288, 0, METHODS[:2], quality.ODD_DEPTHS),
        quality.Perplexities(12288, METHODS[:1]),
    ]
    finished = bench.finished

    def stop_at_third(unit: str, begin: float, **found: object) -> None:
        if len(bench.log) == 2:
            raise KeyboardInterrupt
        finished(unit, begin, **found)

    monkeypatch.setattr(bench, "finished", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        quality.measure(bench, phases)
    assert len(bench.log) == 2
    monkeypatch.setattr(bench, "finished", finished)
    first = list(bench.asked[:2])
    bench.asked.clear()
    quality.measure(bench, phases)
    assert len(bench.log) == 11
    assert len(bench.asked) == 8 and not set(first) & set(bench.asked[:3])
    bench.opened.clear()
    quality.measure(bench, phases)
    assert bench.opened == []


def test_all_variants_are_asked_for_the_same_keys_also_at_some_depths_only(bench) -> None:
    quality.measure(bench, [quality.Passkeys(12288, 0, METHODS[:1], quality.ODD_DEPTHS)])
    every = dict(bench.asked)
    bench.asked.clear()
    quality.measure(bench, [quality.Passkeys(12288, 0, quality.NEW_STYLES[:1], THREE_DEPTHS)])
    assert bench.asked == [(depth, every[depth]) for depth in THREE_DEPTHS]


def test_report_pairs_with_the_baseline(bench, monkeypatch) -> None:
    quality.measure(bench, [quality.Passkeys(12288, 0, METHODS[:2], quality.ODD_DEPTHS)])
    bench.log.add("perplexity/16384/standard", log_probs=[-2.0] * 16383, commit="c")
    bench.log.add("perplexity/16384/paper_3k", log_probs=[-2.0] * 8191 + [-2.5] * 8192, commit="c")
    for unit in bench.log.units("passkey/"):
        unit["commit"] = "c"
    lines = {line["id"]: line for line in quality_report.report(quality_report.Source(bench.log, "m", "t"))}
    passkey = lines["quality_passkey_12k_paper_3k"]
    assert (passkey["right"], passkey["answers"], passkey["versus"]["p"]) == (5, 5, 1)
    assert lines["quality_key_log_prob_12k_standard"]["value"] == -0.75
    inside = lines["quality_perplexity_0_8k_paper_3k"]
    assert inside["value"] == pytest.approx(np.exp(2)) and inside["versus"]["difference"] == 0
    beyond = lines["quality_perplexity_8_16k_paper_3k"]
    assert beyond["versus"] == {"baseline": "standard", "difference": -0.5, "interval_95": [-0.5, -0.5]}
    assert "versus" not in lines["quality_perplexity_0_16k_standard"]


def test_a_part_of_the_table_can_be_drawn(bench, tmp_path) -> None:
    plot_quality = pytest.importorskip("plot_quality", exc_type=ImportError)  # needs matplotlib
    bench.log.add("perplexity/16384/standard", log_probs=[-2.0] * 16383, commit="c")
    bench.log.add("perplexity/12288/attention_infllm", log_probs=[-2.5] * 12287, commit="c")
    place = {"key": 12345, "answer": " 12345", "right": True, "key_log_probs": [-0.5], "commit": "c"}
    bench.log.add("passkey/16384/paper_3k/0/0.1", **place)
    lines = list(quality_report.report(quality_report.Source(bench.log, "m", "t")))
    assert plot_quality.write_figures(tmp_path, lines) == ["quality.png", "quality_styles.png"]
    text = "\n".join(plot_quality.markdown(lines))
    assert "| `paper-3k` | 1 of 1 (21%–100%) | -0.50 (0.00) |" in text
    assert "| `attention infllm` | 12.18 (12.18–12.18) |" in text and "+64.9%" in text


def test_variants_have_ids_of_their_own() -> None:
    ids = [variant.id for variant in (*METHODS, *STYLES)]
    assert len(set(ids)) == len(ids)


def test_a_variant_is_its_preset_with_one_thing_changed() -> None:
    standard = preset("standard")
    standard.dense_below_tokens = 0
    ranked = Variant("a", "standard", ranked_by(Ranking.RANKING_SCORE_MAX)).policy()
    assert ranked != standard
    ranked.ranking = standard.ranking
    assert ranked == standard
    one = Variant("b", "standard", only_stage(Selector.SELECTOR_BOUNDS, 64)).policy()
    (stage,) = one.decode.rest.stages
    assert (stage.chunk_tokens, stage.keep_tokens, stage.refresh_steps) == (64, 2048, 4)


@pytest.mark.parametrize("variant", [*METHODS, *STYLES], ids=lambda variant: variant.id)
def test_a_daemon_serves_every_variant(variant) -> None:
    rope = RopeTable.from_base(10000.0, 64, Pairing.INTERLEAVED, trained_tokens=8192)
    shape = ModelShape(num_layers=4, num_heads=3, num_kv_heads=1, head_dim=64, rope_tables=[rope])
    validate(variant.policy(), shape, max_tokens=TEXT_TOKENS)
