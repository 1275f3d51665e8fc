"""selection.py against examples by hand, and what must hold for every method."""

from __future__ import annotations

import numpy as np
import pytest
from attention_mass import METHODS, block_positions, decode_positions
from selection import Middle, Ranking, Stage, mass_kept, middle_end, rank, select, tokens_of

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 8
TOKENS = 1024
BUDGET = 64


def random_middle(rows: int, seed: int, needle: int | None = None) -> Middle:
    """Queries and keys at random; every query of every head looks for the key at `needle`."""
    random = np.random.default_rng(seed)
    queries = random.standard_normal((rows, HEADS, HEAD_DIM), dtype=np.float32)
    keys = random.standard_normal((KV_HEADS, TOKENS, HEAD_DIM), dtype=np.float32)
    if needle is not None:
        queries += 2
        keys[:, needle] = 4
    return Middle(queries, keys)


def kept_tokens(middle: Middle, stages: list[Stage], ranking: str = "probability") -> set[int]:
    kept = select(middle, stages, Ranking(ranking))
    return set(tokens_of(kept[-1], stages[-1].chunk_tokens).tolist())


def logits_only(logits: list[list[float]]) -> np.ndarray:
    """Rows of one head as [1 head, rows, candidates]."""
    return np.array([logits], dtype=np.float32)


def middle_of(logits: list[list[float]]) -> Middle:
    """One head's rows with these logits: every query is a unit vector."""
    unit = np.eye(len(logits), dtype=np.float32)[:, np.newaxis, :]
    return Middle(unit, logits_only(logits).swapaxes(1, 2))


class TestRank:
    # Two rows, each sure of the first chunk: 3/4 against 1/8 and 1/8; the second with larger logits.
    SCORES = np.log(np.array([[6, 1, 1], [300, 50, 50]], dtype=np.float64)).tolist()

    def test_probability_is_the_larger_share(self):
        scores = np.log(np.array([[6, 1, 1], [100, 200, 100]], dtype=np.float64))
        ranks = rank(logits_only(scores.tolist()), Ranking("probability"))
        np.testing.assert_allclose(np.exp(ranks), [6 / 8, 1 / 2, 1 / 4], rtol=1e-6)

    def test_probability_does_not_care_for_the_size_of_logits(self):
        ranks = rank(logits_only(self.SCORES), Ranking("probability"))
        np.testing.assert_allclose(np.exp(ranks), [6 / 8, 1 / 8, 1 / 8], rtol=1e-6)

    def test_sum_and_power_add_the_shares(self):
        ranks = rank(logits_only(self.SCORES), Ranking("probability_sum"))
        np.testing.assert_allclose(np.exp(ranks), [12 / 8, 2 / 8, 2 / 8], rtol=1e-6)
        ranks = rank(logits_only(self.SCORES), Ranking("probability_power", 2))
        np.testing.assert_allclose(np.exp(ranks), [72 / 64, 2 / 64, 2 / 64], rtol=1e-6)

    def test_score_max_takes_the_largest_score(self):
        ranks = rank(logits_only(self.SCORES), Ranking("score_max"))
        np.testing.assert_allclose(np.exp(ranks), [300, 50, 50], rtol=1e-5)

    def test_one_large_head_spends_score_max_but_not_probability(self):
        # Head 0 likes all its chunks alike, at 20; head 1 is sure of chunk 3, at 10.
        scores = np.array([[[20, 20, 20, 19]], [[0, 0, 0, 10]]], dtype=np.float32)
        assert rank(scores, Ranking("score_max")).argmax() == 0
        assert rank(scores, Ranking("probability")).argmax() == 3


