"""What the tuner writes is what the engine does: choice, chunk and traffic, counted by the executor."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from math import log2
from pathlib import Path

import accl_py
import accl_tune
import numpy as np
import pytest
from accl_py import Communicator, HashStore, Rules, schedule
from accl_tune.decide.intervals import Interval
from accl_tune.decide.verdicts import Level, Verdict
from accl_tune.model import Cell, Choice
from accl_tune.rules.explain import Query, explain
from accl_tune.rules.write import Shape, rules_text, write_rules

_names = (f"obeyed {number}" for number in itertools.count())
FLOAT = 4
LARGE = 300_007  # floats: no whole segments, no whole parts
SMALL = 5_003


def tuned(path: Path, ranks: int, *rows: tuple[Choice, int, int]) -> Path:
    """Writes a rules file for all_reduce as a sweep does: (choice, min_bytes, max_bytes)."""
    intervals, verdicts = [], {}
    for choice, low, high in rows:
        cell = Cell("all_reduce", high)
        intervals.append(Interval("all_reduce", choice, low, high, (cell,)))
        verdicts[cell] = Verdict(cell, choice, Level.STRONG, "", 24, 1.2, 1.1, 1.3, 1e-6, 1e-5)
    write_rules(path, rules_text(intervals, verdicts, Shape(ranks, 1), {"written_by": "a test"}))
    return path


def reports(ranks: int, rules: Path | None, *counts: int) -> list[list[dict]]:
    """By rank: what the executor reports of an all_reduce of so many floats, one after the other."""
    store, name = HashStore(), next(_names)
    told: list[list[dict]] = [[] for _ in range(ranks)]
    failures: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            with Communicator.from_store(
                store, rank, ranks, name=name, rules=rules, timeout=20
            ) as communicator:
                for count in counts:
                    x = np.arange(count, dtype=np.float32) % 7
                    work = communicator.all_reduce(x, async_op=True)
                    work.wait()
                    assert (x == ranks * (np.arange(count) % 7)).all()
                    told[rank].append(work.report())
                total = communicator.statistics()["traffic"]
            summed = [one["traffic"] for one in told[rank]]
            assert total == {key: sum(one[key] for one in summed) for key in total}
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    return told


# ---- docs/algorithms.md, in numbers ----


def parts(segment: int, number: int) -> list[int]:
    """The bytes of the parts of a segment, by the section Words."""
    size = -(-segment // FLOAT // number) * FLOAT
    if segment >= 64 * number:
        size = -(-size // 64) * 64
    return [min(max(segment - index * size, 0), size) for index in range(number)]


def ring(segment: int, rank: int, n: int) -> dict[str, int]:
    p = parts(segment, n)
    return {
        "bytes_sent": 2 * segment - p[(rank + 1) % n] - p[(rank + 2) % n],
        "bytes_received": 2 * segment - p[rank] - p[(rank + 1) % n],
        "bytes_reduced": segment - p[rank],
    }


def two_shot(segment: int, rank: int, n: int) -> dict[str, int]:
    own = parts(segment, n)[rank]
    both = (segment - own) + (n - 1) * own
    return {"bytes_sent": both, "bytes_received": both, "bytes_reduced": (n - 1) * own}


def halving_doubling(segment: int, rank: int, n: int) -> dict[str, int]:
    power = 1 << int(log2(n))
    folded = 2 * (n - power)  # the first ranks form pairs, of which the odd ones sit out
    if rank < folded and rank % 2:
        return {"bytes_sent": segment, "bytes_received": segment, "bytes_reduced": 0}
    index = rank // 2 if rank < folded else rank - folded // 2
    p = parts(segment, power)
    kept = 0
    for k in range(int(log2(power))):
        first = index >> k << k
        kept += sum(p[first : first + (1 << k)])
    partner = segment if rank < folded else 0
    both = (segment - p[index]) + kept + partner
    return {"bytes_sent": both, "bytes_received": both, "bytes_reduced": kept + partner}


FORMULAS = {"ring": ring, "two_shot": two_shot, "halving_doubling": halving_doubling}


def by_the_document(algorithm: str, size: int, chunk: int, rank: int, n: int) -> dict[str, int]:
    segment = 2 * chunk if algorithm == "halving_doubling" else n * chunk
    total = dict.fromkeys(("bytes_sent", "bytes_received", "bytes_reduced"), 0)
    for start in range(0, size, segment):
        for key, count in FORMULAS[algorithm](min(segment, size - start), rank, n).items():
            total[key] += count
    return total


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("chunk", [4096, 1 << 16])
@pytest.mark.parametrize("algorithm", sorted(FORMULAS))
def test_the_engine_runs_what_a_rule_says(tmp_path, algorithm, chunk, ranks):
    size = LARGE * FLOAT
    rules = tuned(
        tmp_path / "rules.csv", ranks, (Choice(algorithm, "bulk", chunk), 40_000, 1 << 22)
    )
    told = reports(ranks, rules, LARGE, SMALL)
    for rank, (large, small) in enumerate(told):
        assert (large["algorithm"], large["protocol"]) == (algorithm, "bulk")
        assert large["chunk_bytes"] == chunk
        plan = schedule.plan(
            algorithm, "all_reduce", rank, ranks, size, FLOAT, chunk_bytes=chunk
        ).traffic()
        assert large["traffic"] == plan
        formula = by_the_document(algorithm, size, chunk, rank, ranks)
        assert {key: large["traffic"][key] for key in formula} == formula
        # Below the rule's range the built-in default goes on to hold.
        assert (small["algorithm"], small["protocol"]) == ("direct", "inline")
        assert small["traffic"]["bytes_sent"] == (ranks - 1) * SMALL * FLOAT


def test_another_rules_file_is_another_behaviour(tmp_path):
    path = tmp_path / "rules.csv"
    seen = []
    for choice in (
        Choice("ring", "bulk", 1 << 14),
        Choice("ring", "bulk", 1 << 18),
        Choice("direct", "bulk"),
        Choice("two_shot", "bulk", 1 << 14),
    ):
        report = reports(3, tuned(path, 3, (choice, 0, 1 << 22)), LARGE)[0][0]
        assert report["algorithm"] == choice.algorithm
        seen.append(tuple(report["traffic"].values()))
    assert len(set(seen)) == len(seen)
    default = reports(3, None, LARGE)[0][0]
    assert default["algorithm"] == "two_shot"


def test_ends_are_exact_and_other_shapes_are_left_alone(tmp_path):
    path = tuned(
        tmp_path / "rules.csv",
        2,
        (Choice("ring", "bulk"), 4096, 8192),
        (Choice("two_shot", "bulk"), 8193, 16384),
    )
    counts = (1023, 1024, 2048, 2049, 4096, 4097)
    ran = [one["algorithm"] for one in reports(2, path, *counts)[0]]
    assert ran == ["direct", "ring", "ring", "two_shot", "two_shot", "direct"]
    assert {one["algorithm"] for one in reports(3, path, *counts)[0]} == {"direct"}


def test_the_environment_names_the_rules(tmp_path):
    """As a job uses them: ACCL_RULES, and nothing in the program."""
    code = """
