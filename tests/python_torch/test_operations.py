"""What the reduce operations compute, and which are refused."""

from __future__ import annotations

import math
from functools import reduce
from operator import and_, mul, or_, xor

import pytest
import torch
import torch.distributed as dist
from layouts import COMPLEX, FLOAT8, FLOAT8_UNSIGNED_ZERO, FLOATS, SIGNED, UNSIGNED, same
from ranks import Ranks, refused
from torch import Tensor
from torch.distributed import ReduceOp

INTEGERS = [*SIGNED, *UNSIGNED]
REALS = [*FLOATS, *FLOAT8, *INTEGERS]


def numbers(rank: int, signed: bool = True) -> list[int]:
    """Small, so that sums and products of three ranks are exact in every dtype."""
    return [1, 2, rank, rank + 1, (-1) ** rank * 2 if signed else 2, 3 - rank]


def tensor(rank: int, dtype: torch.dtype) -> Tensor:
    return torch.tensor(numbers(rank, dtype not in UNSIGNED), dtype=torch.float64).to(dtype)


def expected(size: int, dtype: torch.dtype, function: object) -> Tensor:
    columns = zip(*(numbers(r, dtype not in UNSIGNED) for r in range(size)), strict=True)
    return torch.tensor([float(function(column)) for column in columns], dtype=torch.float64).to(
        dtype
    )  # type: ignore[operator]


ARITHMETIC = {
    "SUM": sum,
    "PRODUCT": lambda column: reduce(mul, column),
    "MIN": min,
    "MAX": max,
}
BITWISE = {
    "BAND": lambda column: reduce(and_, column),
    "BOR": lambda column: reduce(or_, column),
    "BXOR": lambda column: reduce(xor, column),
}


def agree(rank: int, size: int, dtype: torch.dtype, op: object, want: Tensor) -> None:
    """The operation in all four collectives that compute."""
    x = tensor(rank, dtype)
    dist.all_reduce(x, op)  # type: ignore[arg-type]
    assert same(x, want), (dtype, x, want)
    x = tensor(rank, dtype)
    dist.reduce(x, size - 1, op)  # type: ignore[arg-type]
    assert same(x, want if rank == size - 1 else tensor(rank, dtype)), (dtype, x)
    out = torch.zeros_like(want)
    dist.reduce_scatter_tensor(out, torch.cat([tensor(rank, dtype)] * size), op)  # type: ignore[arg-type]
    assert same(out, want), (dtype, out)
    out = torch.zeros_like(want)
    dist.reduce_scatter(out, [tensor(rank, dtype)] * size, op)  # type: ignore[arg-type]
    assert same(out, want), (dtype, out)


def check_arithmetic(rank: int, size: int, name: str) -> None:
    for dtype in REALS:
        agree(rank, size, dtype, getattr(ReduceOp, name), expected(size, dtype, ARITHMETIC[name]))


def check_bitwise(rank: int, size: int, name: str) -> None:
    for dtype in INTEGERS:
        agree(rank, size, dtype, getattr(ReduceOp, name), expected(size, dtype, BITWISE[name]))


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(ranks: Ranks, name: str) -> None:
    ranks.run(check_arithmetic, name)


@pytest.mark.parametrize("name", BITWISE)
def test_bitwise(ranks: Ranks, name: str) -> None:
    ranks.run(check_bitwise, name)


