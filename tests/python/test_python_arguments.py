"""Bad arguments: each is refused with a sentence that names the value, and nothing is started."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import accl_py
import numpy as np
import pytest
from accl_py import Communicator, FileStore, HashStore, Rules
from accl_py.errors import (
    AcclError,
    InvalidArgument,
    RulesError,
    StoreError,
)
from local_ranks import ThreadRanks, run_threads


def x() -> Any:
    return np.ones((2, 3), np.float32)


CALLS: list[tuple[Callable[[Communicator], Any], str]] = [
    (lambda c: c.all_reduce(x(), op="mean"), "Operation 'mean' is unknown; expected one of: sum, "),
    (lambda c: c.all_reduce(x(), op=3), "op is 3; expected a word"),  # type: ignore[arg-type]
    (lambda c: c.all_reduce(x(), op="band"), "band is not defined for float32"),
    (lambda c: c.all_reduce(x() > 0, op="avg"), "avg is not defined for bool"),
    (lambda c: c.all_reduce(x().astype(complex), op="max"), "max is not defined for complex128"),
    (lambda c: c.all_reduce(x(), op="premul_sum", factor="2"), "factor is '2'; expected a number"),  # type: ignore[arg-type]
    (lambda c: c.all_reduce(x(), np.ones((2, 3))), "out has dtype float64, but x has float32"),
    (
        lambda c: c.all_reduce(x(), np.ones(6, np.float32)),
        r"out has shape \(6,\); expected \(2, 3\)",
    ),
    (lambda c: c.all_reduce(x(), [0.0] * 6), "out is a list; expected"),
    (lambda c: c.all_reduce(x(), tag=3), "Option 'tag' is unknown; expected one of: algorithm, "),  # type: ignore[call-arg]
    (
        lambda c: c.all_reduce(x(), algorithm="teleport"),
        "Algorithm 'teleport' is unknown for all_reduce",
    ),
    (lambda c: c.all_reduce(x(), algorithm=3), "algorithm is 3; expected a word or None"),  # type: ignore[arg-type]
    (lambda c: c.all_reduce(x(), protocol="ll"), "Protocol 'll' is unknown"),
    (lambda c: c.all_reduce(x(), chunk_bytes=1.5), "chunk_bytes is 1.5; expected an integer"),  # type: ignore[arg-type]
    (lambda c: c.all_reduce(x(), chunk_bytes=-1), "chunk_bytes is -1; expected at least 0"),
    (
        lambda c: c.all_reduce(x(), chunk_bytes=2**70),
        "chunk_bytes is 1180591620717411303424; expected at most",
    ),
    (lambda c: c.all_reduce(x(), chunk_bytes=3), "chunk_bytes 3 is too small"),
    (lambda c: c.all_reduce(x(), timeout=0), "timeout is 0; expected seconds above 0"),
    (lambda c: c.all_reduce(x(), timeout=-1.5), "timeout is -1.5; expected seconds above 0"),
    (lambda c: c.all_reduce(x(), timeout=float("nan")), "timeout is nan"),
    (lambda c: c.all_reduce(x(), timeout="1"), "timeout is '1'"),  # type: ignore[arg-type]
    (lambda c: c.all_reduce(x(), timeout=timedelta(0)), "expected seconds above 0 or a timedelta"),
    (lambda c: c.broadcast(x(), root=2), "root is 2; expected 0 to 1"),
    (lambda c: c.broadcast(x(), root=-1), "root is -1; expected 0 to 1"),
    (lambda c: c.reduce(x(), root="0"), "root is '0'; expected an integer"),  # type: ignore[arg-type]
    (lambda c: c.gather(x(), root=1.0), "root is 1.0; expected an integer"),  # type: ignore[arg-type]
    (lambda c: c.scatter(x(), x(), root=2**40), "root is 1099511627776; expected at most"),
    (
        lambda c: c.scatter(x(), root=1 - c.rank),
        "out is missing on rank . only|out is missing on rank",
    ),
    (
        lambda c: c.all_gather(x(), np.ones((3, 2, 3), np.float32)),
        r"expected \(2, 2, 3\) or \(4, 3\)",
    ),
    (lambda c: c.all_gather(x(), counts=[2]), "counts has 1 entries; expected one a rank: 2"),
    (lambda c: c.all_gather(x(), counts=5), "counts is 5; expected a list"),  # type: ignore[arg-type]
    (lambda c: c.all_gather(x(), counts=[2, -1]), r"counts\[1\] is -1; expected at least 0"),
    (lambda c: c.all_gather(x(), counts=[2, "a"]), r"counts\[1\] is 'a'; expected an integer"),  # type: ignore[list-item]
    (lambda c: c.all_gather(x(), counts=[3, 3]), r"has shape \(2, 3\), but counts\[.\] is 3"),
    (lambda c: c.gather(x(), counts=[1, 1]), r"has shape \(2, 3\), but counts\[.\] is 1"),
    (lambda c: c.all_gather(np.float32(1), counts=[1, 1]), r"has shape \(\)"),
    (lambda c: c.reduce_scatter(np.ones(3)), "first dimension of 3, which 2 ranks do not divide"),
    (lambda c: c.reduce_scatter(np.ones(())), "x has no dimension"),
    (
        lambda c: c.reduce_scatter(np.ones(3), counts=[1, 1]),
        "counts sum to 2, but x has a first dimension of 3",
    ),
    (lambda c: c.all_to_all(np.ones(3)), "first dimension of 3, which 2 ranks do not divide"),
    (lambda c: c.all_to_all(np.ones(())), "x has no dimension"),
    (lambda c: c.all_to_all(np.ones(2), send_counts=[1, 1]), "must be given together"),
    (
        lambda c: c.all_to_all(np.ones(2), send_counts=[1, 2], receive_counts=[1, 2]),
        "send_counts sum to 3",
    ),
    (lambda c: (lambda a: c.all_to_all(a, a))(np.ones(2)), "cannot be in place"),
    (lambda c: (lambda a: c.all_reduce(a[:4], a[1:5]))(np.ones(5)), "overlap in part"),
    (lambda c: c.send(x(), 2), "peer 2 is not a rank; expected 0 to 1"),
    (lambda c: c.send(x(), accl_py.ANY_SOURCE), "peer -1 is not a rank"),
    (lambda c: c.recv(x(), -2), "peer -2 is not a rank"),
    (lambda c: c.send(x(), "1"), "peer is '1'; expected an integer"),  # type: ignore[arg-type]
    (lambda c: c.send(x(), 1, tag=2**31), "tag is 2147483648; expected at most"),
    (lambda c: c.recv(b"abc", 1), "x is read-only"),
    (
        lambda c: c.prepare("all_sum", x()),
        "Collective 'all_sum' is unknown; expected one of: all_reduce",
    ),
    (lambda c: c.prepare("all_reduce", np.ones((4, 4))[:, 0]), "needs contiguous arrays"),
    (lambda c: c.prepare("all_reduce", x(), op="mean"), "Operation 'mean' is unknown"),
    (lambda c: c.choice_for("broadcast", x(), root=5), "root is 5"),
    (lambda c: c.prepare("barrier").time(-1), "iterations is -1; expected 0 or more"),
    (lambda c: setattr(c, "timeout", 0), "timeout is 0; expected"),
]


@pytest.mark.parametrize("call, words", CALLS, ids=range(len(CALLS)))
def test_refused(ranks2: ThreadRanks, call: Callable[[Communicator], Any], words: str) -> None:
    def check(c: Communicator) -> None:
        before = c.statistics()["works_posted"]
        with pytest.raises(InvalidArgument, match=words) as refusal:
            call(c)
        assert isinstance(refusal.value, ValueError) and isinstance(refusal.value, AcclError)
        assert c.statistics()["works_posted"] == before
        assert c.error is None

    ranks2.run(check)


MAKING: list[tuple[Callable[[], Any], type[AcclError], str]] = [
    (
        lambda: Communicator.from_store(HashStore(), 2, 2),
        InvalidArgument,
        "rank 2; expected 0 to 1",
    ),
    (
        lambda: Communicator.from_store(HashStore(), -1, 2),
        InvalidArgument,
        "rank -1; expected 0 to 1",
    ),
    (lambda: Communicator.from_store(HashStore(), 0, 0), InvalidArgument, "size 0; expected"),
    (
        lambda: Communicator.from_store(HashStore(), "0", 1),
        InvalidArgument,
        "rank is '0'; expected an integer",
    ),  # type: ignore[arg-type]
    (
        lambda: Communicator.from_store(HashStore(), 0, 2**40),
        InvalidArgument,
        "size is 1099511627776",
    ),
    (
        lambda: Communicator.from_store(HashStore(), 0, 1, timeout=0),
        InvalidArgument,
        "timeout is 0",
    ),
    (lambda: Communicator.from_store(HashStore(), 0, 1, name=""), InvalidArgument, "name is ''"),
    (
        lambda: Communicator.from_store(HashStore(), 0, 1, name="a\nb"),
        InvalidArgument,
        "name is 'a\\\\nb'",
    ),
    (lambda: Communicator.from_store(HashStore(), 0, 1, rules=3), InvalidArgument, "rules is 3"),  # type: ignore[arg-type]
    (
        lambda: Communicator.from_store(HashStore(), 0, 1, rules=""),
        InvalidArgument,
        "rules is an empty path",
    ),
    (
        lambda: Communicator.from_store(HashStore(), 0, 1, rules="/nowhere/r.csv"),
        RulesError,
        "/nowhere/r.csv",
    ),
    (
        lambda: Communicator.from_store({}, 0, 1),
        InvalidArgument,
        "store is a dict, which has no method set",
    ),
    (lambda: Communicator.from_store(None, 0, 1), InvalidArgument, "store is a NoneType"),
    (
        lambda: Communicator.from_mpi(3),
        InvalidArgument,
        "comm is a int; expected a communicator of mpi4py",
    ),
    (
        lambda: FileStore("/nowhere/store"),
        StoreError,
        "'/nowhere/store' is no directory; create it",
    ),
    (lambda: Rules.parse("nonsense", "r.csv"), RulesError, "r.csv:1"),
    (lambda: accl_py.schedule.algorithms("x"), InvalidArgument, "Collective 'x' is unknown"),
    (
        lambda: accl_py.rules.algorithm_words("gpu", "all_reduce"),
        InvalidArgument,
        "Engine 'gpu' is unknown",
    ),
    (lambda: accl_py.schedule.plan("x", "all_reduce", 0, 2, 8), InvalidArgument, "x"),
]


@pytest.mark.parametrize("call, kind, words", MAKING, ids=range(len(MAKING)))
def test_making_refused(call: Callable[[], Any], kind: type[AcclError], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_unknown_arguments_are_type_errors() -> None:
    with pytest.raises(TypeError, match="colour"):
        Communicator.from_store(HashStore(), 0, 1, colour=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="colour"):
        accl_py.init(colour=1)


def test_nothing_can_be_pickled(ranks2: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        with pytest.raises(TypeError, match="cannot be pickled: it is bound to this process"):
            pickle.dumps(c)
        with pytest.raises(TypeError, match="cannot be pickled"):
            copy.copy(c)
        work = c.barrier(async_op=True)
        with pytest.raises(TypeError):
            pickle.dumps(work)
        with pytest.raises(TypeError):
            pickle.dumps(c.prepare("barrier"))
        work.wait()

    ranks2.run(check)


def test_use_after_the_end() -> None:
    def check(c: Communicator) -> None:
        c.barrier()
        c.shutdown()
        c.shutdown()
        with pytest.raises(accl_py.errors.AbortedError, match="'world'"):
            c.send(x(), 0)
        with pytest.raises(accl_py.errors.AbortedError), c.group() as group:
            group.recv(x(), 0)
        with pytest.raises(accl_py.errors.AbortedError):
            c.prepare("barrier").run()
        with pytest.raises(accl_py.errors.AbortedError):
            c.barrier()
        with pytest.raises(accl_py.errors.AbortedError):
            c.all_reduce(x(), async_op=True)
        assert (c.rank, c.size, c.nodes) in {(0, 2, 1), (1, 2, 1)}
        assert c.statistics()["works_posted"] == 1
        assert len(c.trace()["operations"]) == 1
        assert c.error is not None

    run_threads(2, check)


def test_a_group_is_posted_once(ranks2: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        with c.group() as group:
            pass
        with pytest.raises(InvalidArgument, match="has been posted already"):
            group.send(x(), 0)
        with pytest.raises(ZeroDivisionError), c.group() as group:
            group.send(x(), 1 - c.rank)
            raise ZeroDivisionError
        c.barrier()  # the send above was never made

    ranks2.run(check)
