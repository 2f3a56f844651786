"""Every collective on numpy arrays of every dtype, shape and layout, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from accl_py import Communicator, Work, _core
from layouts_numpy import DTYPES, LAYOUTS, SHAPES, Array, lay_out, numbers, reduced
from local_ranks import ThreadRanks

OPERATIONS = list(_core.ReduceOp.__members__)


def complete(answer: Any) -> Any:
    """The result of a call, synchronous or not."""
    return answer.wait() if isinstance(answer, Work) else answer


def supported(op: str, dtype: np.dtype[Any]) -> bool:
    return bool(_core.supports(_core.reduce_op(op), _core.dtype(dtype.name)))


def all_inputs(c: Communicator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[Array]:
    return [numbers(shape, dtype, rank) for rank in range(c.size)]


def same(got: Any, wanted: Array) -> None:
    assert isinstance(got, np.ndarray)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    np.testing.assert_array_equal(got, wanted)


Case = Callable[[Communicator, np.dtype[Any], tuple[int, ...], str, bool], None]


def all_reduce(
    c: Communicator, dtype: np.dtype[Any], shape: tuple[int, ...], layout: str, async_op: bool
) -> None:
    inputs = all_inputs(c, shape, dtype)
    wanted = reduced(inputs, "sum")
    x = lay_out(inputs[c.rank], layout)
    assert complete(c.all_reduce(x, async_op=async_op)) is x
    same(x, wanted)
    x, out = lay_out(inputs[c.rank], layout), lay_out(np.zeros(shape, dtype), layout)
    assert complete(c.all_reduce(x, out, async_op=async_op)) is out
    same(out, wanted)
    same(x, inputs[c.rank])  # left alone


def all_gather(
    c: Communicator, dtype: np.dtype[Any], shape: tuple[int, ...], layout: str, async_op: bool
) -> None:
    inputs = all_inputs(c, shape, dtype)
    wanted = np.stack(inputs)
    x = lay_out(inputs[c.rank], layout)
    same(complete(c.all_gather(x, async_op=async_op)), wanted)
    out = lay_out(np.zeros_like(wanted), layout)
    assert complete(c.all_gather(x, out, async_op=async_op)) is out
    same(out, wanted)
    if shape:
        joined = np.concatenate(inputs)
        out = lay_out(np.zeros_like(joined), layout)
        c.all_gather(x, out)
        same(out, joined)
    out = np.zeros_like(wanted)
    out[c.rank] = inputs[c.rank]
    c.all_gather(out[c.rank, ...], out)  # in place: the own block
    same(out, wanted)


def reduce_scatter(
    c: Communicator, dtype: np.dtype[Any], shape: tuple[int, ...], layout: str, async_op: bool
) -> None:
    inputs = all_inputs(c, (c.size, *shape), dtype)
    wanted = reduced(inputs, "sum")[c.rank, ...]
    x = lay_out(inputs[c.rank], layout)
    same(complete(c.reduce_scatter(x, async_op=async_op)), wanted)
    out = lay_out(np.zeros(shape, dtype), layout)
    assert complete(c.reduce_scatter(x, out, async_op=async_op)) is out
    same(out, wanted)
    if shape:  # dimensions that are joined
        flat = x.reshape((c.size * shape[0], *shape[1:]))
        out = lay_out(np.zeros(shape, dtype), layout)
        same(c.reduce_scatter(flat, out), wanted)
    same(x, inputs[c.rank])


def broadcast(
    c: Communicator, dtype: np.dtype[Any], shape: tuple[int, ...], layout: str, async_op: bool
) -> None:
    inputs = all_inputs(c, shape, dtype)
    for root in {0, c.size - 1}:
        x = lay_out(inputs[c.rank], layout)
        assert complete(c.broadcast(x, root=root, async_op=async_op)) is x
        same(x, inputs[root])


def reduce(
    c: Communicator, dtype: np.dtype[Any], shape: tuple[int, ...], layout: str, async_op: bool
) -> None:
    inputs = all_inputs(c, shape, dtype)
    wanted = reduced(inputs, "sum")
    for root in {0, c.size - 1}:
        x = lay_out(inputs[c.rank], layout)
        result = complete(c.reduce(x, root=root, async_op=async_op))
        assert result is (x if c.rank == root else None)
        same(x, wanted if c.rank == root else inputs[c.rank])
        x, out = lay_out(inputs[c.rank], layout), lay_out(np.zeros(shape, dtype), layout)
        complete(c.reduce(x, out, root=root, async_op=async_op))
        same(x, inputs[c.rank])
        same(out, wanted if c.rank == root else np.zeros(shape, dtype))


def gather(
    c: Communicator, dtype: np.dtype[Any], shape: tuple[int, ...], layout: str, async_op: bool
) -> None:
    inputs = all_inputs(c, shape, dtype)
    wanted = np.stack(inputs)
    x = lay_out(inputs[c.rank], layout)
    for root in {0, c.size - 1}:
        out = lay_out(np.zeros_like(wanted), layout)
        result = complete(c.gather(x, out, root=root, async_op=async_op))
        fresh = complete(c.gather(x, root=root, async_op=async_op))
        if c.rank == root:
            assert result is out
            same(out, wanted)
            same(fresh, wanted)
        else:
            assert result is None and fresh is None


def scatter(
    c: Communicator, dtype: np.dtype[Any], shape: tuple[int, ...], layout: str, async_op: bool
) -> None:
    whole = numbers((c.size, *shape), dtype, 1)
    for root in {0, c.size - 1}:
        out = lay_out(np.zeros(shape, dtype), layout)
        x = lay_out(whole, layout) if c.rank == root else None
        assert complete(c.scatter(x, out, root=root, async_op=async_op)) is out
        same(out, whole[c.rank, ...])


def all_to_all(
    c: Communicator, dtype: np.dtype[Any], shape: tuple[int, ...], layout: str, async_op: bool
) -> None:
    inputs = all_inputs(c, (c.size, *shape), dtype)
    wanted = np.stack([x[c.rank, ...] for x in inputs])
    x = lay_out(inputs[c.rank], layout)
    same(complete(c.all_to_all(x, async_op=async_op)), wanted)
    out = lay_out(np.zeros_like(wanted), layout)
    assert complete(c.all_to_all(x, out, async_op=async_op)) is out
    same(out, wanted)


CASES: list[Case] = [
    all_reduce,
    all_gather,
    reduce_scatter,
    broadcast,
    reduce,
    gather,
    scatter,
    all_to_all,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_dtype_and_shape(ranks: ThreadRanks, case: Case) -> None:
    def check(c: Communicator) -> None:
        for number, dtype in enumerate(DTYPES):
            for shape in SHAPES:
                case(c, dtype, shape, "contiguous", number % 2 == 0)

    ranks.run(check)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_layout(ranks: ThreadRanks, case: Case) -> None:
    def check(c: Communicator) -> None:
        for layout in LAYOUTS[1:]:
            for dtype in (np.dtype("float32"), np.dtype("complex128"), np.dtype("int8")):
                for shape in SHAPES:
                    for async_op in (False, True):
                        case(c, dtype, shape, layout, async_op)

    ranks.run(check)


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_operation(ranks: ThreadRanks, op: str) -> None:
    def check(c: Communicator) -> int:
        tried = 0
        for dtype in DTYPES:
            if dtype.kind == "b" or not supported(op, dtype):
                continue
            inputs = all_inputs(c, (c.size, 5), dtype)
            wanted = reduced(inputs, op, 2.0)
            near = {"rtol": 1e-3 if dtype == np.float16 else 1e-6}
            own = inputs[c.rank]
            got = c.all_reduce(own.copy(), op=op, factor=2.0)
            np.testing.assert_allclose(got, wanted, **near)
            part = c.reduce_scatter(own.copy(), op=op, factor=2.0)
            np.testing.assert_allclose(part, wanted[c.rank], **near)
            rooted = c.reduce(own.copy(), np.zeros_like(own), root=0, op=op, factor=2.0)
            if c.rank == 0:
                np.testing.assert_allclose(rooted, wanted, **near)
            tried += 1
        return tried

    assert min(ranks.run(check)) >= 3


def test_bool_reductions_are_logical(ranks: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        own = np.array([True, False, c.rank == 0, c.rank > 0])
        some = np.array([True, False, True, c.size > 1])
        every = np.array([True, False, c.size == 1, False])
        for op, wanted in {
            "sum": some,
            "max": some,
            "bor": some,
            "product": every,
            "min": every,
            "band": every,
        }.items():
            same(c.all_reduce(own.copy(), op=op), wanted)

    ranks.run(check)


def test_nan_propagates(ranks2: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        for dtype in ("float64", "float32", "float16"):
            for op in ("min", "max"):
                x = np.array([np.nan if c.rank == 1 else 1.0, 2.0], dtype)
                c.all_reduce(x, op=op)
                assert np.isnan(x[0]) and x[1] == 2.0

    ranks2.run(check)


@pytest.mark.parametrize("async_op", (False, True))
@pytest.mark.parametrize("dtype", ("float32", "int64", "bool"))
def test_uneven_counts(ranks: ThreadRanks, dtype: str, async_op: bool) -> None:
    def check(c: Communicator) -> None:
        kind = np.dtype(dtype)
        for counts in (
            [3 * r for r in range(c.size)],
            [2] * c.size,
            [0] * c.size,
            [5, 0, 1, 7][: c.size],
        ):
            parts = [numbers((n, 2), kind, rank) for rank, n in enumerate(counts)]
            joined = np.concatenate(parts)
            own = lay_out(parts[c.rank], "step")
            same(complete(c.all_gather(own, counts=counts, async_op=async_op)), joined)
            gathered = complete(c.gather(own, counts=iter(counts), root=0, async_op=async_op))
            if c.rank == 0:
                same(gathered, joined)
            out = np.zeros_like(own)
            x = joined if c.rank == 0 else None
            same(complete(c.scatter(x, out, counts=counts, async_op=async_op)), parts[c.rank])
            if kind.kind != "b":
                inputs = [numbers(joined.shape, kind, rank) for rank in range(c.size)]
                begin = sum(counts[: c.rank])
                wanted = reduced(inputs, "sum")[begin : begin + counts[c.rank]]
                part = c.reduce_scatter(inputs[c.rank], counts=counts, async_op=async_op)
                same(complete(part), wanted)

    ranks.run(check)


def test_uneven_all_to_all(ranks: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        def block(source: int, target: int) -> Array:
            return numbers((source * 2 + target, 3), np.dtype("int32"), source + target)

        send = [block(c.rank, peer) for peer in range(c.size)]
        receive = [block(peer, c.rank) for peer in range(c.size)]
        counts = {
            "send_counts": [len(b) for b in send],
            "receive_counts": [len(b) for b in receive],
        }
        wanted = np.concatenate(receive)
        x = lay_out(np.concatenate(send), "reversed")
        same(c.all_to_all(x, **counts), wanted)
        out = lay_out(np.zeros_like(wanted), "fortran")
        same(complete(c.all_to_all(x, out, async_op=True, **counts)), wanted)

    ranks.run(check)


@pytest.mark.parametrize("count", (0, 1, 1000, 65537, 300_000))
def test_every_algorithm_protocol_and_chunk(ranks: ThreadRanks, count: int) -> None:
    from accl_py import rules, schedule

    def check(c: Communicator) -> None:
        inputs = [numbers((count,), np.dtype("float32"), rank) for rank in range(c.size)]
        wanted = reduced(inputs, "sum")
        for algorithm in schedule.algorithms("all_reduce"):
            for protocol in rules.protocol_words("cpu"):
                for chunk in (None, 4096, 1 << 20):
                    x = inputs[c.rank].copy()
                    choice = {
                        "algorithm": algorithm.name,
                        "protocol": protocol,
                        "chunk_bytes": chunk,
                    }
                    work = c.all_reduce(x, async_op=True, **choice)
                    same(work.wait(), wanted)
                    assert work.report()["algorithm"] == algorithm.name

    ranks.run(check)


def test_barrier_waits(ranks3: ThreadRanks) -> None:
    import time

    def check(c: Communicator) -> float:
        c.barrier()
        begin = time.monotonic()
        if c.rank == 2:
            time.sleep(0.15)
        assert c.barrier() is None
        return time.monotonic() - begin

    assert min(ranks3.run(check)) > 0.14
    ranks3.run(lambda c: c.barrier(async_op=True).wait())


def test_dropped_work_completes(ranks2: ThreadRanks) -> None:
    """Also where the result is staged: it is copied back when it is there."""
    import time

    def check(c: Communicator) -> None:
        x = np.ones((100, 2), np.float32)[:, 0]
        if c.rank == 1:
            time.sleep(0.1)
        c.all_reduce(x, async_op=True)
        for _ in range(500):
            if (x == 2).all():
                break
            time.sleep(0.01)
        assert (x == 2).all()
        c.barrier()

    ranks2.run(check)


def test_done_means_that_the_result_is_there(ranks2: ThreadRanks) -> None:
    import time

    def check(c: Communicator) -> None:
        x = lay_out(np.ones((3, 4)), "fortran")
        work = c.all_reduce(x, async_op=True)
        while not work.done():
            time.sleep(0.001)
        assert (x == 2).all()
        assert work.result is x
        assert "complete" in repr(work)

    ranks2.run(check)


def test_many_calls_under_way(ranks3: ThreadRanks) -> None:
    def check(c: Communicator) -> None:
        arrays = [np.full(n * 100, c.rank + n, np.float64)[::2] for n in range(1, 30)]
        works = [c.all_reduce(x, async_op=True) for x in arrays]
        assert [w.sequence for w in works] == list(range(works[0].sequence, works[0].sequence + 29))
        for n, work in reversed(list(enumerate(works, 1))):
            assert (work.wait() == 3 + 3 * n).all()

    ranks3.run(check)
