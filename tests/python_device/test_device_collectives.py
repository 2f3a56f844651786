"""Every collective on arrays of GPUs, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from accl_py import Communicator, Work
from gpu_arrays import Cupy, Exported, ndarray, settled
from layouts_numpy import numbers, reduced
from local_ranks import run_threads

DTYPES = [np.dtype(name) for name in ("float32", "float64", "int32", "uint8", "float16")]
SUMMED = "float64 float32 float16 int8 uint8 int32 uint32 int64 uint64 complex64 complex128"
MOVED_ONLY = ("int16", "uint16", "bool")
OPERATIONS = ("sum", "product", "min", "max", "avg")


def shapes(size: int) -> list[tuple[int, ...]]:
    """Awkward ones: counts around that of the ranks."""
    return [(3,), (2, 5), *((n,) for n in sorted({0, 1, size - 1, size, size + 1}))]


def mine(c: Communicator, values: Any) -> ndarray:
    return ndarray(values, c.rank)


def shows(c: Communicator, answer: Any, wanted: Any) -> None:
    """What a call gave, synchronous or not, once the GPU is done."""
    got = answer.wait() if isinstance(answer, Work) else answer
    settled(device=c.rank)
    assert isinstance(got, ndarray) and got.shape == np.shape(wanted)
    np.testing.assert_array_equal(got.host, wanted)


Case = Callable[[Communicator, list[Any], dict[str, Any]], None]


def all_reduce(c: Communicator, inputs: list[Any], options: dict[str, Any]) -> None:
    x = mine(c, inputs[c.rank])
    shows(c, c.all_reduce(x, **options), reduced(inputs, "sum"))
    shows(c, x, reduced(inputs, "sum"))  # in place
    x, out = mine(c, inputs[c.rank]), mine(c, np.zeros_like(inputs[0]))
    shows(c, c.all_reduce(x, out, op="max", **options), reduced(inputs, "max"))
    shows(c, x, inputs[c.rank])


def reduce(c: Communicator, inputs: list[Any], options: dict[str, Any]) -> None:
    root = c.size - 1
    x = mine(c, inputs[c.rank])
    answer = c.reduce(x, root=root, **options)
    if c.rank == root:
        shows(c, answer, reduced(inputs, "sum"))
    else:
        shows(c, x, inputs[c.rank])
        assert options or answer is None


def broadcast(c: Communicator, inputs: list[Any], options: dict[str, Any]) -> None:
    for root in range(c.size):
        x = mine(c, inputs[c.rank])
        shows(c, c.broadcast(x, root=root, **options), inputs[root])


def all_gather(c: Communicator, inputs: list[Any], options: dict[str, Any]) -> None:
    shows(c, c.all_gather(mine(c, inputs[c.rank]), **options), np.stack(inputs))
    out = mine(c, np.zeros_like(np.concatenate(inputs)))
    shows(c, c.all_gather(mine(c, inputs[c.rank]), out, **options), np.concatenate(inputs))


def all_gather_uneven(c: Communicator, inputs: list[Any], options: dict[str, Any]) -> None:
    counts = [max(len(a) - r, 0) for r, a in enumerate(inputs)]
    parts = [a[:n] for a, n in zip(inputs, counts, strict=True)]
    answer = c.all_gather(mine(c, parts[c.rank]), counts=counts, **options)
    shows(c, answer, np.concatenate(parts))


def gather(c: Communicator, inputs: list[Any], options: dict[str, Any]) -> None:
    answer = c.gather(mine(c, inputs[c.rank]), root=0, **options)
    if c.rank == 0:
        shows(c, answer, np.stack(inputs))


def reduce_scatter(c: Communicator, inputs: list[Any], options: dict[str, Any]) -> None:
    wide = [np.stack([a + a.dtype.type(r) for r in range(c.size)]) for a in inputs]
    answer = c.reduce_scatter(mine(c, wide[c.rank]), **options)
    shows(c, answer, reduced(wide, "sum")[c.rank])


def scatter(c: Communicator, inputs: list[Any], options: dict[str, Any]) -> None:
    whole = np.stack(inputs)
    x = mine(c, whole) if c.rank == 0 else None
    out = mine(c, np.zeros_like(inputs[0]))
    shows(c, c.scatter(x, out, root=0, **options), inputs[c.rank])


def all_to_all(c: Communicator, inputs: list[Any], options: dict[str, Any]) -> None:
    wide = [np.stack([a + a.dtype.type(r) for r in range(c.size)]) for a in inputs]
    wanted = np.stack([w[c.rank] for w in wide])
    shows(c, c.all_to_all(mine(c, wide[c.rank]), **options), wanted)


CASES: list[Case] = [
    all_reduce,
    reduce,
    broadcast,
    all_gather,
    all_gather_uneven,
    gather,
    reduce_scatter,
    scatter,
    all_to_all,
]


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_collective(cupy: Cupy, size: int, case: Case, async_op: bool) -> None:
    def check(c: Communicator) -> None:
        for dtype in DTYPES:
            for shape in shapes(size):
                inputs = [numbers(shape, dtype, rank) for rank in range(c.size)]
                case(c, inputs, {"async_op": True} if async_op else {})
        assert c.statistics()["device"]["nccl_calls"] > 0  # one rank takes the same way
        assert c.device == c.rank

    run_threads(size, check)


def test_every_dtype(cupy: Cupy, size: int) -> None:
    def check(c: Communicator) -> None:
        for name in SUMMED.split():
            inputs = [numbers((size + 1,), np.dtype(name), rank) for rank in range(size)]
            shows(c, c.all_reduce(mine(c, inputs[c.rank])), reduced(inputs, "sum"))
        for name in (*SUMMED.split(), *MOVED_ONLY):
            inputs = [numbers((size + 1,), np.dtype(name), rank) for rank in range(size)]
            for case in (broadcast, all_gather, all_to_all_whole):
                case(c, inputs, {})

    run_threads(size, check)


def all_to_all_whole(c: Communicator, inputs: list[Any], options: dict[str, Any]) -> None:
    wide = [np.stack([a] * c.size) for a in inputs]
    shows(c, c.all_to_all(mine(c, wide[c.rank]), **options), np.stack(inputs))


def test_every_operation(cupy: Cupy, size: int) -> None:
    def check(c: Communicator) -> None:
        for dtype in (np.dtype("float64"), np.dtype("int32")):
            inputs = [numbers((5,), dtype, rank) for rank in range(size)]
            for op in OPERATIONS:
                shows(c, c.all_reduce(mine(c, inputs[c.rank]), op=op), reduced(inputs, op))
        inputs = [numbers((5,), np.dtype("float64"), rank) for rank in range(size)]
        answer = c.all_reduce(mine(c, inputs[c.rank]), op="premul_sum", factor=0.5)
        shows(c, answer, reduced(inputs, "premul_sum", 0.5))

    run_threads(size, check)


def test_uneven_all_to_all_and_parts(cupy: Cupy, size: int) -> None:
    def check(c: Communicator) -> None:
        # Rank s sends rank r as many rows as s + 2 * r, of the value 10 * s + r.
        send = [c.rank + 2 * r for r in range(size)]
        receive = [s + 2 * c.rank for s in range(size)]
        x = mine(c, np.repeat([10.0 * c.rank + r for r in range(size)], send))
        answer = c.all_to_all(x, send_counts=send, receive_counts=receive)
        shows(c, answer, np.repeat([10.0 * s + c.rank for s in range(size)], receive))
        counts = list(range(size))  # rank 0 gets nothing
        first, last = sum(counts[: c.rank]), sum(counts[: c.rank + 1])
        inputs = [numbers((sum(counts), 2), np.dtype("int32"), rank) for rank in range(size)]
        answer = c.reduce_scatter(mine(c, inputs[c.rank]), counts=counts)
        shows(c, answer, reduced(inputs, "sum")[first:last])

    run_threads(size, check)


def test_arrays_of_other_libraries(size: int) -> None:
    def check(c: Communicator) -> None:
        x, out = Exported([c.rank, 1.0], c.rank), Exported(np.zeros((c.size, 2)), c.rank)
        assert c.all_gather(x, out) is out
        assert c.all_reduce(x) is x
        settled(device=c.rank)
        assert out.host.tolist() == [[rank, 1.0] for rank in range(c.size)]
        assert x.host.tolist() == [sum(range(c.size)), c.size]

    run_threads(size, check)


def test_messages(cupy: Cupy) -> None:
    def check(c: Communicator) -> None:
        c.all_reduce(mine(c, np.ones(1)))
        left, right = (c.rank - 1) % c.size, (c.rank + 1) % c.size
        x, y = mine(c, np.full(3, c.rank)), mine(c, np.zeros(3, int))
        with c.group() as group:
            group.send(x, right)
            group.recv(y, left)
        shows(c, y, np.full(3, left))
        if c.rank == 0:
            assert c.send(x, 1) is None
        elif c.rank == 1:
            assert c.recv(y, 0) == 0
            shows(c, y, np.zeros(3))
            work = c.recv(y, 2, async_op=True)
            assert work.source_rank == 2
            shows(c, work, np.full(3, 2))
        else:
            c.send(x, 1)

    run_threads(3, check)


def test_device_at_once(cupy: Cupy, size: int) -> None:

    def check(c: Communicator) -> None:
        with Communicator.from_store(store, c.rank, c.size, name="now", device=c.rank) as now:
            assert now.device == c.rank and c.device is None
            assert now.nodes == 1
            x = mine(now, np.full(2, 3.0))
            if c.size > 1 and c.rank < 2:  # messages need no collective call first
                now.send(x, 1) if c.rank == 0 else now.recv(x, 0)
            shows(now, x, np.full(2, 3.0))

    import accl_py

    store = accl_py.HashStore()
    run_threads(size, check)
