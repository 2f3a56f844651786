"""Every collective, in every memory layout, on every dtype that it takes, synchronous and not."""

from __future__ import annotations

from collections.abc import Callable

import layouts
import pytest
import torch
import torch.distributed as dist
from layouts import FLOAT8_UNSIGNED_ZERO, LAYOUTS, Layout, same, values
from ranks import Ranks, refused
from torch import Tensor

Lay = Callable[[Tensor], Tensor]


def finish(work: dist.Work | None, is_async: bool) -> None:
    assert (work is not None) == is_async
    if work is not None:
        work.wait()
        assert work.is_completed() and work.is_success()


def total(size: int, dtype: torch.dtype) -> Tensor:
    """The sum over all ranks; the values are small enough to be exact in every dtype that can add."""
    if dtype == torch.bool:
        return torch.stack([values(r, dtype) for r in range(size)]).any(0)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return sum((values(r, dtype).to(wide) for r in range(size)), torch.zeros((), dtype=wide)).to(
        dtype
    )


def all_reduce(rank: int, size: int, dtype: torch.dtype, lay: Lay, is_async: bool) -> None:
    x = lay(values(rank, dtype))
    finish(dist.all_reduce(x, async_op=is_async), is_async)
    assert same(x, total(size, dtype)), x


def reduce(rank: int, size: int, dtype: torch.dtype, lay: Lay, is_async: bool) -> None:
    for root in range(size):
        x = lay(values(rank, dtype))
        finish(dist.reduce(x, root, async_op=is_async), is_async)
        assert same(x, total(size, dtype) if rank == root else values(rank, dtype)), (root, x)


def broadcast(rank: int, size: int, dtype: torch.dtype, lay: Lay, is_async: bool) -> None:
    for root in range(size):
        x = lay(values(rank, dtype))
        finish(dist.broadcast(x, root, async_op=is_async), is_async)
        assert same(x, values(root, dtype)), (root, x)


def all_gather(rank: int, size: int, dtype: torch.dtype, lay: Lay, is_async: bool) -> None:
    out = [lay(values(9, dtype)) for _ in range(size)]
    finish(dist.all_gather(out, lay(values(rank, dtype)), async_op=is_async), is_async)
    for r in range(size):
        assert same(out[r], values(r, dtype)), (r, out[r])


def all_gather_into_tensor(
    rank: int, size: int, dtype: torch.dtype, lay: Lay, is_async: bool
) -> None:
    expected = torch.stack([values(r, dtype) for r in range(size)])
    out = lay(torch.zeros_like(expected).flatten(0, 1))
    finish(dist.all_gather_into_tensor(out, lay(values(rank, dtype)), async_op=is_async), is_async)
    assert same(out, expected.flatten(0, 1)), out


def all_gather_stacked(rank: int, size: int, dtype: torch.dtype, lay: Lay, is_async: bool) -> None:
    expected = torch.stack([values(r, dtype)[0] for r in range(size)])
    out = lay(torch.zeros_like(expected))
    finish(
        dist.all_gather_into_tensor(out, lay(values(rank, dtype))[0], async_op=is_async), is_async
    )
    assert same(out, expected), out


def reduce_scatter(rank: int, size: int, dtype: torch.dtype, lay: Lay, is_async: bool) -> None:
    parts = [lay(values(rank, dtype).roll(part)) for part in range(size)]
    out = lay(torch.zeros_like(values(0, dtype)))
    finish(dist.reduce_scatter(out, parts, async_op=is_async), is_async)
    assert same(out, total(size, dtype).roll(rank)), out


def reduce_scatter_tensor(
    rank: int, size: int, dtype: torch.dtype, lay: Lay, is_async: bool
) -> None:
    x = lay(torch.cat([values(rank, dtype).roll(part) for part in range(size)]))
    out = lay(torch.zeros_like(values(0, dtype)))
    finish(dist.reduce_scatter_tensor(out, x, async_op=is_async), is_async)
    assert same(out, total(size, dtype).roll(rank)), out


def gather(rank: int, size: int, dtype: torch.dtype, lay: Lay, is_async: bool) -> None:
    for root in range(size):
        out = [lay(values(9, dtype)) for _ in range(size)] if rank == root else None
        finish(dist.gather(lay(values(rank, dtype)), out, root, async_op=is_async), is_async)
        for r in range(size):
            assert out is None or same(out[r], values(r, dtype)), (root, r)


def scatter(rank: int, size: int, dtype: torch.dtype, lay: Lay, is_async: bool) -> None:
    for root in range(size):
        parts = [lay(values(root + r, dtype)) for r in range(size)] if rank == root else None
        out = lay(values(9, dtype))
        finish(dist.scatter(out, parts, root, async_op=is_async), is_async)
        assert same(out, values(root + rank, dtype)), (root, out)


