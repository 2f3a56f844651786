"""Robust statistics of pairs.

The unit is the log gain of a pair, log(default time / candidate time): above 0 the candidate is
faster, and -0.1 to 0.1 reads as -10 % to 10 %. As the order within each pair is random, the signs
of the log gains are random where default and candidate do not differ, whatever the noise is like:
heavy tails, drift and bursts that span many pairs included. The signed-rank test rests on that
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import exp

import numpy as np
from numpy.typing import NDArray

from accl_tune.model import Pair

__all__ = [
    "adjust",
    "interval",
    "location",
    "log_gains",
    "signed_rank_p",
    "spread",
    "to_factor",
]

Floats = NDArray[np.float64]


def log_gains(pairs: Iterable[Pair]) -> Floats:
    """log(default / candidate) of each pair."""
    taken = list(pairs)
    if not taken:
        return np.empty(0)
    times = np.array([(pair.default_us, pair.candidate_us) for pair in taken])
    result: Floats = np.log(times[:, 0] / times[:, 1])
    return result


def to_factor(log_gain: float) -> float:
    """How many times as fast: 1.1 for a log gain of 0.095."""
    return exp(log_gain)


def _walsh(values: Floats) -> Floats:
    """The means of all pairs of values, each with itself included, sorted."""
    upper = np.triu_indices(len(values))
    means: Floats = np.sort((values[upper[0]] + values[upper[1]]) / 2)
    return means


def location(values: Floats) -> float:
    """The Hodges-Lehmann estimate of the centre: nearly as sharp as the mean, and outliers do not
    move it.
    """
    if not len(values):
        raise ValueError("location() of no values")
    return float(np.median(_walsh(values)))


def _doubled_ranks(values: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Twice the ranks of the absolute values (whole numbers even with ties), and the values; zeros
    left out.
    """
    kept = values[values != 0]
    _, inverse, counts = np.unique(np.abs(kept), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (2 * last - counts + 1)[inverse].astype(np.int64), kept


@lru_cache(maxsize=4096)
def _upper_tail(doubled: tuple[int, ...]) -> Floats:
    """P(sum of the ranks with random signs taken as + >= s), for s = 0 to the sum of all."""
    total = sum(doubled)
    chance = np.zeros(total + 1)
    chance[0] = 1.0
    for rank in doubled:
        with_rank = np.zeros_like(chance)
        with_rank[rank:] = chance[: total + 1 - rank]
        chance = (chance + with_rank) / 2
    tail: Floats = np.cumsum(chance[::-1])[::-1]
    return tail


def signed_rank_p(values: Floats) -> float:
    """The exact one-sided p of Wilcoxon's signed-rank test that the values lie above 0 (ties are
    exact too).
    """
    doubled, kept = _doubled_ranks(values)
    if not len(kept):
        return 1.0
    observed = int(doubled[kept > 0].sum())
    return float(_upper_tail(tuple(sorted(int(rank) for rank in doubled)))[observed])


def interval(values: Floats, level: float = 0.95) -> tuple[float, float]:
    """The confidence interval of `location`, by inverting the signed-rank test.

    With too few values for the level (5 for 0.95) it is their whole range.
    """
    count = len(values)
    if not count:
        raise ValueError("interval() of no values")
    means = _walsh(values)
    tail = _upper_tail(tuple(2 * rank for rank in range(1, count + 1)))[::2]
    # The largest number of means that may be cut off at each end: P(statistic < cut) <= (1 - level)
    # / 2.
    cut = int(np.count_nonzero(1 - tail <= (1 - level) / 2)) - 1
    cut = max(cut, 1)
    return float(means[cut - 1]), float(means[len(means) - cut])


def spread(groups: Sequence[Floats], floor: float = 0.005) -> tuple[float, int]:
    """The standard deviation within groups, robustly and pooled, and its degrees of freedom.

    Pooled, since one group of three says next to nothing about its own spread. `floor` guards
    against samples that agree by chance or by the clock's grain.
    """
    residuals: list[Floats] = []
    for values in groups:
        if len(values) < 2:
            continue
        away = np.sort(np.abs(values - np.median(values)))
        # With an odd number one value is the median itself, and says nothing.
        residuals.append(away[len(values) % 2 :] * _narrowness(len(values)))
    if not residuals:
        return float("inf"), 0
    freedom = sum(len(values) - 1 for values in groups if len(values) > 1)
    return max(1.4826 * float(np.median(np.concatenate(residuals))), floor), freedom


def _narrowness(count: int) -> float:
    """How much closer so few values lie to their own median than to the true one (simulated)."""
    if count % 2:
        return 1.0
    return 1.414 if count == 2 else 1 + 1.6 / count


def adjust(ps: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's adjusted p: reject where it is at most q, and of the rejected a
    share q is wrong.
    """
    count = len(ps)
    order = sorted(range(count), key=lambda index: ps[index])
    adjusted = [1.0] * count
    least = 1.0
    for position in range(count, 0, -1):
        index = order[position - 1]
        least = min(least, ps[index] * count / position)
        adjusted[index] = least
    return adjusted
