"""The statistics bench: whole sweeps on a simulated machine whose truth is known."""

import random

import pytest
from accl_tune.decide.verdicts import Level
from accl_tune.evidence import Journal
from accl_tune.measure.sweep import Plan, Sweep, conclude
from accl_tune.model import Cell, Choice
from simulated import DEFAULT_CHOICE, Machine, bursts, drifting, heavy, normal, skewed, spikes

CHOICES = [
    Choice("ring", "bulk"),
    Choice("two_shot", "bulk"),
    Choice("ring", "inline"),
    Choice("ring", "bulk", 65536),
    Choice("two_shot", "bulk", 1 << 20),
    Choice("halving_doubling", "bulk"),
]
CELLS = tuple(
    Cell(name, 8 << i)
    for name in ("all_reduce", "broadcast", "gather", "scatter", "reduce")
    for i in range(20)
)


def sweep(directory, gains, noise, *, seed=1, budget=None, cells=CELLS, machine=None):
    machine = machine or Machine(gains, noise, seed=seed)
    plan = Plan(cells, budget=budget, seed=seed)
    header = {"tool": {}, "machine": {}, "parameters": {}}
    journal = Journal.create(directory / f"{seed}.jsonl", header)
    try:
        evidence = Sweep(plan, machine, journal, machine.clock).run({})
    finally:
        journal.close()
    conclude(evidence, plan.proof)
    return evidence, machine


def no_difference(_):
    return dict.fromkeys(CHOICES, 1.0)


def one_is_better(cell):
    """A different one in each cell: the hardest for rules, which like neighbours to be alike."""
    best = random.Random(str(cell)).randrange(len(CHOICES))
    return {choice: 1.1 if i == best else 0.95 for i, choice in enumerate(CHOICES)}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "noise",
    [normal(0.3), skewed(0.3), heavy(0.3), spikes(0.3), drifting(0.3), bursts(0.3)],
    ids=["normal", "skewed", "heavy", "spikes", "drifting", "bursts"],
)
def test_without_a_difference_fewer_than_one_cell_in_a_hundred_gets_a_rule(tmp_path, noise, seed):
    evidence, _ = sweep(tmp_path, no_difference, noise, seed=seed)
    ruled = sum(len(interval.cells) for interval in evidence.intervals)
    assert ruled < len(CELLS) / 100
    assert all(record.trials[0].screening for record in evidence.ordered())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "noise",
    [normal(0.05), skewed(0.05), drifting(0.05), bursts(0.05)],
    ids=["normal", "skewed", "drifting", "bursts"],
)
def test_a_gain_of_ten_percent_is_found_at_five_percent_noise(tmp_path, noise, seed):
    evidence, _ = sweep(tmp_path, one_is_better, noise, seed=seed)
    right = sum(
        one_is_better(cell)[interval.choice] > 1
        for interval in evidence.intervals
        for cell in interval.cells
    )
    ruled = sum(len(interval.cells) for interval in evidence.intervals)
    assert right > 0.95 * len(CELLS)
    assert ruled == right


def test_heavy_tails_cost_findings_and_not_errors(tmp_path):
    for noise in (heavy(0.05), spikes(0.05)):
        evidence, _ = sweep(tmp_path, one_is_better, noise)
        ruled = [(cell, one.choice) for one in evidence.intervals for cell in one.cells]
        assert len(ruled) > 0.75 * len(CELLS)
        wrong = [cell for cell, choice in ruled if one_is_better(cell)[choice] < 1]
        assert len(wrong) <= len(CELLS) / 100


def test_a_common_best_makes_few_rules(tmp_path):
    evidence, _ = sweep(
        tmp_path,
        lambda cell: {choice: 1.1 if choice == CHOICES[2] else 1.0 for choice in CHOICES},
        normal(0.05),
    )
    assert sum(len(one.cells) for one in evidence.intervals) > 0.95 * len(CELLS)
    assert len(evidence.intervals) <= 8  # 5 is the least, one a collective