def all_to_all(rank: int, size: int, dtype: torch.dtype, lay: Lay, is_async: bool) -> None:
    parts = [lay(values(rank * size + r, dtype)) for r in range(size)]
    out = [lay(values(9, dtype)) for _ in range(size)]
    finish(dist.all_to_all(out, parts, async_op=is_async), is_async)
    for r in range(size):
        assert same(out[r], values(r * size + rank, dtype)), (r, out[r])


def all_to_all_single(rank: int, size: int, dtype: torch.dtype, lay: Lay, is_async: bool) -> None:
    x = lay(torch.cat([values(rank * size + r, dtype) for r in range(size)]))
    out = lay(torch.zeros_like(x))
    finish(dist.all_to_all_single(out, x, async_op=is_async), is_async)
    assert same(out, torch.cat([values(r * size + rank, dtype) for r in range(size)])), out


def send_recv(rank: int, size: int, dtype: torch.dtype, lay: Lay, is_async: bool) -> None:
    """Around the ring; the synchronous form in an order that cannot block."""
    out, x = lay(values(9, dtype)), lay(values(rank, dtype))
    after, before = (rank + 1) % size, (rank - 1) % size
    if is_async:
        for work in (dist.isend(x, after), dist.irecv(out, before)):
            work.wait()
    elif rank == 0:
        dist.send(x, after)
        dist.recv(out, before)
    else:
        dist.recv(out, before)
        dist.send(x, after)
    assert same(out, values(before, dtype)), out


COMPUTING = [all_reduce, reduce, reduce_scatter, reduce_scatter_tensor]
MOVING = [
    broadcast,
    all_gather,
    all_gather_into_tensor,
    all_gather_stacked,
    gather,
    scatter,
    all_to_all,
    all_to_all_single,
    send_recv,
]
COLLECTIVES = {f.__name__: f for f in [*COMPUTING, *MOVING]}


def check_collective(rank: int, size: int, name: str, layout: str) -> int:
    collective, lay_out = COLLECTIVES[name], LAYOUTS[layout]
    done = 0
    for dtype in layouts.ALL:
        if collective in COMPUTING and dtype in FLOAT8_UNSIGNED_ZERO:
            continue  # refused: test_operations.py
        for is_async in (False, True):
            try:
                collective(rank, size, dtype, _for_rank(lay_out, rank), is_async)
            except BaseException as error:
                raise AssertionError(
                    f"{name} of {dtype}, layout {layout}, async {is_async}"
                ) from error
            done += 1
    return done


def _for_rank(lay_out: Layout, rank: int) -> Lay:
    return lambda tensor: lay_out(tensor, rank)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_layout(ranks: Ranks, name: str, layout: str) -> None:
    done = ranks.run(check_collective, name, layout)
    assert set(done) == {2 * (len(layouts.ALL) - (2 if COLLECTIVES[name] in COMPUTING else 0))}


def check_zero_sizes(rank: int, size: int) -> None:
    for sizes in ((0,), (0, 2), (1, 0, 2)):
        e = lambda s=sizes: torch.empty(s)  # noqa: E731
        many = torch.empty(sizes[0] * size, *sizes[1:])
        dist.all_reduce(e())
        dist.reduce(e(), 0)
        dist.broadcast(e(), 0)
        dist.all_gather([e() for _ in range(size)], e())
        dist.all_gather_into_tensor(many.clone(), e())
        dist.reduce_scatter(e(), [e() for _ in range(size)])
        dist.reduce_scatter_tensor(e(), many.clone())
        dist.gather(e(), [e() for _ in range(size)] if rank == 0 else None, 0)
        dist.scatter(e(), [e() for _ in range(size)] if rank == 0 else None, 0)
        dist.all_to_all([e() for _ in range(size)], [e() for _ in range(size)])
        dist.all_to_all_single(many.clone(), many.clone())
        for work in (dist.isend(e(), (rank + 1) % size), dist.irecv(e(), (rank - 1) % size)):
            work.wait()


def check_no_dimensions(rank: int, size: int) -> None:
    x = torch.tensor(float(rank + 1))
    dist.all_reduce(x)
    assert x == sum(range(1, size + 1))
    x = torch.tensor(rank)
    dist.broadcast(x, size - 1)
    assert x == size - 1
    out = [torch.tensor(-1) for _ in range(size)]
    dist.all_gather(out, torch.tensor(rank))
    assert [int(o) for o in out] == list(range(size))
    flat = torch.zeros(size)
    dist.all_gather_into_tensor(flat, torch.tensor(float(rank)))
    assert flat.tolist() == list(range(size))
    x = torch.tensor(0.0)
    dist.reduce_scatter_tensor(x, torch.arange(float(size)))
    assert x == rank * size
    dist.reduce_scatter(x, [torch.tensor(float(r)) for r in range(size)])
    assert x == rank * size
    dist.scatter(x, [torch.tensor(float(r + 5)) for r in range(size)] if rank == 0 else None, 0)
    assert x == rank + 5
    dist.gather(torch.tensor(rank), out if rank == 0 else None, 0)
    assert rank or [int(o) for o in out] == list(range(size))
    dist.all_to_all(out, [torch.tensor(10 * rank + r) for r in range(size)])
    assert [int(o) for o in out] == [10 * r + rank for r in range(size)]


