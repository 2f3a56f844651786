"""What a call may overlap with, and what it may not; run by each rank."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

CUDA = "cuda"
LONG = 400_000_000  # cycles: about 0.2 s


def total(size: int) -> float:
    return size * (size + 1) / 2


def host_goes_on(rank: int, size: int) -> None:
    """Neither the call nor wait() stops the host; the result comes after what was there before."""
    box = torch.zeros(1000, device=CUDA)
    dist.all_reduce(box)
    for async_op in (False, True):
        torch.cuda.synchronize()
        torch.cuda._sleep(LONG)
        box.fill_(rank + 1)
        start = time.perf_counter()
        work = dist.all_reduce(box, async_op=async_op)
        if work is not None:
            work.wait()
        spent = time.perf_counter() - start
        assert spent < 0.1, f"the host was held for {spent:.3f} s"
        doubled = box * 2  # on the current stream: after the call
        assert doubled.tolist() == [2 * total(size)] * 1000


def side_streams(rank: int, size: int) -> None:
    """Calls belong to the stream that is current, on which the input is still being made."""
    side = torch.cuda.Stream()
    for count in (64, 300_000):
        for async_op in (False, True):
            with torch.cuda.stream(side):
                torch.cuda._sleep(LONG // 20)
                box = torch.full((count,), float(rank + 1), device=CUDA)
                work = dist.all_reduce(box, async_op=async_op)
                if work is not None:
                    work.wait()
                result = box + 1
            torch.cuda.current_stream().wait_stream(side)
            assert (result == total(size) + 1).all()


def wait_elsewhere(rank: int, size: int) -> None:
    """wait() orders the stream that is current when it is called."""
    side = torch.cuda.Stream()
    box = torch.zeros(300_000, device=CUDA)
    for _ in range(20):
        box.fill_(rank + 1)
        work = dist.all_reduce(box, async_op=True)
        with torch.cuda.stream(side):
            work.wait()
            seen = box.sum()
        side.synchronize()
        assert seen.item() == total(size) * 300_000
        torch.cuda.current_stream().wait_stream(side)


def memory_freed_early(rank: int, size: int) -> None:
    """Tensors that are dropped right after the call are not used again too early."""
    verdicts = []
    for i in range(300):
        count = 1000 + 5000 * (i % 7)
        box = torch.full((count,), float(rank + i), device=CUDA)
        out = torch.empty(size * count, device=CUDA)
        work = dist.all_gather_into_tensor(out, box, async_op=True)
        del box
        trash = torch.full((count,), -1.0, device=CUDA)  # may get the input's memory
        if i % 3 != 2:
            work.wait()
            for r in range(size):
                verdicts.append((out[r * count : (r + 1) * count] == r + i).all())
        del work, out, trash
    assert torch.stack(verdicts).all()


def futures(rank: int, size: int) -> None:
    """Callbacks of the future run on streams that wait for the call."""
    for _ in range(10):
        torch.cuda._sleep(LONG // 50)
        box = torch.full((300_000,), float(rank + 1), device=CUDA)
        work = dist.all_reduce(box, async_op=True)
        future = work.get_future().then(lambda done: done.value()[0] * 2)
        assert (future.wait() == 2 * total(size)).all()
    work = dist.all_reduce(torch.ones(4, device=CUDA), async_op=True)
    torch.cuda.synchronize()
    deadline = time.monotonic() + 5
    while not work.is_completed() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert work.is_completed() and work.is_success()


def graphs(rank: int, size: int) -> None:
    """Calls in a CUDA graph: each replay works on what the input holds then."""
    for count in (2, 5000, 200_000):
        source = torch.ones(count, device=CUDA)
        outs = {
            "gather": torch.empty(size * count, device=CUDA),
            "scatter": torch.empty(count, device=CUDA),
            "swap": torch.empty(size * count, device=CUDA),
        }
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        dist.barrier()
        with torch.cuda.graph(graph):
            box = source * (rank + 1)
            dist.all_reduce(box)
            later = box.clone()
            dist.all_reduce(later, async_op=True).wait()
            sent = source * rank
            dist.broadcast(sent, size - 1)
            dist.all_gather_into_tensor(outs["gather"], source * rank)
            dist.reduce_scatter_tensor(outs["scatter"], (source * (rank + 1)).repeat(size))
            dist.all_to_all_single(outs["swap"], (source * rank).repeat(size))
            reduced = source * (rank + 1)
            dist.reduce(reduced, 0)
        for value in (1.0, 3.0, -2.0):
            source.fill_(value)
            graph.replay()
            torch.cuda.synchronize()
            assert (box == value * total(size)).all()
            assert (later == value * total(size) * size).all()
            assert (sent == value * (size - 1)).all()
            ranks = torch.arange(size, device=CUDA).repeat_interleave(count).float()
            assert torch.equal(outs["gather"], ranks * value)
            assert (outs["scatter"] == value * total(size)).all()
            assert torch.equal(outs["swap"], ranks * value)
            assert (reduced == value * (total(size) if rank == 0 else rank + 1)).all()
        dist.barrier()
        del graph
