"""The statistics against closed forms, brute force and known data."""

from itertools import product
from math import exp, log

import numpy as np
import pytest
from accl_tune.decide.statistics import (
    adjust,
    interval,
    location,
    log_gains,
    signed_rank_p,
    spread,
)
from accl_tune.model import Pair
from hypothesis import given
from hypothesis import strategies as st

small = st.lists(st.integers(-9, 9), min_size=1, max_size=9)


def brute_force_p(values: list[float]) -> float:
    """All sign patterns, with mid-ranks."""
    kept = [value for value in values if value]
    if not kept:
        return 1.0
    sizes = sorted(abs(value) for value in kept)
    rank = {
        size: np.mean([i + 1 for i, other in enumerate(sizes) if other == size]) for size in sizes
    }
    ranks = [rank[abs(value)] for value in kept]
    observed = sum(r for r, value in zip(ranks, kept, strict=True) if value > 0)
    sums = [
        sum(r for r, positive in zip(ranks, signs, strict=True) if positive)
        for signs in product((False, True), repeat=len(ranks))
    ]
    return sum(total >= observed - 1e-9 for total in sums) / len(sums)


@given(small)
def test_signed_rank_is_exact_even_with_ties_and_zeros(values):
    assert signed_rank_p(np.array(values, float)) == pytest.approx(brute_force_p(values))


def test_signed_rank_of_known_sizes():
    assert signed_rank_p(np.arange(1.0, 11)) == pytest.approx(2**-10)
    assert signed_rank_p(-np.arange(1.0, 11)) == 1.0
    assert signed_rank_p(np.zeros(5)) == 1.0
    # Hollander and Wolfe's depression scale factors: exact two-sided p is 0.03906.
    before = np.array([1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30])
    after = np.array([0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29])
    assert 2 * signed_rank_p(before - after) == pytest.approx(0.0390625)
    assert location(before - after) == pytest.approx(0.46)
    low, high = interval(before - after)
    assert (low, high) == pytest.approx((0.010, 0.786))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.floats(-3, 3))
def test_location_moves_with_its_data(values, shift):
    array = np.array(values)
    assert location(array + shift) == pytest.approx(location(array) + shift, abs=1e-9)
    low, high = interval(array)
    assert min(values) <= low <= location(array) + 1e-9
    assert location(array) - 1e-9 <= high <= max(values)


def test_location_withstands_outliers():
    quiet = np.random.default_rng(1).normal(0.1, 0.01, 20)
    spoilt = np.concatenate([quiet, [5.0, -7.0, 9.0, 9.0]])
    assert abs(location(spoilt) - 0.1) < 0.01


def test_intervals_hold_the_truth_as_often_as_they_say():
    source = np.random.default_rng(3)
    held = 0
    for _ in range(1000):
        low, high = interval(source.standard_t(2, 20) * 0.2 + 0.05)
        held += low <= 0.05 <= high
    assert 0.935 <= held / 1000 <= 0.985


def test_log_gains_of_pairs():
    gains = log_gains([Pair(2.0, 1.0, True), Pair(1.0, 1.0, False)])
    assert gains == pytest.approx([log(2), 0])
    assert len(log_gains([])) == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_adjusted_p_is_that_of_benjamini_and_hochberg(ps):
    adjusted = adjust(ps)
    assert all(a >= p - 1e-12 for a, p in zip(adjusted, ps, strict=True))
    for q in (0.01, 0.05, 0.2):
        order = sorted(ps)
        passed = [k for k in range(1, len(ps) + 1) if order[k - 1] <= q * k / len(ps)]
        cut = order[passed[-1] - 1] if passed else -1.0
        for a, p in zip(adjusted, ps, strict=True):
            if abs(a - q) > 1e-9:
                assert (a <= q) == (p <= cut)


def test_spread_is_the_deviation_and_ignores_outliers():
    source = np.random.default_rng(5)
    groups = [source.normal(center, 0.1, 8) for center in range(40)]
    deviation, freedom = spread(groups)
    assert deviation == pytest.approx(0.1, rel=0.15)
    assert freedom == 40 * 7
    for group in groups[:10]:
        group[0] += 50
    assert spread(groups)[0] == pytest.approx(0.1, rel=0.3)
    assert spread([np.array([1.0])]) == (float("inf"), 0)


def test_no_values_are_an_error():
    for function in (location, interval):
        with pytest.raises(ValueError, match="no values"):
            function(np.empty(0))
    assert exp(0) == 1
