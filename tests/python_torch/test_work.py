"""Handles, futures, deadlines, threads and the profiler."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, refused


def posted(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> dist.Work:
    work = dist.all_reduce(x, group=group, async_op=True)
    assert work is not None
    return work


def check_handle(rank: int, size: int) -> None:
    x = torch.ones(4)
    work = posted(x)
    assert work.wait() is True and work.wait() is True  # as often as one likes
    assert work.is_completed() and work.is_success() and x[0] == size
    assert [t.data_ptr() for t in work.result()] == [x.data_ptr()]
    work.synchronize()
    work.block_current_stream()
    report = work.reports()[0]  # type: ignore[attr-defined]
    assert report["algorithm"] and report["bytes_sent"] > 0


def check_polling(rank: int, size: int) -> None:
    """A call completes though nobody waits; what is staged is copied back then."""
    plain, column = torch.ones(100_000), torch.ones(1000, 2)[:, 0]
    works = [posted(plain), posted(column)]
    end = time.monotonic() + 10
    while not all(work.is_completed() for work in works):
        assert time.monotonic() < end
        time.sleep(0.001)
    assert plain[-1] == size and column[-1] == size


def check_dropped(rank: int, size: int) -> None:
    """Handles and tensors go away while their calls are under way."""
    for _ in range(50):
        posted(torch.ones(50_000))
        posted(torch.ones(1000, 2)[:, 0])
    kept = torch.ones(1000, 2)[:, 0]
    posted(kept)
    gc.collect()
    dist.barrier()
    end = time.monotonic() + 10
    while kept[0] != size and time.monotonic() < end:
        time.sleep(0.001)
    assert kept.tolist() == [size] * 1000


def check_future(rank: int, size: int) -> None:
    x = torch.ones(3)
    future = posted(x).get_future()
    value = future.wait()
    assert isinstance(value, list) and value[0].data_ptr() == x.data_ptr() and future.done()
    # Asked for after completion; asked for twice.
    work = posted(x)
    work.wait()
    assert work.get_future().wait()[0][0] == size * size and work.get_future().done()
    chained = posted(x).get_future().then(lambda f: f.value()[0].sum().item())
    assert chained.wait() == 3 * size**3
    out = [torch.zeros(2) for _ in range(size)]
    work = dist.all_gather(out, torch.full((2,), float(rank)), async_op=True)
    assert work is not None
    assert [t[0].item() for t in work.get_future().wait()] == list(range(size))
    assert dist.barrier(async_op=True).get_future().wait() == []  # type: ignore[union-attr]
    verdict = posted(torch.ones(1)).get_future_result()
    assert verdict.wait() == 0


def check_future_nested(rank: int, size: int) -> None:
    """A callback starts a collective and waits for it, three deep and eight wide."""

    def deeper(depth: int) -> Callable[[torch.futures.Future], torch.Tensor]:
        def callback(future: torch.futures.Future) -> torch.Tensor:
            x = future.value()[0].clone() if depth == 3 else future.value()
            if depth == 0:
                return x
            y = torch.ones(2) * depth
            dist.all_reduce(y, group=groups[depth - 1])
            return (
                posted(x, groups[depth - 1])
                .get_future()
                .then(lambda f: f.value()[0] + y)
                .then(deeper(depth - 1))
                .wait()
            )

        return callback

    groups = [dist.new_group(list(range(size))) for _ in range(3)]
    result = posted(torch.ones(2)).get_future().then(deeper(3)).wait()
    want = float(size)
    for depth in (3, 2, 1):
        want = want * size + depth * size
    assert result.tolist() == [want] * 2
    for group in groups:
        dist.destroy_process_group(group)


def check_future_wide(rank: int, size: int) -> None:
    """More blocked callbacks than any fixed number of completion threads."""
    gate = threading.Event()
    entered = []

    def callback(future: torch.futures.Future) -> int:
        entered.append(1)
        assert gate.wait(20)
        return 1

    before, after = (rank - 1) % size, (rank + 1) % size
    received = [dist.irecv(torch.zeros(1), before, tag=n) for n in range(16)]
    futures = [work.get_future().then(callback) for work in received if work is not None]
    dist.barrier()  # now every callback is in place, and none has run
    sent = [dist.isend(torch.ones(1), after, tag=n) for n in range(16)]
    end = time.monotonic() + 10
    while len(entered) < 16 and time.monotonic() < end:
        time.sleep(0.005)
    assert len(entered) == 16, f"only {len(entered)} of 16 callbacks run at the same time"
    last = posted(torch.ones(1))
    last.wait()  # progress goes on
    gate.set()
    assert sum(f.wait() for f in futures) == 16
    for work in sent:
        assert work is not None
        work.wait()


def check_wait_timeout(rank: int, size: int) -> None:
    """A wait that ends early leaves the call and the group as they are."""
    x = torch.ones(2)
    if rank == 0:
        work = posted(x)
        start = time.monotonic()
        refused(
            lambda: work.wait(timedelta(milliseconds=200)),
            " Timed out ",
            "200 ms",
            error=dist.DistBackendError,
        )
        assert 0.15 < time.monotonic() - start < 2
        assert not work.is_completed()
        time.sleep(0.2)
        work.wait()
    else:
        time.sleep(1)
        dist.all_reduce(x)
    assert x[0] == size
    dist.barrier()


def check_timeout_of_group(rank: int, size: int) -> None:
    """The group's timeout ends the call, its future and the group; other groups live on."""
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=1))
    if rank == 0:
        start = time.monotonic()
        work = posted(torch.ones(1), group)
        future = work.get_future()
        refused(future.wait, " Timed out ")
        refused(work.wait, " Timed out ", "all_reduce", error=dist.DistBackendError)
        assert 0.8 < time.monotonic() - start < 3
        assert (
            work.is_completed() and not work.is_success() and work.get_future_result().wait() != 0
        )
        refused(lambda: dist.all_reduce(torch.ones(1), group=group), "ended")
        assert group._get_backend(torch.device("cpu"))._get_error() == 1  # type: ignore[attr-defined]
    dist.barrier()
    dist.destroy_process_group(group)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x == size