class TestSelect:
    def test_equal_ranks_keep_the_lower_token(self):
        middle = Middle(np.zeros((1, 2, 4), np.float32), np.ones((1, 64, 4), np.float32))
        (kept,) = select(middle, [Stage("exact", 8, 24)], Ranking("score_max"))
        assert kept.tolist() == [0, 8, 16]

    def test_a_stage_that_keeps_all_keeps_all(self):
        kept = select(random_middle(2, 1), [Stage("bounds", 64, 2048), Stage("exact", 8, 2048)], Ranking())
        assert kept[0].tolist() == list(range(0, TOKENS, 64))
        assert kept[1].tolist() == list(range(0, TOKENS, 8))

    def test_a_later_stage_stays_inside_what_was_kept(self):
        kept = select(random_middle(3, 2), [Stage("bounds", 64, 256), Stage("exact", 8, 64)], Ranking())
        assert len(kept[0]) == 4 and len(kept[1]) == 8
        assert set(kept[1] // 64 * 64) <= set(kept[0])

    def test_bounds_are_never_below_exact(self):
        middle = random_middle(4, 3)
        assert (middle.scores("bounds", 64) >= middle.scores("exact", 64) - 1e-5).all()

    def test_a_bound_by_hand(self):
        # q = (1, -2) in one head; minimum (-1, 3), maximum (2, 5): max(-1, 2) + max(-6, -10).
        keys = np.array([[[-1, 3], [2, 5]]], dtype=np.float32)
        middle = Middle(np.array([[[1, -2]]], dtype=np.float32), keys)
        assert middle.scores("bounds", 2).item() == 2 - 6
        assert middle.scores("exact", 2).item() == -1 - 6
        assert middle.scores("mean", 2).item() == ((-1 - 6) + (2 - 10)) / 2

    @pytest.mark.parametrize("stage", [("bounds", 64, 100), ("exact", 0, 8), ("guess", 8, 8)])
    def test_a_stage_that_makes_no_sense_is_refused(self, stage):
        with pytest.raises(ValueError, match=r"100 .* 64|chunk_tokens 0|guess"):
            Stage(*stage)

    def test_chunks_must_nest(self):
        with pytest.raises(ValueError, match="chunk_tokens 48 does not divide 64"):
            select(random_middle(1, 4), [Stage("bounds", 64, 128), Stage("exact", 48, 96)], Ranking())


class TestDescent:
    def way(self, logits: list[list[float]]) -> list[float]:
        """The scores of one chunk, of one head's rows."""
        return middle_of(logits).scores("descent", len(logits[0]))[0, :, 0].tolist()

    def test_eight_tokens_by_hand(self):
        # [0, 7]: m = 3, 0 against 3; [3, 7]: m = 5, 3 against 5; [3, 4]: m = 3, nothing to the left: 3.
        assert self.way([[1, 9, 9, 5, 9, 4, 9, 9]]) == [5]
        # [0, 2]: m = 1, 0 against 1; [1, 2]: m = 1: 1.
        assert self.way([[5, 6, 9, 1, 9, 9, 9, 9]]) == [6]

    def test_a_tie_goes_left(self):
        assert self.way([[2, 1, 9, 2, 9, 9, 9, 9]]) == [2]
        assert self.way([[2, 3, 9, 2, 9, 9, 9, 9]]) == [3]

    def test_rows_share_a_way(self):
        # The second row's 8 at token 3 takes both rows to the right, and its 7 at 5 does not turn them.
        assert self.way([[5, 0, 0, 1, 0, 2, 0, 0], [0, 0, 0, 8, 0, 7, 0, 0]]) == [1, 8]


class TestMass:
    @pytest.mark.parametrize("rows", [1, 64])
    def test_nothing_beats_the_best_set(self, rows):
        middle = random_middle(rows, 5 + rows)
        mass = {}
        for method in METHODS:
            for ranking in method.rankings:
                stages = method.at(256)
                firsts = select(middle, stages, Ranking(ranking))[-1]
                tokens = tokens_of(firsts, stages[-1].chunk_tokens)
                assert len(set(tokens.tolist())) == 256
                mass[method.name, ranking, stages[-1].chunk_tokens] = mass_kept(middle, tokens).mean()
        best = {key[0]: value for key, value in mass.items() if key[0].startswith("best")}
        assert best["best_tokens"] >= best["best_chunks_8"] >= best["best_chunks_64"]
        for (_, _, chunk), value in mass.items():
            assert value <= best["best_chunks_64" if chunk == 64 else "best_tokens"] + 1e-6
            assert value <= best["best_chunks_8" if chunk >= 8 else "best_tokens"] + 1e-6

    def test_single_tokens_under_probability_sum_are_the_best_tokens(self):
        middle = random_middle(16, 7)
        single = kept_tokens(middle, [Stage("exact", 1, 64)], "probability_sum")
        assert single == kept_tokens(middle, [Stage("mass", 1, 64)], "probability_sum")

    def test_a_mass_by_hand(self):
        middle = middle_of(np.log(np.array([[1, 2, 3, 4]], dtype=np.float64)).tolist())
        np.testing.assert_allclose(mass_kept(middle, np.array([1, 3])), [[0.6]], rtol=1e-6)

    @pytest.mark.parametrize("needle", [0, 333, 640, TOKENS - 1])
    @pytest.mark.parametrize("rows", [1, 64])
    def test_a_needle_is_kept_by_whoever_looks_at_every_key(self, rows, needle):
        middle = random_middle(rows, 11, needle)
        for method in METHODS:
            if method.name.startswith("descent"):
                continue  # looks at some keys of a chunk, see below
            for ranking in method.rankings:
                tokens = kept_tokens(middle, method.at(BUDGET), ranking)
                # A mean of 64 keys may drown it.
                assert needle in tokens or method.name == "block_mean", (method.name, ranking)

    def test_descent_finds_a_needle_only_where_its_branches_begin(self):
        stages = [Stage("descent", 256, 256), Stage("descent", 32, 32), Stage("descent", 8, 8)]
        first = random_middle(1, 13, needle=512)
        assert 512 in kept_tokens(first, stages, "score_max")
        # No branch of [0, 255] begins at 254 but the last one, and the way there is chance.
        missed = [
            254 not in kept_tokens(random_middle(1, seed, needle=254), stages, "score_max")
            for seed in range(20)
        ]
        assert sum(missed) >= 10


class TestRegions:
    @pytest.mark.parametrize(
        ("first_position", "end"), [(0, 64), (382, 64), (383, 128), (446, 128), (447, 192), (8000, 7744)]
    )
    def test_the_middle_is_whole_chunks(self, first_position, end):
        assert middle_end(first_position, 64, 256, 64) == end

    def test_the_study_looks_where_the_middle_is_whole_chunks_of_256(self):
        for position in [*block_positions(), *decode_positions()]:
            assert middle_end(position, 64, 256, 64) == middle_end(position, 64, 256, 256)
        assert len(block_positions()) == 16
        assert len(set(decode_positions())) == 64