def check_stacked_reduce_scatter(rank: int, size: int) -> None:
    out = torch.zeros(3)
    dist.reduce_scatter_tensor(out, torch.arange(3.0 * size).reshape(size, 3))
    assert torch.equal(out, (torch.arange(3.0) + 3 * rank) * size)


def check_uneven(rank: int, size: int) -> None:
    mine = torch.full((2 + rank,), float(rank))
    out = [torch.zeros(2 + r) for r in range(size)]
    dist.all_gather(out, mine)
    assert [o.tolist() for o in out] == [[float(r)] * (2 + r) for r in range(size)]
    part = torch.zeros(1 + rank, dtype=torch.int32)
    dist.reduce_scatter(
        part, [torch.full((1 + r,), r + rank, dtype=torch.int32) for r in range(size)]
    )
    assert part.tolist() == [sum(rank + r for r in range(size))] * (1 + rank)
    # Rank a sends a + b elements to rank b, that is none from 0 to 0.
    sends = [torch.full((rank + r, 2), float(10 * rank + r)) for r in range(size)]
    gets = [torch.zeros(rank + r, 2) for r in range(size)]
    dist.all_to_all(gets, sends)
    for r in range(size):
        assert torch.equal(gets[r], torch.full((rank + r, 2), float(10 * r + rank)))
    out_single = torch.zeros(sum(rank + r for r in range(size)), 2)
    splits = [rank + r for r in range(size)]
    dist.all_to_all_single(out_single, torch.cat(sends), splits, splits)
    assert torch.equal(out_single, torch.cat(gets))


def check_uneven_zero(rank: int, size: int) -> None:
    """Rank 0 alone sends; one-sided split sizes."""
    send = [r + 1 for r in range(size)] if rank == 0 else [0] * size
    get = [rank + 1] + [0] * (size - 1)
    out = torch.zeros(sum(get))
    dist.all_to_all_single(out, torch.arange(float(sum(send))), get, send)
    assert out.tolist() == [float(sum(range(1, rank + 1)) + i) for i in range(rank + 1)]
    even = torch.zeros(2 * size)
    dist.all_to_all_single(even, torch.arange(2.0 * size), None, [2] * size)
    assert even.tolist() == [2.0 * rank, 2.0 * rank + 1] * size


def check_in_place(rank: int, size: int) -> None:
    """Inputs that lie in the output, at their own place and elsewhere."""
    for place in (rank, (rank + 1) % size):
        flat = torch.zeros(2 * size)
        mine = flat[2 * place : 2 * place + 2]
        mine.fill_(rank + 1)
        dist.all_gather_into_tensor(flat, mine)
        assert flat.tolist() == [float(r + 1) for r in range(size) for _ in range(2)], place
        out = [torch.zeros(2) for _ in range(size)]
        out[place].fill_(rank + 1)
        dist.all_gather(out, out[place])
        assert [o[0].item() for o in out] == [float(r + 1) for r in range(size)], place
        flat = torch.arange(2.0 * size)
        dist.reduce_scatter_tensor(flat[2 * place : 2 * place + 2], flat)
        assert flat[2 * place].item() == 2 * rank * size
    x = torch.arange(float(size)) + 10 * rank
    dist.all_to_all_single(x, x)
    assert x.tolist() == [10.0 * r + rank for r in range(size)]
    xs = [torch.tensor([10 * rank + r]) for r in range(size)]
    dist.all_to_all(xs, xs)
    assert [int(x) for x in xs] == [10 * r + rank for r in range(size)]
    xs = [torch.tensor([r]) for r in range(size)]
    dist.scatter(xs[0], xs if rank == 0 else None, 0)
    assert int(xs[0]) == rank
    xs = [torch.tensor([rank]) for r in range(size)]
    dist.gather(xs[rank], xs if rank == 0 else None, 0)
    assert rank or [int(x) for x in xs] == list(range(size))


