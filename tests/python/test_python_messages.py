"""send, recv and groups."""

from __future__ import annotations

import time

import accl_py
import numpy as np
import pytest
from accl_py import Communicator
from layouts_numpy import LAYOUTS, lay_out
from local_ranks import ThreadRanks


@pytest.mark.parametrize("count", (0, 1, 1000, 300_000))
def test_ring_of_groups(ranks: ThreadRanks, count: int) -> None:
    def check(c: Communicator) -> None:
        left, right = (c.rank - 1) % c.size, (c.rank + 1) % c.size
        for layout in LAYOUTS:
            x = lay_out(np.full(count, c.rank, np.float32), layout)
            got = lay_out(np.full(count, -1, np.float32), layout)
            with c.group() as g:
                g.send(x, right)
                g.recv(got, left)
            assert (got == left).all()

    ranks.run(check)


def test_tags_and_any_source(ranks3: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        if c.rank == 0:
            x = np.zeros(2, np.int64)
            seen = {c.recv(x, tag=7) for _ in range(2)}
            assert seen == {1, 2}
            assert c.recv(x, 2, tag=1) == 2 and x.tolist() == [2, 1]
            work = c.recv(x, 1, tag=2, async_op=True)
            assert work.wait() is x and work.source_rank == 1 and x.tolist() == [1, 2]
        else:
            for tag in (7, 1, 2):
                c.send(np.array([c.rank, tag]), 0, tag=tag)

    ranks3.run(check)

    # What rank 1 sent with tag 1 and rank 2 with tag 2 is still there.
    def rest(c: Communicator) -> None:
        x = np.zeros(2, np.int64)
        if c.rank == 0:
            assert c.recv(x, tag=1) == 1
            assert c.recv(x, accl_py.ANY_SOURCE, tag=2) == 2
        c.barrier()

    ranks3.run(rest)


def test_order_is_kept(ranks2: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        if c.rank == 0:
            works = [c.send(np.full(n + 1, n, np.int32), 1, async_op=True) for n in range(50)]
            for work in works:
                work.wait()
        else:
            for n in range(50):
                x = np.zeros(n + 1, np.int32)
                c.recv(x, 0)
                assert (x == n).all()

    ranks2.run(check)


def test_to_itself(ranks2: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        got = np.zeros(3)
        with c.group() as g:
            g.send(np.arange(3.0), c.rank)
            g.recv(got, c.rank)
        assert got.tolist() == [0, 1, 2]

    ranks2.run(check)


def test_a_size_that_differs_is_an_error() -> None:
    from local_ranks import outcomes

    store = accl_py.HashStore()

    def work(rank: int) -> None:
        with Communicator.from_store(store, rank, 2, timeout=10) as c:
            if rank == 0:
                c.send(np.zeros(4), 1)
                c.barrier()
            else:
                c.recv(np.zeros(3), 0)

    begin = time.monotonic()
    errors = [error for _, error in outcomes(2, work)]
    assert all(isinstance(e, accl_py.AcclError) for e in errors), errors
    assert isinstance(errors[1], accl_py.errors.MismatchError)
    assert "32" in str(errors[1]) and "24" in str(errors[1])
    assert time.monotonic() - begin < 3
