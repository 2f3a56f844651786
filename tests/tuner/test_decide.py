"""Screening, verdicts and intervals on records made by hand."""

import random
from math import exp

import pytest
from accl_tune.decide.intervals import build_intervals
from accl_tune.decide.screening import (
    Screening,
    cannot_confirm,
    choose_finalists,
    losers,
    pairs_wanted,
    settled,
)
from accl_tune.decide.verdicts import Level, Proof, Verdict, judge
from accl_tune.model import Candidate, Cell, CellRecord, Choice, Pair, Trial
from hypothesis import given, settings
from hypothesis import strategies as st

DIRECT = Choice("direct", "bulk")
RING = Choice("ring", "bulk")
RING_BIG = Choice("ring", "bulk", 1 << 20)
TREE = Choice("tree", "bulk")
HOW = Screening()


def pairs(gain, count, share=0.01, seed=1):
    source = random.Random(f"{gain} {seed}")
    return [Pair(10 * gain * exp(source.gauss(0, share)), 10.0, bool(i % 2)) for i in range(count)]


def record(size, gains, *, screened=8, share=0.01, aliases=None, name="all_reduce", same=()):
    trials = [
        Trial(
            Candidate(choice, (aliases or {}).get(choice, ())),
            screening=pairs(gain, screened, share, size),
        )
        for choice, gain in gains.items()
    ]
    return CellRecord(Cell(name, size), DIRECT, tuple(same), trials)


# ---- screening ----


def test_the_slow_and_the_beaten_leave():
    out = losers(record(64, {RING: 1.5, TREE: 1.2, RING_BIG: 0.9}), HOW)
    assert set(out) == {TREE, RING_BIG}
    assert "another is faster" in out[TREE]
    assert "cannot reach a gain of 3%" in out[RING_BIG]


def test_the_close_stay():
    assert losers(record(64, {RING: 1.10, TREE: 1.10}), HOW) == {}
    assert losers(record(64, {RING: 1.03, TREE: 1.03}, share=0.1), HOW) == {}


def test_two_pairs_suffice_for_the_hopeless_only():
    assert set(losers(record(64, {RING: 0.3, TREE: 0.7}, screened=2), HOW)) == {RING}
    assert losers(record(64, {RING: 0.3}, screened=1), HOW) == {}


def test_settled():
    assert settled(record(64, {}), HOW)
    assert settled(record(64, {RING: 1.2}, screened=8), HOW)
    assert not settled(record(64, {RING: 1.2}, screened=7), HOW)


def test_confirmation_stops_early_only_without_a_gain():
    assert not cannot_confirm(pairs(0.9, 7), HOW)
    assert cannot_confirm(pairs(0.9, 8), HOW)
    assert not cannot_confirm(pairs(1.1, 60), HOW)
    assert not cannot_confirm(pairs(1.0, 8, 0.2), HOW)


def test_more_noise_and_less_gain_want_more_pairs():
    def wanted(gain, share):
        one = record(64, {RING: gain}, share=share)
        return pairs_wanted(one, one.trials[0], HOW)

    assert wanted(2.0, 0.01) == HOW.least_confirm
    assert HOW.least_confirm < wanted(1.15, 0.1) < wanted(1.06, 0.1) <= HOW.most_confirm


def test_finalists_do_not_flip_for_a_hair():
    """Each cell's best alternates by half a percent; one choice serves all."""
    records = [
        record(1 << i, {RING: 1.2 + 0.005 * (i % 2), TREE: 1.2 + 0.005 * (1 - i % 2)}, share=1e-4)
        for i in range(3, 13)
    ]
    assert len(set(choose_finalists(records, HOW))) == 1


def test_finalists_follow_a_true_crossover():
    records = [
        record(1 << i, {RING: 1.4 if i < 8 else 0.8, TREE: 0.8 if i < 8 else 1.4})
        for i in range(3, 13)
    ]
    assert choose_finalists(records, HOW) == [RING] * 5 + [TREE] * 5


def test_no_finalist_without_a_gain():
    records = [record(1 << i, {RING: 1.0, TREE: 0.99}, share=1e-4) for i in range(3, 8)]
    assert choose_finalists(records, HOW) == [None] * 5
    assert choose_finalists([], HOW) == []


def test_the_wrong_are_never_finalists():
    one = record(64, {RING: 9.0, TREE: 1.2})
    one.trials[0].out, one.trials[0].wrong = "3 wrong elements", True
    assert choose_finalists([one], HOW) == [TREE]