def check_views(rank: int, size: int) -> None:
    """Expanded inputs are read, conjugate and negative views mean their values."""
    out = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(out, torch.full((1,), float(rank)).expand(4))
    assert [o.tolist() for o in out] == [[float(r)] * 4 for r in range(size)]
    # Conjugate views go to the backend itself: torch's own functions ask for view_as_real() first.
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    z = torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)
    flat = torch.zeros(2 * size, dtype=z.dtype)
    backend._allgather_base(flat, z.conj()).wait()
    ones = [torch.tensor([1 - 2j, 3 + 1j]) * (r + 1) for r in range(size)]
    assert torch.equal(flat, torch.cat(ones)), flat
    x = z.conj()
    backend.broadcast([x], dist.BroadcastOptions()).wait()
    assert torch.equal(x, ones[0]), x
    assert torch.equal(z, ones[0].conj())  # what x is a view of
    imaginary = (torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)).conj().imag
    assert imaginary.is_neg()
    flat = torch.zeros(2 * size)
    dist.all_gather_into_tensor(flat, imaginary)
    assert flat[0] == -2 and flat[3] == 2
    aliased = [torch.zeros(1)] * size
    dist.all_gather(
        aliased, torch.ones(1)
    )  # the same tensor for every rank: the last one written stays
    assert aliased[0].item() == 1


def check_grad_and_inference(rank: int, size: int) -> None:
    p = torch.nn.Parameter(torch.ones(2))
    with torch.no_grad():
        dist.all_reduce(p)
    assert p.tolist() == [size, size] and p.requires_grad
    with torch.inference_mode():
        plain, column = torch.ones(2), torch.ones(2, 2)[:, 0]
        dist.all_reduce(plain)
        dist.all_reduce(column)
    assert plain.tolist() == column.tolist() == [size, size]
    with torch.inference_mode():
        column = torch.ones(2, 2)[:, 0]
    work = dist.all_reduce(column, async_op=True)  # copied back outside of inference mode
    work.wait()
    assert column.tolist() == [size, size]
    leaf = torch.ones(3, 2, requires_grad=True)
    work = dist.all_reduce(leaf.detach()[:, 0], async_op=True)
    work.wait()
    leaf.sum().backward()
    assert leaf.grad is not None and leaf[0, 0] == size


CHECKS = [
    check_zero_sizes,
    check_no_dimensions,
    check_stacked_reduce_scatter,
    check_uneven,
    check_uneven_zero,
    check_in_place,
    check_views,
    check_grad_and_inference,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_shapes(ranks: Ranks, check: Callable[..., None]) -> None:
    ranks.run(check)


def check_refusals(rank: int, size: int) -> None:
    """What cannot be right is refused on every rank, before anything is posted."""
    expanded = torch.ones(1).expand(4)
    shared = torch.ones(8).as_strided((3, 3), (2, 1))
    other = (rank + 1) % size
    refused(lambda: dist.all_reduce(expanded), "share memory", ".clone()")
    refused(lambda: dist.all_reduce(shared), "share memory")
    refused(lambda: dist.broadcast(expanded, 0), "share memory")
    refused(lambda: dist.reduce(expanded, 0), "share memory")
    refused(lambda: dist.all_gather([expanded] * size, torch.ones(4)), "output 0", "share memory")
    refused(
        lambda: dist.all_gather_into_tensor(torch.ones(1).expand(4 * size), torch.ones(4)),
        "share memory",
    )
    refused(lambda: dist.recv(expanded, other), "share memory")
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    double, single = torch.ones(2, dtype=torch.float64), torch.ones(2)
    refused(lambda: backend.allgather([[double] * size], [single]), "float64", "float32")
    refused(
        lambda: backend._allgather_base(torch.ones(2 * size + 1), single), f"expected {2 * size}"
    )
    refused(lambda: backend.allgather([[single] * (size + 1)], [single]), f"{size + 1} tensors")
    refused(lambda: backend.allgather([[torch.ones(3)] * size], [single]), "expected 3")
    refused(
        lambda: backend._reduce_scatter_base(single, torch.ones(2 * size + 1)),
        f"expected {2 * size}",
    )
    refused(
        lambda: dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1)),
        "divide evenly",
        str(size + 1),
    )
    bad = [size + 1] + [0] * (size - 1)
    refused(lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size), bad, None), "add up")
    refused(
        lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size), None, [size]),
        "split sizes",
    )
    refused(lambda: dist.all_to_all_single(torch.tensor(1.0), torch.tensor(1.0)), "no dimensions")
    refused(lambda: backend.allreduce([torch.eye(2).to_sparse_csr()]), "layout")
    refused(
        lambda: backend.allreduce([torch.quantize_per_tensor(single, 0.1, 0, torch.qint8)]),
        "quantized",
    )
    lopsided = [torch.ones(1)] + [torch.ones(2)] * (size - 1)
    refused(lambda: backend.reduce_scatter([torch.ones(5)], [lopsided]), "expected")
    if rank == 0:
        refused(lambda: backend.gather([lopsided], [single]), "expected 2")
    dist.barrier()
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x == size


def test_refusals(ranks: Ranks) -> None:
    ranks.run(check_refusals)
