"""The GPU check of the tuner plugin sees each kind of disagreement: its judgement, without a GPU."""

from __future__ import annotations

import copy
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

import plugin_obeyed as check

RING_LL = check.Step("all_reduce", 16 << 10, "ring", "ll", 2, line=3)
LINE = "h:1:2 [0] NCCL INFO AllReduce: 16384 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"


def table(**changed: float) -> list[list[float]]:
    """Tree and ring with ll and simple are legal, ring/simple is the cheapest."""
    rows = [[-1.0] * 3 for _ in range(7)]
    rows[0], rows[1] = [20.0, -1.0, 22.0], [21.0, -1.0, 10.0]
    for name, cost in changed.items():
        algorithm, protocol = name.rsplit("_", 1)
        rows[check.ALGORITHMS.index(algorithm)][check.PROTOCOLS.index(protocol)] = cost
    return rows


def call(step: check.Step = RING_LL, **changed) -> list[dict]:
    """The records of two ranks in which all is well, but for what rank 0's is given."""
    record = {
        "step": asdict(step),
        "right": True,
        "asked": 1,
        "function": 4,
        "bytes": step.bytes,
        "outcome": 2,
        "forced": 0,
        "line": 3,
        "before": table(),
        "after": table(ring_ll=0.0),
        "ran": ["ring", "ll", 2],
    }
    other = {**copy.deepcopy(record), "ran": None}
    return [{**record, **changed}, other]


def test_an_obeyed_rule_has_no_fault():
    assert check.faults(call(), 4) == []
    assert check.ran([LINE, "something else"], "all_reduce") == ["ring", "ll", 2]


def test_a_communicator_with_fewer_channels_limits_the_rule():
    assert check.faults(call(ran=["ring", "ll", 1]), 1) == []


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"right": False}, "wrong data"),
        ({"asked": 0}, "NCCL asked 0 times"),
        ({"function": 2}, "function 2"),
        ({"bytes": 8}, "about 8 bytes"),
        ({"outcome": 1}, "left it, expected applied"),
        ({"outcome": 4}, "differ it"),
        ({"line": 4}, "line 4"),
        ({"forced": 1}, "forced 1"),
        ({"after": table(ring_ll=0.0, ring_ll128=0.0)}, "wrote over ring/ll128"),
        ({"after": table(ring_ll=0.0, tree_ll=0.0)}, "wrote over tree/ll"),
        ({"after": table()}, "otherwise than rank 0"),
        ({"ran": None}, "log does not have the call"),
        ({"ran": ["tree", "ll", 2]}, "NCCL ran tree/ll"),
        ({"ran": ["ring", "simple", 2]}, "NCCL ran ring/simple"),
        ({"ran": ["ring", "ll", 4]}, "used 4 of 4 channels"),
    ],
)
def test_each_disagreement_is_a_fault(changed, words):
    assert any(words in fault for fault in check.faults(call(**changed), 4))


def test_a_choice_that_nccl_ignores_must_change_nothing():
    ignored = check.Step("all_reduce", 16 << 10, "ring", "ll128", 2, line=3)
    records = call(ignored)
    for record in records:
        record.update(outcome=3, after=table())
    records[0]["ran"] = ["ring", "simple", 4]
    assert check.faults(records, 4) == []
    records[0]["after"] = table(ring_ll=0.0)
    assert any("wrote over ring/ll" in fault for fault in check.faults(records, 4))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [LINE, LINE],
        [LINE.replace("AllReduce", "AllGather")],
        [LINE.replace("-> Algo RING proto LL", "Best tuning { RING LL }")],
    ],
)
def test_a_log_that_does_not_have_the_call_once_is_not_believed(lines):
    assert check.ran(lines, "all_reduce") is None


def test_a_machine_that_can_show_nothing_is_said():
    found = check.blind_spots([call()], 1)
    for words in ("has 1 channels", "tree/simple could never", "no choice was one that NCCL"):
        assert any(words in spot for spot in found)


def test_rules_and_calls_belong_together(tmp_path):
    from accl_py.rules import Rules

    rules = Rules.parse(check.rules_text(), "rules")
    for step in check.steps_of_rules():
        row = rules.match(step.collective, step.bytes, engine="nccl", ranks=4, nodes=4)
        assert (row.line if row else 0) == step.line