def test_reported_gains_are_not_flattered(tmp_path):
    """The finalist was chosen for its luck too; the confirmed gain must not keep it."""
    evidence, _ = sweep(tmp_path, lambda _: dict.fromkeys(CHOICES, 1.1), normal(0.15))
    gains = [verdict.gain for verdict in evidence.verdicts.values() if verdict.pairs >= 60]
    assert len(gains) > 20
    assert sum(gains) / len(gains) == pytest.approx(1.1, abs=0.02)


def test_the_budget_is_kept(tmp_path):
    for budget in (4, 15, 60):
        evidence, machine = sweep(tmp_path, one_is_better, normal(0.05), budget=budget)
        assert machine.now <= 1.1 * budget
        if budget < 30:
            assert machine.now >= 0.9 * budget
        assert evidence.spent == pytest.approx(machine.now, abs=0.1)


def test_what_the_budget_does_not_reach_keeps_the_default(tmp_path):
    evidence, machine = sweep(tmp_path, one_is_better, normal(0.05), budget=0.5)
    unmeasured = [record for record in evidence.ordered() if record.unmeasured]
    assert unmeasured
    assert len(evidence.records) == len(CELLS)
    ruled = {cell for one in evidence.intervals for cell in one.cells}
    assert not ruled & {record.cell for record in unmeasured}


def test_time_goes_to_the_close_ones(tmp_path):
    cells = (Cell("all_reduce", 1024),)
    slow, close = CHOICES[0], CHOICES[1]
    gains = {slow: 0.4, close: 1.05, **dict.fromkeys(CHOICES[2:], 0.85)}
    evidence, _ = sweep(tmp_path, lambda _: gains, normal(0.02), cells=cells)
    record = evidence.records[cells[0]]
    counts = {t.candidate.choice: len(t.screening) for t in record.trials}
    assert counts[slow] == 2
    assert all(counts[choice] <= 4 for choice in CHOICES[2:])
    assert counts[close] == 8
    assert record.finalist == close


def test_the_same_seed_gives_the_same_sweep(tmp_path):
    one, _ = sweep(tmp_path, one_is_better, normal(0.05), seed=5, cells=CELLS[:10])
    two, _ = sweep(tmp_path, one_is_better, normal(0.05), seed=5, cells=CELLS[:10])
    other, _ = sweep(tmp_path, one_is_better, normal(0.05), seed=6, cells=CELLS[:10])
    assert one.to_json() == two.to_json()
    assert one.to_json() != other.to_json()


def test_the_wrong_is_rejected_even_if_fastest(tmp_path):
    fastest, second = CHOICES[0], CHOICES[1]
    machine = Machine(
        lambda _: {fastest: 3.0, second: 1.5},
        normal(0.05),
        wrong={fastest: "17 wrong elements"},
    )
    evidence, _ = sweep(tmp_path, None, None, machine=machine, cells=CELLS[:20])
    assert {one.choice for one in evidence.intervals} == {second}
    for record in evidence.ordered():
        trial = record.trial(fastest)
        assert trial.wrong
        assert trial.out == "17 wrong elements"
        assert not trial.screening


def test_a_failing_call_is_recorded_and_the_sweep_goes_on(tmp_path):
    hangs, good = CHOICES[0], CHOICES[1]
    machine = Machine(lambda _: {hangs: 3.0, good: 1.5}, normal(0.05), failing={hangs: 30})
    evidence, _ = sweep(tmp_path, None, None, machine=machine, cells=CELLS[:4])
    for record in evidence.ordered():
        trial = record.trial(hangs)
        assert trial.wrong
        assert trial.out == "the call failed: it hung"
        verdict = evidence.verdicts[record.cell]
        assert verdict.choice in (good, None) or "the call failed: it hung" in verdict.why
    assert all(one.choice == good for one in evidence.intervals)


def test_default_choice_is_no_candidate(tmp_path):
    evidence, _ = sweep(tmp_path, lambda _: {}, normal(0.05), cells=CELLS[:3])
    assert evidence.intervals == []
    assert {record.default for record in evidence.ordered()} == {DEFAULT_CHOICE}
    assert {verdict.level for verdict in evidence.verdicts.values()} == {Level.NONE}