def check_timeout_of_call(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    if rank == 0:
        opts = dist.AllreduceOptions()
        opts.timeout = timedelta(milliseconds=400)
        start = time.monotonic()
        refused(lambda: group.allreduce([torch.ones(1)], opts).wait(), " Timed out ", "400 ms")
        assert time.monotonic() - start < 3
    dist.barrier()
    dist.destroy_process_group(group)


def check_sequence(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    backend._set_sequence_number_for_group()
    before = backend._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    dist.barrier()
    assert backend._get_sequence_number_for_group() == before + 4


def check_threads(rank: int, size: int) -> None:
    """One group a thread, all at once."""
    groups = [dist.new_group(list(range(size))) for _ in range(4)]
    sums: list[float] = []

    def use(group: dist.ProcessGroup) -> None:
        for n in range(25):
            x = torch.ones(1 + 1000 * (n % 3))
            dist.all_reduce(x, group=group)
            sums.append(x[-1].item())

    threads = [threading.Thread(target=use, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [size] * 100
    for group in groups:
        dist.destroy_process_group(group)


def check_wait_from_other_thread(rank: int, size: int) -> None:
    x = torch.ones(10, 2)[:, 0]
    work = posted(x)
    done: list[float] = []
    threads = [
        threading.Thread(target=lambda: (work.wait(), done.append(x[3].item()))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [size] * 4


def check_profiler(rank: int, size: int) -> None:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        dist.all_reduce(torch.ones(6, 5))
        work = posted(torch.ones(6, 5))
        work.wait()
        dist.broadcast(torch.ones(3), 0)
        dist.all_gather([torch.ones(1) for _ in range(size)], torch.ones(1))
        dist.isend(torch.ones(1), (rank + 1) % size).wait()
        dist.recv(torch.ones(1), (rank - 1) % size)
        dist.barrier()
    events = profile.events()
    names = [event.name for event in events]
    for name, count in {
        "all_reduce": 2,
        "broadcast": 1,
        "all_gather": 1,
        "send": 1,
        "recv": 1,
        "barrier": 1,
    }.items():
        assert names.count(f"accl:{name}") == count, (name, names)
    assert [6, 5] in next(e for e in events if e.name == "accl:all_reduce").input_shapes


def check_timing(rank: int, size: int) -> None:
    """Calls that torch makes on every backend and that need no work here."""
    world = dist.group.WORLD
    assert world is not None
    world._enable_collectives_timing()
    backend = world._get_backend(torch.device("cpu"))
    backend.eager_connect_single_device(torch.device("cpu"))
    assert backend._get_error() == 0  # type: ignore[attr-defined]
    counted = backend.statistics()  # type: ignore[attr-defined]
    dist.all_reduce(torch.ones(1))
    assert backend.statistics()["works_posted"] == counted["works_posted"] + 1  # type: ignore[attr-defined]
    assert "all_reduce" in backend.trace_json()  # type: ignore[attr-defined]


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_work(ranks: Ranks, check: Callable[..., None]) -> None:
    ranks.run(check)
