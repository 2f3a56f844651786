"""What a communicator tells of itself: choices, reports, statistics, traces, and timed loops."""

from __future__ import annotations

import os
import time
from pathlib import Path

import accl_py
import numpy as np
import pytest
from accl_py import Communicator, HashStore, Rules
from accl_py.errors import AbortedError, AcclError, InvalidArgument, TimeoutError
from local_ranks import ThreadRanks, outcomes, run_threads

RULES = """# collective,min_bytes,max_bytes,algorithm,protocol,channels,chunk
allreduce,0,4096,halving_doubling,-1,-1,-1,-1,-1,-1,cpu
"""


def test_attributes(ranks: ThreadRanks) -> None:
    def check(c: Communicator) -> int:
        assert c.size == ranks.size and c.nodes == 1
        assert c.timeout == 20.0
        c.timeout = 19.5
        assert c.timeout == 19.5
        c.timeout = 20
        assert f"rank {c.rank} of {c.size}" in repr(c) and c.name in repr(c)
        assert c.rules.digest() == Rules.defaults().digest()
        assert c.error is None
        return c.rank

    assert ranks.run(check) == list(range(ranks.size))


def test_rules_decide(ranks2: ThreadRanks, tmp_path: Path) -> None:
    first = next(a.name for a in accl_py.schedule.algorithms("all_reduce"))
    assert first != "halving_doubling"
    path = tmp_path / "rules.csv"
    path.write_text(RULES)
    for rules in (Rules.parse(RULES, "mine"), Rules.load(str(path)), path, str(path)):

        def check(c: Communicator) -> None:
            small, large = np.ones(8, np.float32), np.ones(100_000, np.float32)
            assert c.choice_for("all_reduce", small)["algorithm"] == "halving_doubling"
            assert c.choice_for("AllReduce".lower(), large)["algorithm"] != "halving_doubling"
            work = c.all_reduce(small, async_op=True)
            work.wait()
            assert work.report()["algorithm"] == "halving_doubling"
            assert len(c.rules) == 1 and c.rules.rows[0].max_bytes == 4096

        run_threads(2, check, rules=rules)


def test_reports_and_statistics_count_bytes() -> None:
    def check(c: Communicator) -> None:
        x = np.ones(1000, np.float64)
        work = c.all_reduce(x, algorithm="ring", async_op=True)
        work.wait()
        report = work.report()
        assert set(report) == {"algorithm", "protocol", "chunk_bytes", "traffic"}
        planned = accl_py.schedule.plan(
            "ring", "all_reduce", c.rank, 3, 8000, 8, chunk_bytes=report["chunk_bytes"]
        )
        assert report["traffic"] == planned.traffic()
        # A ring sends 2 (n - 1) / n of the buffer, blocks rounded to cache lines.
        assert abs(report["traffic"]["bytes_sent"] - 2 * 2 * 8000 / 3) <= 128
        c.barrier()
        statistics = c.statistics()
        assert statistics["works_posted"] == statistics["works_completed"] == 2
        assert statistics["works_failed"] == 0 and statistics["staging_bytes"] > 0
        assert statistics["traffic"]["bytes_sent"] >= report["traffic"]["bytes_sent"]

    run_threads(3, check)


