"""How pairs are timed: the order of turns, and which of them count."""

from types import SimpleNamespace

import pytest
from accl_tune.measure.lead import DEFAULT, Lead
from accl_tune.model import Cell, Choice

RING, TREE = Choice("ring", "bulk"), Choice("tree", "bulk")
CELL = Cell("all_reduce", 4096)


class FakeBench:
    """Rank 0's bench without ranks: says how long each batch of a job took."""

    def __init__(self, seconds=lambda index, number: 1.0):
        self.control = SimpleNamespace(size=2, nodes=1)
        self.at = -1
        self.jobs = []
        self._seconds = seconds

    def lead(self, job):
        self.jobs.append(job)
        order = job.get("order", ()) if job["do"] == "time" else ()
        return [self._seconds(index, number) for number, index in enumerate(order)]


def test_turns_go_there_and_back_and_both_sides_get_as_many_calls():
    bench = FakeBench()
    Lead(bench, "float32").pairs(CELL, [(RING, True), (TREE, False)], 10)
    job = bench.jobs[-1]
    assert job["choices"] == [[], ["ring", "bulk", 0], ["tree", "bulk", 0]]
    assert job["order"] == [0, 1, 1, 0, 0, 1, 1, 0, 2, 0, 0, 2, 2, 0, 0, 2]
    assert job["iterations"] == 2


def test_long_calls_take_fewer_turns_and_at_least_one():
    bench = FakeBench()
    lead = Lead(bench, "float32")
    lead.pairs(CELL, [(RING, True)], 1)
    assert (bench.jobs[-1]["order"], bench.jobs[-1]["iterations"]) == ([0, 1], 1)
    lead.pairs(CELL, [(RING, False)], 3)
    assert (bench.jobs[-1]["order"], bench.jobs[-1]["iterations"]) == ([1, 0, 0, 1, 1, 0], 1)


@pytest.mark.parametrize("default_first", [True, False])
def test_a_spoilt_turn_does_not_spoil_the_pair(default_first):
    """The default takes 2 us a call and ring 1 us; three turns of four take 50 times as long."""

    def seconds(index, number):
        spoilt = 1 if number // 2 == 2 else 50
        return 1e-6 * 5 * (1 if index else 2) * spoilt

    (pair,) = Lead(FakeBench(seconds), "float32").pairs(CELL, [(RING, default_first)], 20)
    assert pair.default_us == pytest.approx(2)
    assert pair.candidate_us == pytest.approx(1)
    assert pair.default_first is default_first


def test_the_default_may_be_compared_with_itself():
    bench = FakeBench()
    (pair,) = Lead(bench, "float32").pairs(CELL, [(DEFAULT, True)], 8)
    assert set(bench.jobs[-1]["order"]) == {0}
    assert pair.default_us == pair.candidate_us
