"""Every collective against a reference on the CPU, for one dtype; run by each rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

REDUCED = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
    "bool": torch.bool,
}
MOVED_ONLY = {
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int16": torch.int16,
}
CUDA = "cuda"


def counts(size: int) -> list[int]:
    """Awkward ones, and some that cross the kernels' limits and NCCL's."""
    return sorted({0, 1, size - 1, size, size + 1, 7, 257, 4099, 16385, 70001})


def sample(rank: int, seed: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, exact in every type, other ones for each rank and seed."""
    generator = torch.Generator().manual_seed(seed * 64 + rank)
    low, high = (0, 3) if dtype in (torch.uint8, torch.bool) else (-3, 4)
    values = torch.randint(low, high, (count,), generator=generator)
    if dtype == torch.bool:
        return values == 1
    if dtype.is_complex:
        other = torch.randint(low, high, (count,), generator=generator)
        return torch.complex(values.double(), other.double()).to(dtype)
    return values.to(dtype)


def same(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    """Bit for bit, since the samples are exact."""
    got = got.detach().cpu()
    if got.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        got, want = got.view(torch.uint8), want.view(torch.uint8)
    assert got.shape == want.shape, (
        f"{name}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    )
    if not torch.equal(got, want):
        wrong = (got != want).nonzero().flatten()
        first = int(wrong[0]) if wrong.numel() else -1
        raise AssertionError(
            f"{name}: {wrong.numel()} of {want.numel()} wrong, first at {first}: "
            f"{got.flatten()[first]} instead of {want.flatten()[first]}"
        )


def total(parts: list[torch.Tensor]) -> torch.Tensor:
    """The sum as the backend defines it: "or" for bool, wrapping for integers."""
    if parts[0].dtype == torch.bool:
        return torch.stack(parts).any(0)
    wide = torch.complex128 if parts[0].dtype.is_complex else None
    if parts[0].dtype in (torch.int8, torch.uint8, torch.int32, torch.int64):
        wide = torch.int64
    return torch.stack([p.to(wide or torch.float64) for p in parts]).sum(0).to(parts[0].dtype)


def finish(work: Any) -> None:
    """Waits where there is something to wait for."""
    if work is not None:
        work.wait()


def moving(rank: int, size: int, dtype: torch.dtype, count: int, seed: int, async_op: bool) -> None:
    parts = [sample(r, seed, count, dtype) for r in range(size)]
    mine = parts[rank].to(CUDA, copy=True)
    tag = f"{dtype} x {count}"
    root = seed % size

    out = torch.empty(size * count, dtype=dtype, device=CUDA)
    finish(dist.all_gather_into_tensor(out, mine, async_op=async_op))
    same(f"all_gather_into_tensor {tag}", out, torch.cat(parts))

    listed = [torch.empty(count, dtype=dtype, device=CUDA) for _ in range(size)]
    finish(dist.all_gather(listed, mine, async_op=async_op))
    same(f"all_gather {tag}", torch.cat(listed), torch.cat(parts))

    box = mine.clone()
    finish(dist.broadcast(box, root, async_op=async_op))
    same(f"broadcast {tag}", box, parts[root])

    full = [sample(r, seed + 1, size * count, dtype) for r in range(size)]
    out = torch.empty(size * count, dtype=dtype, device=CUDA)
    finish(dist.all_to_all_single(out, full[rank].to(CUDA, copy=True), async_op=async_op))
    same(
        f"all_to_all_single {tag}",
        out,
        torch.cat([f[rank * count : (rank + 1) * count] for f in full]),
    )

    listed = [torch.empty(count, dtype=dtype, device=CUDA) for _ in range(size)]
    finish(dist.gather(mine, listed if rank == root else None, root, async_op=async_op))
    if rank == root:
        same(f"gather {tag}", torch.cat(listed), torch.cat(parts))

    out = torch.empty(count, dtype=dtype, device=CUDA)
    give = [p.to(CUDA, copy=True) for p in parts] if rank == root else None
    finish(dist.scatter(out, give, root, async_op=async_op))
    same(f"scatter {tag}", out, parts[rank])


def computing(
    rank: int, size: int, dtype: torch.dtype, count: int, seed: int, async_op: bool
) -> None:
    parts = [sample(r, seed, count, dtype) for r in range(size)]
    tag = f"{dtype} x {count}"
    root = seed % size
    want = total(parts)

    box = parts[rank].to(CUDA, copy=True)
    finish(dist.all_reduce(box, async_op=async_op))
    same(f"all_reduce {tag}", box, want)

    box = parts[rank].to(CUDA, copy=True)
    finish(dist.reduce(box, root, async_op=async_op))
    same(f"reduce {tag}", box, want if rank == root else parts[rank])

    full = [sample(r, seed + 1, size * count, dtype) for r in range(size)]
    own = total(full)[rank * count : (rank + 1) * count]
    out = torch.empty(count, dtype=dtype, device=CUDA)
    finish(dist.reduce_scatter_tensor(out, full[rank].to(CUDA, copy=True), async_op=async_op))
    same(f"reduce_scatter_tensor {tag}", out, own)

    given = [c.to(CUDA, copy=True) for c in full[rank].split(count)] if count else [out] * size
    finish(dist.reduce_scatter(out, given, async_op=async_op))
    same(f"reduce_scatter {tag}", out, own)

    # In place: the own block of the larger side.
    both = full[rank].to(CUDA, copy=True)
    finish(
        dist.reduce_scatter_tensor(both[rank * count : (rank + 1) * count], both, async_op=async_op)
    )
    same(f"reduce_scatter_tensor in place {tag}", both[rank * count : (rank + 1) * count], own)


def every_collective(rank: int, size: int, dtype: str, async_op: bool) -> None:
    """All collectives of one dtype over all counts."""
    type_ = {**REDUCED, **MOVED_ONLY}[dtype]
    for seed, count in enumerate(counts(size)):
        moving(rank, size, type_, count, seed * 2, async_op)
        if dtype in REDUCED:
            computing(rank, size, type_, count, seed * 2, async_op)


def operations(rank: int, size: int) -> None:
    """The operations other than the sum."""
    cases: list[tuple[Any, Callable[[torch.Tensor], torch.Tensor]]] = [
        (dist.ReduceOp.MAX, lambda s: s.max(0)[0]),
        (dist.ReduceOp.MIN, lambda s: s.min(0)[0]),
        (dist.ReduceOp.PRODUCT, lambda s: s.prod(0)),
    ]
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        for count in (5, 20000):
            parts = [sample(r, 9, count, dtype) for r in range(size)]
            stack = torch.stack([p.to(torch.float64) for p in parts])
            if dtype == torch.uint8:
                stack = torch.stack([p.to(torch.int64) for p in parts])
            for op, want in cases:
                box = parts[rank].to(CUDA, copy=True)
                dist.all_reduce(box, op=op)
                same(f"{op} {dtype} x {count}", box, want(stack).to(dtype))
    for count in (5, 20000):
        parts = [sample(r, 3, count, torch.float32) for r in range(size)]
        box = parts[rank].to(CUDA, copy=True)
        dist.all_reduce(box, op=dist.ReduceOp.AVG)
        torch.testing.assert_close(box.cpu(), torch.stack(parts).mean(0))
        box = parts[rank].to(CUDA, copy=True)
        dist.all_reduce(box, op=dist._make_nccl_premul_sum(0.5))
        same("premul_sum", box, torch.stack(parts).sum(0) / 2)


def refused(rank: int, size: int) -> None:
    """What NCCL has not is a sentence on every rank, and the group lives on."""
    import pytest

    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        with pytest.raises(RuntimeError, match="NCCL"):
            dist.all_reduce(torch.ones(3, dtype=torch.int32, device=CUDA), op=op)
    with pytest.raises(RuntimeError, match="int16"):
        dist.all_reduce(torch.ones(3, dtype=torch.int16, device=CUDA))
    with pytest.raises(RuntimeError, match="float32"):
        dist.all_gather_into_tensor(
            torch.empty(2 * size, device=CUDA), torch.ones(2, device=CUDA, dtype=torch.int32)
        )
    with pytest.raises(RuntimeError, match="cpu"):
        dist.all_gather_into_tensor(torch.empty(2 * size), torch.ones(2, device=CUDA))
    with pytest.raises(RuntimeError, match="share memory"):
        dist.all_reduce(torch.ones(1, device=CUDA).expand(4))
    box = torch.ones(3, device=CUDA)
    dist.all_reduce(box)
    same("after refusals", box, torch.full((3,), float(size)))


def layouts(rank: int, size: int) -> None:
    """Tensors that are no contiguous arrays, and addresses that are no multiples of 16."""
    for async_op in (False, True):
        for make in (
            lambda: torch.zeros(6, 8, device=CUDA)[:, ::2],
            lambda: torch.zeros(5, 7, device=CUDA).t(),
            lambda: torch.zeros(2, 3, 4, 5, device=CUDA).to(memory_format=torch.channels_last),
            lambda: torch.zeros(4, 300, device=CUDA)[1:3, 1:299],
        ):
            box = make()
            values = torch.arange(box.numel(), dtype=torch.float32).reshape(box.shape)
            box.copy_(values + rank)
            finish(dist.all_reduce(box, async_op=async_op))
            same("all_reduce", box, values * size + sum(range(size)))
            box.copy_(values + rank)
            finish(dist.broadcast(box, size - 1, async_op=async_op))
            same("broadcast", box, values + size - 1)
            outputs = [make() for _ in range(size)]
            finish(dist.all_gather(outputs, box + rank, async_op=async_op))
            for r, output in enumerate(outputs):
                same("all_gather", output, values + size - 1 + r)
        for offset in range(1, 8):
            base = torch.zeros(2000, dtype=torch.bfloat16, device=CUDA)
            view = base[offset : offset + 1001]
            view.fill_(rank + 1)
            finish(dist.all_reduce(view, async_op=async_op))
            assert (view == size * (size + 1) // 2).all()
            assert (base[:offset] == 0).all() and (base[offset + 1001 :] == 0).all()


def uneven(rank: int, size: int) -> None:
    """Sizes that differ between ranks."""
    sizes = [r * 3 % 5 for r in range(size)]
    outputs = [torch.empty(n, device=CUDA) for n in sizes]
    dist.all_gather(outputs, torch.full((sizes[rank],), float(rank), device=CUDA))
    for r, output in enumerate(outputs):
        assert output.tolist() == [float(r)] * sizes[r]
    inputs = [torch.full((n,), float(rank + 1), device=CUDA) for n in sizes]
    output = torch.empty(sizes[rank], device=CUDA)
    dist.reduce_scatter(output, inputs)
    assert output.tolist() == [size * (size + 1) / 2] * sizes[rank]
    # Rank r sends (r + p) % 3 elements to rank p.
    sent = [(rank + p) % 3 for p in range(size)]
    got = [(p + rank) % 3 for p in range(size)]
    out = torch.empty(sum(got), device=CUDA)
    dist.all_to_all_single(out, torch.full((sum(sent),), float(rank), device=CUDA), got, sent)
    assert out.tolist() == [float(p) for p in range(size) for _ in range(got[p])]
    outs = [torch.empty(n, device=CUDA) for n in got]
    dist.all_to_all(outs, [torch.full((n,), float(rank), device=CUDA) for n in sent])
    for p in range(size):
        assert outs[p].tolist() == [float(p)] * got[p]


def messages(rank: int, size: int) -> None:
    """Sends and receives, alone and in batches."""
    after, before = (rank + 1) % size, (rank - 1) % size
    box = torch.empty(1000, device=CUDA)
    own = torch.full((1000,), float(rank), device=CUDA)
    for receive_first in (True, False):
        ops = [dist.P2POp(dist.irecv, box, before), dist.P2POp(dist.isend, own, after)]
        for work in dist.batch_isend_irecv(ops if receive_first else ops[::-1]):
            work.wait()
        assert (box == before).all()
    if size == 1:
        return
    # Many at once, in an order that differs between ranks.
    boxes = [[torch.empty(64, device=CUDA) for _ in range(16)] for _ in range(size)]
    ops = []
    for step in range(1, size):
        there, here = (rank + step) % size, (rank - step) % size
        for i in range(16):
            ops.append(
                dist.P2POp(dist.isend, torch.full((64,), rank * 100.0 + i, device=CUDA), there)
            )
            ops.append(dist.P2POp(dist.irecv, boxes[here][i], here))
    ops.sort(key=lambda op: op.op is (dist.isend if rank % 2 else dist.irecv))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for r in range(size):
        for i in range(16):
            assert r == rank or (boxes[r][i] == r * 100 + i).all()
    if rank == 0:
        dist.send(own + 7, 1)
        dist.recv(box, 1)
        assert (box == 8).all()
    elif rank == 1:
        dist.recv(box, 0)
        assert (box == 7).all()
        dist.send(own + 7, 0)


def coalescing(rank: int, size: int) -> None:
    """Several collectives as one."""
    boxes = [torch.full((n,), float(rank + 1), device=CUDA) for n in (1, 3, 1000, 50000)]
    with dist._coalescing_manager(device=torch.device(CUDA), async_ops=True) as manager:
        for box in boxes:
            dist.all_reduce(box)
    manager.wait()
    for box in boxes:
        assert (box == size * (size + 1) / 2).all()
    outputs = [torch.empty(size * n, device=CUDA) for n in (2, 5)]
    inputs = [torch.full((n,), float(rank), device=CUDA) for n in (2, 5)]
    with dist._coalescing_manager(device=torch.device(CUDA)):
        for out, mine in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(out, mine)
    for out, n in zip(outputs, (2, 5), strict=True):
        assert out.tolist() == [float(r) for r in range(size) for _ in range(n)]
    dist.all_reduce_coalesced(boxes)
    for box in boxes:
        assert (box == size * size * (size + 1) / 2).all()


def random_calls(rank: int, size: int, calls: int) -> None:
    """A long sequence, the same on all ranks, on several streams, with no host in between."""
    import random

    choose = random.Random(5)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    verdicts = []
    for i in range(calls):
        kind, count = (
            choose.randrange(6),
            choose.choice([1, 3, 64, 1000, 5000, 17000, 40000, 200000]),
        )
        stream = choose.choice([*streams, torch.cuda.current_stream()])
        values = [float((r + i) % 7) for r in range(size)]
        with torch.cuda.stream(stream):
            box = torch.full((count,), values[rank], device=CUDA)
            want = sum(values)
            if kind == 0:
                dist.all_reduce(box)
            elif kind == 1:
                dist.all_reduce(box, async_op=True).wait()
            elif kind == 2:
                dist.broadcast(box, i % size)
                want = values[i % size]
            elif kind == 3:
                out = torch.empty(size, count, device=CUDA)
                dist.all_gather_into_tensor(out, box)
                box, want = out[(i + 1) % size], values[(i + 1) % size]
            elif kind == 4:
                dist.reduce(box, i % size)
                want = want if rank == i % size else values[rank]
            else:
                out = torch.empty(count, device=CUDA)
                dist.reduce_scatter_tensor(out, box.repeat(size))
                box = out
            verdicts.append(((box == want).all(), i, kind, count))
        if len(verdicts) == 100 or i == calls - 1:
            torch.cuda.synchronize()
            for right, *what in verdicts:
                assert right.item(), what
            verdicts = []