def test_choice_for_makes_no_call(ranks2: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        before = c.statistics()["works_posted"]
        x = np.ones((2, 4), np.float32)
        for name in (
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "broadcast",
            "reduce",
            "gather",
            "scatter",
        ):
            out = x[0] if name == "scatter" else None
            choice = c.choice_for(name, x, out, algorithm="direct", protocol="bulk")
            assert choice["algorithm"] == "direct" and choice["protocol"] == "bulk"
            assert set(choice) == {"algorithm", "protocol", "channels", "chunk_bytes"}
        assert c.choice_for("all_reduce", x, async_op=True)["algorithm"]
        assert c.choice_for("send", x, peer=0)["algorithm"] == "direct"
        assert c.choice_for("recv", x)["algorithm"] == "direct"
        assert c.statistics()["works_posted"] == before

    ranks2.run(check)


def test_prepared_calls(ranks: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        x, out = np.full(100, c.rank + 1.0), np.zeros(100)
        call = c.prepare("all_reduce", x, out, op="max", algorithm="direct")
        assert call.run()["algorithm"] == "direct"
        assert (out == c.size).all()
        begin = time.monotonic()
        total = call.time(100)
        assert 0 < total <= time.monotonic() - begin
        each = call.time_each(300)
        assert len(each) == 300 and min(each) >= 0
        assert call.time(0) == 0 or call.time(0) < 0.01
        assert call.time_each(0) == []
        prepared = {
            "all_gather": (np.ones(4), None),
            "reduce_scatter": (np.ones(4 * c.size), None),
            "all_to_all": (np.ones(4 * c.size), None),
            "broadcast": (np.ones(4), None),
            "reduce": (np.ones(4), np.zeros(4)),
            "gather": (np.ones(4), None),
            "scatter": (np.ones(4 * c.size), np.zeros(4)),
            "barrier": (None, None),
        }
        for name, arrays in prepared.items():
            assert c.prepare(name, *arrays).time(5) > 0

    ranks.run(check)


def test_prepared_messages(ranks2: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        x = np.full(10, c.rank)
        name = "send" if c.rank == 0 else "recv"
        assert c.prepare(name, x, peer=1 - c.rank).time(20) > 0
        assert (x == 0).all()

    ranks2.run(check)


def test_trace() -> None:
    def check(c: Communicator) -> None:
        c.all_reduce(np.ones(4, np.float32), op="max")
        c.broadcast(np.ones((), np.int16))
        trace = c.trace()
        first, second = trace["operations"]
        assert first["collective"] == "all_reduce" and first["bytes"] == 16
        assert first["dtype"] == "float32" and first["state"] == "completed"
        assert second["collective"] == "broadcast" and second["sequence"] == 2
        assert trace["rank"] == c.rank

    run_threads(2, check)


def test_timeouts_name_the_call_and_leave_a_trace() -> None:
    store = HashStore()
    folder = Path(os.environ["ACCL_TRACE_DIR"])
    before = set(folder.iterdir())

    def work(rank: int) -> None:
        with Communicator.from_store(store, rank, 2, timeout=20, name="late") as c:
            if rank == 1:
                time.sleep(0.5)
                return
            begin = time.monotonic()
            with pytest.raises(
                TimeoutError, match="all_reduce of 4 float64 .sum., call #1"
            ) as late:
                c.all_reduce(np.ones(4), timeout=0.2)
            assert isinstance(late.value, __builtins__["TimeoutError"])
            assert "rank 1 has not made the call" in str(late.value)
            assert time.monotonic() - begin < 1
            with pytest.raises(AbortedError, match="has ended"):
                c.barrier()

    outcome = outcomes(2, work)
    assert outcome[0][1] is None, outcome[0]
    assert set(folder.iterdir()) - before


def test_a_wait_may_give_up(ranks2: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        if c.rank == 1:
            time.sleep(0.2)
        x = np.ones(3)
        work = c.all_reduce(x, async_op=True)
        if c.rank == 0:
            with pytest.raises(TimeoutError, match="was not complete after 0.05 s; it goes on"):
                work.wait(0.05)
            assert not work.done() and "under way" in repr(work)
            assert work.report()["algorithm"] == ""
            with pytest.raises(InvalidArgument, match="timeout is -1"):
                work.wait(-1)
        assert work.wait(10) is x and (x == 2).all()

    ranks2.run(check)


def test_abort_reaches_everybody() -> None:
    store = HashStore()

    def work(rank: int) -> None:
        c = Communicator.from_store(store, rank, 3, timeout=20)
        if rank == 2:
            time.sleep(0.1)
            c.abort("the test says so")
            c.abort("again")
        c.all_reduce(np.ones(4))

    begin = time.monotonic()
    for _, error in outcomes(3, work):
        assert isinstance(error, AcclError) and "the test says so" in str(error)
    assert time.monotonic() - begin < 2


def test_an_exception_in_the_block_aborts() -> None:
    store = HashStore()

    def work(rank: int) -> None:
        with Communicator.from_store(store, rank, 2, timeout=20) as c:
            if rank == 1:
                raise ZeroDivisionError("mine")
            c.barrier()

    (_, first), (_, second) = outcomes(2, work)
    assert isinstance(first, accl_py.errors.PeerError) and "ZeroDivisionError" in str(first)
    assert isinstance(second, ZeroDivisionError)


def test_environment_table_is_documented() -> None:
    names = [row["name"] for row in accl_py.environment_table()]
    assert {"ACCL_LOG", "ACCL_RULES", "ACCL_TRACE_DIR", "ACCL_HOSTID"} <= set(names)


def test_schedules_can_be_read() -> None:
    plan = accl_py.schedule.plan("ring", "all_reduce", 0, 4, 4096, element_bytes=4)
    assert plan.traffic()["bytes_sent"] == 2 * 3 * 1024
    assert plan.rounds() >= 6
    sends = [s for loop in plan.loops for r in loop.rounds for s in r.sends]
    assert {s.peer for s in sends} == {1}
    assert all(s.source.buffer in {"input", "output", "scratch"} for s in sends)
    for collective in ("all_reduce", "all_gather", "broadcast", "all_to_all"):
        for algorithm in accl_py.schedule.algorithms(collective):
            assert algorithm.summary and algorithm.collective == collective
            assert algorithm.name in accl_py.rules.algorithm_words("cpu", collective)


def test_rules_match() -> None:
    rules = Rules.parse(RULES, "mine.csv")
    row = rules.match("all_reduce", 100, 2)
    assert row is not None and row.algorithm == "halving_doubling" and row.line == 2
    assert rules.match("all_reduce", 5000, 2) is None and rules.match("broadcast", 1, 2) is None
    assert row.format() in RULES and rules.digest() == Rules.parse(row.format()).digest()
    assert "mine.csv" in repr(rules)