import threading, numpy as np, accl_py
store = accl_py.HashStore()
def work(rank):
    with accl_py.Communicator.from_store(store, rank, 2, timeout=20) as c:
        call = c.all_reduce(np.ones(50_000, np.float32), async_op=True)
        call.wait()
        if rank == 0:
            print(call.report()["algorithm"], call.report()["chunk_bytes"])
threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
"""
    homes = [str(Path(str(package.__file__)).parents[1]) for package in (accl_tune, accl_py)]
    for choice in (Choice("ring", "bulk", 8192), Choice("direct", "bulk", 32768)):
        path = tuned(tmp_path / "rules.csv", 2, (choice, 0, 1 << 22))
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "ACCL_RULES": str(path), "PYTHONPATH": os.pathsep.join(homes)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.split() == [choice.algorithm, str(choice.chunk_bytes)], done.stderr


def test_explain_says_what_runs(tmp_path):
    """With a rule, with a default, and with no match at all."""
    path = tuned(tmp_path / "rules.csv", 2, (Choice("ring", "bulk", 8192), 4096, 8192))
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    for file in (path, empty):
        rules = Rules.load(str(file))
        for count, report in zip(
            (5, 1500, LARGE), reports(2, file, 5, 1500, LARGE)[0], strict=True
        ):
            said = explain(rules, Query("all_reduce", count * FLOAT, 2), None)
            assert f"algorithm {report['algorithm']}, protocol {report['protocol']}" in said
