"""How sure a figure is: 95 % intervals of shares, of means, and of means of neighbouring tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Interval = tuple[float, float]

NORMAL_975 = 1.959964
# Student's t, 97.5 %, for 1, 2, ... 30 degrees of freedom.
# fmt: off
STUDENT_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on
BLOCK_TOKENS = 256
RESAMPLES = 10000


def wilson(right: int, asked: int) -> Interval:
    """Of a share of `asked` yes-or-no answers (Wilson 1927). It holds with few answers and at 0 and 1."""
    if not 0 <= right <= asked or asked == 0:
        raise ValueError(f"{right} of {asked} is no share")
    z2 = NORMAL_975**2
    share = right / asked
    centre = (share + z2 / (2 * asked)) / (1 + z2 / asked)
    half = NORMAL_975 / (1 + z2 / asked) * math.sqrt(share * (1 - share) / asked + z2 / (4 * asked**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def student(values: Sequence[float]) -> Interval | None:
    """Of the mean of independent values, None if there are fewer than two."""
    if len(values) < 2:
        return None
    quantile = STUDENT_975[min(len(values) - 1, len(STUDENT_975)) - 1]
    half = quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return mean - half, mean + half


def block_bootstrap(values: npt.NDArray[np.float64], block: int = BLOCK_TOKENS) -> Interval:
    """Of the mean of values that are like their neighbours (log-probabilities of a text's tokens).

    Draws as many blocks of `block` neighbours as there are, with replacement, RESAMPLES times; 2.5 % and 97.5 % of the
    means. The same values give the same interval. The last block may be short: it weighs what it holds.
    """
    starts = np.arange(0, len(values), block)
    if len(starts) < 2:
        raise ValueError(f"{len(values)} values are fewer than two blocks of {block}")
    sums = np.add.reduceat(values, starts)
    counts = np.diff(np.append(starts, len(values)))
    drawn = np.random.default_rng(0).integers(len(starts), size=(RESAMPLES, len(starts)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def sign_test(only_first: int, only_second: int) -> float:
    """p of two equally good candidates differing so much in paired yes-or-no answers (McNemar, exact, two-sided).

    only_first, only_second: pairs that one of them alone answered right. Pairs in which they agree say nothing.
    """
    differing = only_first + only_second
    tail = sum(math.comb(differing, count) for count in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**differing)
