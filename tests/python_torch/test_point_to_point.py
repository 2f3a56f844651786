"""send, recv, any source, tags, batches."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, refused


def check_tags(rank: int, size: int) -> None:
    """Receives in the other order than the sends, told apart by tags."""
    if rank == 0:
        works = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (1, 2, 3)]
    elif rank == 1:
        boxes = {tag: torch.zeros(1) for tag in (3, 1, 2)}
        works = [dist.irecv(box, 0, tag=tag) for tag, box in boxes.items()]
    else:
        works = []
    for work in works:
        assert work is not None
        work.wait()
    assert rank != 1 or {tag: box.item() for tag, box in boxes.items()} == {1: 1.0, 2: 2.0, 3: 3.0}


def check_order(rank: int, size: int) -> None:
    """Messages with one tag arrive in the order in which they were sent."""
    if rank == 0:
        for n in range(50):
            dist.send(torch.full((n,), n), 1)
    elif rank == 1:
        for n in range(50):
            box = torch.zeros(n, dtype=torch.int64)
            dist.recv(box, 0)
            assert (box == n).all()


def check_any_source(rank: int, size: int) -> None:
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            box = torch.zeros(3)
            source = dist.recv(box)
            assert box[0] == source
            seen.add(source)
        assert seen == set(range(1, size))
        column = torch.zeros(3, 2)[:, 0]
        assert dist.recv(column, tag=7) == size - 1 and column.tolist() == [5.0] * 3
    else:
        dist.send(torch.full((3,), float(rank)), 0)
        if rank == size - 1:
            dist.send(torch.full((3,), 5.0), 0, tag=7)


def check_source_rank(rank: int, size: int) -> None:
    before = (rank - 1) % size
    sent = dist.isend(torch.ones(1), (rank + 1) % size)
    got = dist.irecv(torch.zeros(1), before)
    assert sent is not None and got is not None
    got.wait()
    sent.wait()
    assert got._source_rank() == before


def check_self(rank: int, size: int) -> None:
    """A message to oneself; torch refuses the blocking forms, where they would never end."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    for count in (0, 1, 100_000):
        box = torch.zeros(count)
        works = [backend.send([torch.full((count,), 3.0)], rank, 0), backend.recv([box], rank, 0)]
        for work in works:
            work.wait()
        assert (box == 3).all()
    box = torch.zeros(4)
    works = [backend.recv([box], rank, 1), backend.send([torch.ones(4)], rank, 1)]
    for work in works:
        work.wait()
    assert box.sum() == 4


def check_send_does_not_wait(rank: int, size: int) -> None:
    """Everybody sends megabytes first, and receives after."""
    count = 1 << 21
    x, box = torch.full((count,), float(rank)), torch.zeros(count)
    work = dist.isend(x, (rank + 1) % size)
    dist.recv(box, (rank - 1) % size)
    assert work is not None
    work.wait()
    assert (box == (rank - 1) % size).all()


def check_send_is_driven(rank: int, size: int) -> None:
    """A send goes on though its rank does something else, and drops the handle."""
    done = torch.zeros(1)
    if rank == 0:
        dist.isend(torch.ones(1 << 21), 1)
        store = dist.distributed_c10d._get_default_store()
        store.wait(["driven"])  # does not touch the group
        store.delete_key("driven")
    elif rank == 1:
        box = torch.zeros(1 << 21)
        dist.recv(box, 0)
        assert box[-1] == 1
        dist.distributed_c10d._get_default_store().set("driven", "yes")
    dist.all_reduce(done)


def check_batch(rank: int, size: int) -> None:
    """Receives first, then sends, with every other rank."""
    count = 1 << 18
    others = [r for r in range(size) if r != rank]
    boxes = {r: torch.zeros(count) for r in others}
    operations = [dist.P2POp(dist.irecv, boxes[r], r) for r in others]
    operations += [dist.P2POp(dist.isend, torch.full((count,), float(rank)), r) for r in others]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for r in others:
        assert (boxes[r] == r).all()


def check_batch_asymmetric(rank: int, size: int) -> None:
    """Rank 0 only sends, two messages a peer; strided buffers on both sides."""
    if rank == 0:
        operations = [
            dist.P2POp(dist.isend, torch.full((5, 2), float(10 * r + n))[:, 1], r)
            for r in range(1, size)
            for n in (0, 1)
        ]
        boxes = []
    else:
        boxes = [torch.zeros(5, 3)[:, 1] for _ in (0, 1)]
        operations = [dist.P2POp(dist.irecv, box, 0) for box in boxes]
    works = dist.batch_isend_irecv(operations)
    for work in works:
        work.wait()
    for n, box in enumerate(boxes):
        assert box.tolist() == [float(10 * rank + n)] * 5


def check_batch_many(rank: int, size: int) -> None:
    """512 operations in an order that differs from rank to rank."""
    others = [r for r in range(size) if r != rank]
    plan = [(r, n) for n in range(256 // len(others)) for r in others]
    boxes = {key: torch.zeros(1 + key[1]) for key in plan}
    operations = [dist.P2POp(dist.irecv, boxes[r, n], r, tag=n) for r, n in plan]
    operations += [
        dist.P2POp(dist.isend, torch.full((1 + n,), float(rank)), r, tag=n) for r, n in plan
    ]
    random.Random(rank).shuffle(operations)
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for (r, n), box in boxes.items():
        assert (box == r).all(), (r, n)


def check_wait_inside_batch(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    refused(backend._end_coalescing, "start_coalescing")
    backend._start_coalescing()
    work = backend.send([torch.ones(1)], (rank + 1) % size, 0)
    refused(work.wait, "inside a coalescing block")
    assert not work.is_completed()
    box = torch.zeros(1)
    received = backend.recv([box], (rank - 1) % size, 0)
    both = backend._end_coalescing()
    future = received.get_future()
    both.wait()
    work.wait()
    assert received.is_completed() and box == 1 and future.wait()[0] == 1
    backend._start_coalescing()
    backend._end_coalescing().wait()  # an empty one


def check_wrong_peers(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    refused(lambda: backend.send([torch.ones(1)], size, 0), f"rank {size}", f"0 to {size - 1}")
    refused(lambda: backend.recv([torch.ones(1)], -1, 0), "rank -1")
    refused(lambda: backend.send([torch.ones(1), torch.ones(1)], 0, 0), "2 tensors")


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_point_to_point(ranks: Ranks, check: Callable[..., None]) -> None:
    ranks.run(check)