def check_average(rank: int, size: int) -> None:
    for dtype in [*FLOATS, *FLOAT8]:
        x = torch.tensor([1.0, 2.0, -3.0]).to(dtype) if rank == 0 else torch.zeros(3).to(dtype)
        dist.all_reduce(x, ReduceOp.AVG)
        want = (torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64) / size).to(dtype)
        assert same(x, want), (dtype, x)
    for dtype in INTEGERS:
        x = torch.tensor([1, 3, 5, 7]).to(dtype) * (rank + 1)
        dist.all_reduce(x, ReduceOp.AVG)
        factor = size * (size + 1) // 2
        assert x.tolist() == [n * factor // size for n in (1, 3, 5, 7)], (dtype, x)
    for dtype in SIGNED:
        x = torch.tensor([-7 if rank == 0 else 0, 7 if rank == 0 else 0], dtype=dtype)
        dist.all_reduce(x, ReduceOp.AVG)
        assert x.tolist() == [math.trunc(-7 / size), math.trunc(7 / size)], (dtype, x)
    x = torch.full((4,), float(rank), dtype=torch.float32)
    out = torch.zeros(4)
    dist.reduce_scatter_tensor(out, x.repeat(size), ReduceOp.AVG)
    assert torch.equal(out, torch.full((4,), (size - 1) / 2)), out


def check_premultiplied(rank: int, size: int) -> None:
    total = sum(range(1, size + 1))
    for dtype in FLOATS:
        for factor in (0.5, torch.tensor(0.5), torch.tensor([0.5], dtype=torch.float64)):
            x = torch.ones(2, dtype=dtype) * (rank + 1)
            dist.all_reduce(x, dist._make_nccl_premul_sum(factor))
            assert x.tolist() == [total / 2] * 2, (dtype, factor, x)
    x = torch.ones(2) * (rank + 1)
    dist.all_reduce(x, ReduceOp.PREMUL_SUM(float(rank + 1)))  # each rank its own factor
    assert x.tolist() == [sum(r * r for r in range(1, size + 1))] * 2
    out = torch.zeros(2)
    dist.reduce_scatter_tensor(out, torch.ones(2 * size), ReduceOp.PREMUL_SUM(2.0))
    assert out.tolist() == [2 * size] * 2
    dist.reduce_scatter(out, [torch.ones(2)] * size, ReduceOp.PREMUL_SUM(2.0))
    assert out.tolist() == [2 * size] * 2


def check_not_a_number(rank: int, size: int) -> None:
    """NaN wins in min and max, whichever rank holds it."""
    for dtype in [*FLOATS, *FLOAT8]:
        for holder in range(size):
            for op in (ReduceOp.MIN, ReduceOp.MAX):
                x = torch.tensor([1.0, math.nan if rank == holder else 1.0]).to(dtype)
                dist.all_reduce(x, op)
                assert x[0].float() == 1 and x[1].float().isnan(), (dtype, holder, op, x)


def check_bool(rank: int, size: int) -> None:
    first, last = rank == 0, rank == size - 1
    some, every = [True, True, False], [True, False, False]
    for op, want in {
        ReduceOp.SUM: some, ReduceOp.MAX: some, ReduceOp.BOR: some,
        ReduceOp.PRODUCT: every, ReduceOp.MIN: every, ReduceOp.BAND: every,
    }.items():  # fmt: skip
        x = torch.tensor([True, first, False])
        dist.all_reduce(x, op)
        assert x.tolist() == want, (op, x)
        assert x.view(torch.uint8).max() <= 1  # still a bool
    x = torch.tensor([last, True])
    dist.reduce(x, 0, ReduceOp.BAND)
    assert rank or x.tolist() == [False, True]


def check_complex(rank: int, size: int) -> None:
    for dtype in COMPLEX:
        x = torch.tensor([1 + 1j, 2 - 3j], dtype=dtype) * (rank + 1)
        dist.all_reduce(x)
        assert torch.equal(
            x, torch.tensor([1 + 1j, 2 - 3j], dtype=dtype) * (size * (size + 1) // 2)
        )
        x = torch.tensor([2 + 4j], dtype=dtype)
        dist.all_reduce(x, ReduceOp.AVG)
        assert x.item() == 2 + 4j
        x = torch.tensor([1j], dtype=dtype)
        dist.reduce(x, 0)
        assert x.item() == (size * 1j if rank == 0 else 1j)
        out = torch.zeros(1, dtype=dtype)
        dist.reduce_scatter(out, [torch.tensor([1 + 1j], dtype=dtype)] * size)
        assert out.item() == size * (1 + 1j)
        x = torch.tensor([1 + 1j], dtype=dtype)
        dist.all_reduce(x, ReduceOp.PREMUL_SUM(0.5))
        assert x.item() == size * (0.5 + 0.5j)
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
        opts = dist.AllreduceOptions()
        opts.reduceOp = ReduceOp.PRODUCT
        backend.allreduce([y := torch.tensor([1j], dtype=dtype)], opts).wait()
        assert y.item() == 1j**size


def check_narrow_floats(rank: int, size: int) -> None:
    """Partial sums are kept in float32: 2048 + 1 + 1 is 2050 in float16, and 2048 if each step is
    rounded.
    """
    if size != 3:
        return
    x = torch.tensor([[2048.0, 1.0, 1.0][rank]], dtype=torch.float16)
    dist.all_reduce(x)
    assert x.item() == 2050
    x = torch.full((70001,), 0.1 * (rank + 1), dtype=torch.bfloat16)
    want = sum(
        torch.full((1,), 0.1 * (r + 1), dtype=torch.bfloat16).float() for r in range(size)
    ).to(torch.bfloat16)  # type: ignore[union-attr]
    dist.all_reduce(x)
    assert (x == want).all()


def check_refused_operations(rank: int, size: int) -> None:
    for dtype in FLOATS:
        refused(
            lambda d=dtype: dist.all_reduce(torch.ones(2, dtype=d), ReduceOp.BAND),
            "band",
            str(dtype),
        )
    refused(lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), ReduceOp.AVG), "avg", "bool")
    for dtype in FLOAT8_UNSIGNED_ZERO:
        refused(lambda d=dtype: dist.all_reduce(torch.ones(2).to(d)), str(dtype), ".float()")
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    opts = dist.AllreduceOptions()
    opts.reduceOp = ReduceOp.MAX
    refused(
        lambda: backend.allreduce([torch.ones(1, dtype=torch.complex64)], opts), "max", "complex64"
    )
    refused(
        lambda: dist.all_reduce(torch.ones(1), dist._make_nccl_premul_sum(torch.tensor(1j))),
        "complex",
        "real number",
    )