@given(st.integers(1, 9), st.integers(1, 4), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_the_path_is_the_best_of_all_paths(cells, choices, source):
    """Against brute force."""
    from itertools import product

    import numpy as np
    from accl_tune.decide.screening import _best_path

    cells = min(cells, 5)
    gains = np.array([[source.uniform(-0.1, 0.1) for _ in range(choices)] for _ in range(cells)])

    def worth(path):
        changes = sum(a != b for a, b in zip(path, path[1:], strict=False))
        return sum(gains[i][c] for i, c in enumerate(path)) - 0.03 * changes

    best = max(map(worth, product(range(choices), repeat=cells)))
    assert worth(_best_path(gains, 0.03)) == pytest.approx(best)


# ---- verdicts ----


def confirmed(size, gain, count=24, share=0.01, choice=RING):
    one = record(size, {choice: gain})
    one.finalist = choice
    one.trials[0].confirming = pairs(gain, count, share, size + 1)
    return one


def level(one, *others):
    return judge([one, *others], Proof())[0].level


def test_levels():
    assert level(confirmed(64, 1.2)) is Level.STRONG
    assert level(confirmed(64, 1.02)) is Level.WEAK
    assert level(confirmed(64, 1.01)) is Level.NONE
    assert level(confirmed(64, 1.2, count=4)) is Level.NONE
    assert level(confirmed(64, 1.2, count=5)) is Level.WEAK  # p is 1/32
    assert level(confirmed(64, 0.8)) is Level.NONE


def test_many_cells_ask_for_more():
    """p is 1/256 with 8 pairs: enough alone, not among a hundred that show nothing."""
    nothing = [confirmed(128 + i, 1.0, share=0.3) for i in range(100)]
    assert level(confirmed(64, 1.2, count=8)) is Level.STRONG
    assert level(confirmed(64, 1.2, count=8), *nothing) is Level.WEAK


def test_screening_pairs_prove_nothing():
    one = record(64, {RING: 3.0}, screened=100)
    one.finalist = RING
    verdict = judge([one], Proof())[0]
    assert verdict.level is Level.NONE
    assert "no time to confirm" in verdict.why


def test_reasons():
    empty, nobody = record(64, {}), record(64, {RING: 1.0})
    late = CellRecord(Cell("reduce", 8), DIRECT, unmeasured="the budget did not reach for it")
    whys = [verdict.why for verdict in judge([empty, nobody, late], Proof())]
    assert whys[0] == "every choice runs like the default here"
    assert whys[1] == "no candidate looked better than the default"
    assert whys[2] == "the budget did not reach for it"


# ---- intervals ----


def verdict(one, how, choice):
    return Verdict(one.cell, choice, how, "", 24, 1.2, 1.1, 1.3, 1e-6, 1e-5)


def build(rows):
    """rows: (record, level, choice)."""
    verdicts = {one.cell: verdict(one, how, choice) for one, how, choice in rows}
    return build_intervals([one for one, _, _ in rows], verdicts)


S, W, N = Level.STRONG, Level.WEAK, Level.NONE


def test_one_rule_for_neighbours_with_one_choice():
    rows = [(record(1 << i, {RING: 1.2}), S, RING) for i in range(3, 9)]
    (one,) = build(rows)
    assert (one.choice, one.min_bytes, one.max_bytes) == (RING, 0, 256)
    assert [cell.bytes for cell in one.cells] == [8, 16, 32, 64, 128, 256]


def test_nothing_beyond_what_was_measured():
    (one,) = build([(record(4096, {RING: 1.2}), S, RING), (record(8192, {RING: 1.2}), S, RING)])
    assert (one.min_bytes, one.max_bytes) == (4096, 8192)


def test_weak_cells_only_beside_strong_ones():
    sizes = [record(1 << i, {RING: 1.2}) for i in range(10, 16)]
    levels = [W, S, W, N, W, N]
    (one,) = build([(r, how, RING) for r, how in zip(sizes, levels, strict=True)])
    assert [cell.bytes for cell in one.cells] == [1024, 2048, 4096]


def test_ends_lie_where_the_choices_break_even():
    """Log gain 0.18 at 1K and -0.18 at 4K: even at 2K."""
    small, large = record(1024, {RING: 1.2}, share=1e-6), record(4096, {RING: 1 / 1.2}, share=1e-6)
    (one,) = build([(small, S, RING), (large, N, None)])
    assert one.max_bytes in (1792, 2048)
    steep = record(4096, {RING: 1 / 1.2**9}, share=1e-6)
    (one,) = build([(small, S, RING), (steep, N, None)])
    assert 1024 <= one.max_bytes < 1200


def test_neighbouring_rules_touch():
    gains = {RING: 1.3, TREE: 1.1}
    other = {RING: 1.1, TREE: 1.3}
    rows = [(record(64, gains), S, RING), (record(1024, other), S, TREE)]
    first, second = build(rows)
    assert (first.choice, second.choice) == (RING, TREE)
    assert second.min_bytes == first.max_bytes + 1
    assert 64 <= first.max_bytes < 1024


def test_aliases_make_one_rule():
    """Below the chunk the two ring candidates are one; above only the big chunk wins."""
    rows = [
        (record(1 << 12, {RING: 1.2}, aliases={RING: (RING_BIG,)}), S, RING),
        (record(1 << 22, {RING: 1.0, RING_BIG: 1.2}), S, RING_BIG),
    ]
    (one,) = build(rows)
    assert one.choice == RING_BIG


def test_a_gap_where_the_choice_changes_nothing_is_bridged():
    middle = record(1 << 12, {TREE: 0.9}, same=(RING,))
    rows = [
        (record(1 << 10, {RING: 1.2}), S, RING),
        (middle, N, None),
        (record(1 << 14, {RING: 1.2}), S, RING),
    ]
    assert len(build(rows)) == 1
    plain = record(1 << 12, {RING: 0.9})
    assert len(build([rows[0], (plain, N, None), rows[2]])) == 2


@given(
    st.lists(
        st.tuples(st.sampled_from([S, W, N]), st.sampled_from([RING, TREE, RING_BIG])),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=150)
def test_rules_cover_the_strong_and_nothing_unshown(cells):
    rows = [
        (record(8 << i, {RING: 1.2, TREE: 1.2, RING_BIG: 1.2}, screened=3), how, choice)
        for i, (how, choice) in enumerate(cells)
    ]
    found = build(rows)
    covered = {cell: interval.choice for interval in found for cell in interval.cells}
    for one, how, choice in rows:
        if how is S:
            assert covered[one.cell] == choice
        if one.cell in covered:
            assert how is not N
            assert covered[one.cell] == choice
    ends = [edge for interval in found for edge in (interval.min_bytes, interval.max_bytes)]
    assert ends == sorted(ends)
    for interval in found:
        assert interval.min_bytes <= interval.cells[0].bytes
        assert interval.cells[-1].bytes <= interval.max_bytes


@st.composite
def measured(draw):
    """Cells of one collective as a sweep leaves them: default, its aliases, gains, a finalist.

    As with the real defaults, what the default is may change between two sizes.
    """
    choices = [DIRECT, RING, RING_BIG, TREE]
    records = []
    for index in range(draw(st.integers(1, 8))):
        default = draw(st.sampled_from([DIRECT, TREE]))
        others = [choice for choice in choices if choice != default]
        same = draw(st.sets(st.sampled_from(others), max_size=2))
        rivals = [choice for choice in others if choice not in same]
        trials = [
            Trial(Candidate(rivals[0], tuple(rivals[1:])))
        ]  # they run alike, or each for itself
        if draw(st.booleans()):
            trials = [Trial(Candidate(choice)) for choice in rivals]
        for trial in trials:
            gain = draw(st.sampled_from([0.6, 0.95, 1.0, 1.02, 1.04, 1.3]))
            trial.screening = pairs(gain, 4, 0.01, index)
            trial.confirming = pairs(gain, draw(st.sampled_from([0, 5, 24])), 0.01, index + 99)
        record = CellRecord(Cell("all_reduce", 64 << (2 * index)), default, tuple(same), trials)
        record.finalist = draw(
            st.sampled_from([None, *(trial.candidate.choice for trial in trials)])
        )
        records.append(record)
    return records


@given(measured())
@settings(max_examples=300, deadline=None)
def test_no_rule_reaches_a_measured_size_where_its_choice_is_not_as_good_as_the_default(records):
    verdicts = {verdict.cell: verdict for verdict in judge(records, Proof())}
    for interval in build_intervals(records, verdicts):
        for one in records:
            if not interval.min_bytes <= one.cell.bytes <= interval.max_bytes:
                continue
            assert one.cell in interval.cells
            if one.runs_like_default(interval.choice):
                continue
            trial = one.trial(interval.choice)
            assert trial is not None
            assert not trial.wrong
            shown = verdicts[one.cell]
            assert shown.choice in trial.candidate.choices
            assert shown.gain >= 1.01
            assert shown.p <= 0.05