@pytest.mark.parametrize(
    "check",
    [
        check_average,
        check_premultiplied,
        check_not_a_number,
        check_bool,
        check_complex,
        check_narrow_floats,
        check_refused_operations,
    ],
    ids=lambda check: check.__name__[6:],
)
def test_operations(ranks: Ranks, check: object) -> None:
    ranks.run(check)  # type: ignore[arg-type]


def check_sparse(rank: int, size: int) -> None:
    x = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.ones(1), (size,))
    dist.all_reduce(x)
    assert x.to_dense().tolist() == [1.0] * size
    # Duplicate and common indices, a dense dimension, and a rank with no entry.
    indices = (
        torch.tensor([[0, 0, 2], [1, 1, rank]]) if rank else torch.zeros(2, 0, dtype=torch.int64)
    )
    entries = torch.ones(indices.shape[1], 3) * rank
    x = torch.sparse_coo_tensor(indices, entries, (3, 4, 3))
    want = torch.zeros(3, 4, 3)
    for r in range(1, size):
        want[0, 1] += 2 * r
        want[2, r] += r
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()
    assert x.is_sparse and torch.equal(x.to_dense(), want)
    refused(lambda: dist.all_reduce(x, ReduceOp.MAX), "summed")
    embedding = torch.nn.EmbeddingBag(10, 3, sparse=True)
    embedding(torch.tensor([[rank, 5]])).sum().backward()
    assert embedding.weight.grad is not None
    dist.all_reduce(embedding.weight.grad)
    dense = embedding.weight.grad.to_dense()
    assert torch.allclose(dense[5], torch.full((3,), size / 2)) and torch.allclose(
        dense[rank], torch.full((3,), 0.5)
    )


def test_sparse(ranks: Ranks) -> None:
    ranks.run(check_sparse)
